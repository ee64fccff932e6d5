"""Every mistake in a recipe is answered in one message: what, where, what was expected, the nearest."""

import pytest

from rayfed_kd.errors import RayfedError, RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.loading import load_recipe

GOOD = {
    "method": {"name": "fedkf", "generator": {"name": "dafl_image", "width": 4, "latent": 8}},
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 4},
    "local": {"epochs": 1},
    "rounds": 1,
    "sampling": {"fraction": 0.5},
}

BAD = [
    ("attack={name: paf, theeta: random}", "attack.theeta is no key of attack. Did you mean attack.theta?"),
    ("method.lamda1=0.5", "method.lamda1 is no option of fedkf. Did you mean method.lambda1?"),
    ("method.name=fedfk", "method.name: 'fedfk' is not known. Did you mean fedkf? There are ccvr,"),
    ('results.folder=""', "results.folder: '' is no path"),
    ("method.gamma=-1", "method.gamma = -1: expected a number of at least 0 (weight of the distillation"),
    ("method.gamma=strong", "method.gamma = 'strong': expected a number (weight of the distillation term"),
    ("method.teacher=ocaa", "method.teacher = 'ocaa': expected 'oca' or 'aca'"),
    ("method.generator.name=dafl", "method.generator.name: 'dafl' is not known. Did you mean dafl_image?"),
    ("method.generator.with=3", "with is no option of dafl_image. Did you mean method.generator.width?"),
    ("method.generator.width=0", "method.generator.width = 0: expected a number of at least"),
    ("method=fedkf", "method = 'fedkf': expected keys below it, as 'method={name: fedkf}'."),
    ("local.optimizer=adam", "expected keys below it, as 'local.optimizer={name: adam}'."),
    ("model=mlp", "expected keys below it, as 'model={name: mlp}'."),
    ("method={}", "method.name is missing."),
    ("model.name=lenet", "Did you mean lenet5?"),
    ("model.depth=3", "model.depth is no option of lenet5. 'model={name: lenet5}' replaces name and"),
    ("model.name=nowhere:Net", "model.name: no module 'nowhere'"),
    ("model.name=resnet18", "'resnet18' is not known. Did you mean torchvision:resnet18?"),
    ("model.name=torchvision:resnet1", "model.name: torchvision has no 'resnet1'. Did you mean resnet18?"),
    ("model.name=rayfed_kd.models.flat_module:FlatModul", "has no 'FlatModul'. Did you mean FlatModule?"),
    ("data.name=digit", "Did you mean digits?"),
    ("data.augment=flipp", "data.augment = 'flipp': expected one of"),
    (
        "data={name: synthetic, shape: [6], augment: crop_flip}",
        "crop_flip moves pixels, but this data set has numbers",
    ),
    ("data.fraction=1.5", "data.fraction = 1.5: expected a number of at most 1"),
    ("partition.alpha=-0.5", "partition.alpha = -0.5: expected a number above 0"),
    ("partition.aplha=1", "partition.aplha is no option of dirichlet. Did you mean partition.alpha?"),
    ("partition.name=dirichlett", "Did you mean dirichlet?"),
    ("partition.clients=0", "partition.clients = 0: expected a number of at least 1"),
    ("partition.clients=5000", "5000"),
    (  # ten classes, each with one client all but surely
        "partition={name: dirichlet, alpha: 0.001, clients: 40, min_size: 0}",
        "of 40 clients; expected one or more for each, as partition.min_size=1 gives them",
    ),
    ("partition.test=oficial", "partition.test = 'oficial': expected 'local' or 'official'"),
    ("partition.test=official", "partition.test = 'official': digits has no official test set; use 'local'"),
    ("partition.file=nothing.parquet", "nothing.parquet"),
    ("local.epoch=3", "local.epoch is no key of local. Did you mean local.epochs?"),
    ("local.batch_size=0", "local.batch_size = 0: expected a number of at least 1 (batch size, B)."),
    ("local.optimizer.name=lbfgs", "local.optimizer.name = 'lbfgs': expected 'sgd', 'adam', 'adadelta', "),
    ("local.optimizer.name=AdamW", "'rmsprop' or 'rprop' (the optimiser). Did you mean adamw?"),
    ("evaluation.metrics=[f1]", "evaluation.metrics.0.name: 'f1' is not known. Did you mean macro_f1?"),
    ("local.optimizer={name: adam, momentum: 0.9}", "local.optimizer: momentum belongs to sgd and rmsprop"),
    ("local.optimizer={name: adamw, nesterov: true}", ": nesterov belongs to sgd, not to adamw"),
    (
        "local.optimizer={name: adamw, beta: [0.9, 0.9]}",
        "local.optimizer: 'beta' is no option of adamw. Did you mean local.optimizer.betas?",
    ),
    ("local.optimizer={betas: [0.9, 0.9]}", "'betas' is no option of sgd. There are: dampening, "),
    ("local.optimizer={name: adam, betas: 0.9}", ": betas = 0.9: expected a list of 2 numbers"),
    ("local.optimizer={name: adam, amsgrad: 1}", "local.optimizer: amsgrad = 1: expected true or false"),
    ("local.optimizer={name: rmsprop, alpha: -1}", "local.optimizer: rmsprop: Invalid alpha value: -1"),
    ("local.optimizer={name: adamw, lr: 0}", "local.optimizer.lr = 0: expected a number above 0"),
    ("local.optimizer={name: rprop, weight_decay: 0.1}", "'weight_decay' is no option of rprop."),
    ("local.clip={norm: 1, value: 1}", "local.clip: give exactly one of norm and value"),
    ("local.clip=1", "local.clip = 1: expected keys below it"),
    ("local.lr_schedule={rounds: {name: step, every: 2}}", "local.lr_schedule.rounds: step needs factor"),
    (
        "local.lr_schedule={steps: {name: cosine, factor: 0.5}}",
        "local.lr_schedule.steps: factor belongs to step and exponential, not to cosine",
    ),
    ("local.lr_schedule={round: {name: cosine}}", "Did you mean local.lr_schedule.rounds?"),
    ("local.lr_schedule={name: cosine}", "name is no key of local.lr_schedule. There are: "),
    *(
        (f"{place}=0.99", "Did you mean local.lr_schedule={rounds: {name: exponential, factor: 0.99}}?")
        for place in ("lr_decay", "local.lr_decay", "local.optimizer.lr_decay", "method.lr_decay")
    ),
    ("local.grad_clip=5", "Did you mean local.clip={norm: 10}?"),
    ("round=3", "round is no key of a recipe. Did you mean rounds?"),
    ("rounds=ten", "rounds = 'ten': expected a whole number (rounds, T)."),
    ("rounds=1.5", "rounds = 1.5: expected a whole number"),
    ("sampling={fraction: 0.5, count: 2}", "sampling: give exactly one of fraction and count"),
    ("sampling.count=2", "sampling={count: 5} takes the place of a fraction"),
    (
        "local.lr_schedule={rounds: {name: cosine, warmup: 10}}",
        "local.lr_schedule.rounds.warmup = 10: the rate would rise to the end; expected fewer than",
    ),
    ("sampling={count: 9}", "sampling.count = 9: more than partition.clients = 4"),
    ("sampling.fraction=0.1", "sampling.fraction = 0.1 of partition.clients = 4 is 0.4 clients a round"),
    ("sampling.fraction=0", "sampling.fraction = 0: expected a number above 0 (share of the clients, C)."),
    ("schedule.name=syn", "schedule.name: 'syn' is not known. Did you mean sync? There are buffered,"),
    ("placement.clients_per_actor=many", "expected 'auto' or a whole number"),
    ("placement.client.num_gpus=1.5", "num_gpus above 1 must be a whole number"),
    ("local.precision=fp16", "local.precision = 'fp16': expected 'fp32', 'tf32' or 'bf16'"),
    (
        "local.precision=tf32",
        "local.precision = tf32: tf32 is arithmetic of NVIDIA GPUs, and placement.client.num_gpus is 0; "
        "expected a GPU for all clients, or fp32 or bf16",
    ),
    ("local.compile=true", "local.compile is no key of local. There are: batch_size, clip, "),
    ("precision=bf16", "precision is no key of a recipe. Did you mean local.precision?"),
    ("seed=-1", "seed = -1: expected a number of at least 0"),
    ("rounds", "override 'rounds': expected key.path=value, as method.gamma=0.5, without blanks"),
    ("lr=0.1", "lr is no key of a recipe. Did you mean local.optimizer.lr?"),
    ("local.momentum=0.9", "momentum is no key of local. Did you mean local.optimizer.momentum?"),
    ("clients=5", "clients is no key of a recipe. Did you mean partition.clients?"),
    ("alpha=0.1", "alpha is no key of a recipe. Did you mean partition.alpha?"),
    ("seeds=[1]", "Did you mean --seeds, an option of `rayfed-kd compare`, or seed?"),
    ("method={name:", "a value with blanks needs quotes around the whole, as 'method={name: ...}'"),
    ("seed.x=1", "override 'seed.x=1': seed is"),
]


IMAGES = "data={name: synthetic, samples: 40, classes: 2, shape: [1, 32, 32]}"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("batchs", "Did you mean method.generator.batches?"),
        ("widht", "Did you mean method.generator.width?"),
        (
            "foo",
            "There are: latent, width. Beside them: batch_size, batches, diversity, epochs, lr, ",
        ),
    ],
)
def test_unknown_option_of_a_generator_is_answered_with_its_own_and_the_methods(option, message):
    recipe = {**GOOD, "method": {"name": "kdia"}, "model": {"name": "simple_cnn"}}
    with pytest.raises(RayfedError) as caught:
        prepare(recipe, [IMAGES, f"method.generator.{option}=3"])
    assert f"method.generator.{option} is no option of fedcg_feature." in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(("override", "message"), BAD, ids=[override for override, _ in BAD])
def test_bad_recipe_is_answered_in_one_message(override, message):
    with pytest.raises(RayfedError) as caught:
        prepare({**GOOD, "seed": 1}, [override])
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("schedule", ["{name: fedbuff}", "{name: quorum, late: next_round}"])
def test_schedule_that_no_clock_would_make_fit_the_method_is_answered_with_that_alone(schedule):
    with pytest.raises(RayfedError) as caught:
        prepare({**GOOD, "method": {"name": "dsfl"}}, [f"schedule={schedule}"])
    assert "dsfl's rounds have several exchanges" in str(caught.value)
    assert "clock" not in str(caught.value)


def test_good_recipe_passes_every_check():
    prepared = prepare(GOOD)
    assert prepared.recipe.rounds == 1
    assert len(prepared.setting.partition.train) == 4


def test_message_names_the_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("method: {name: fedavg}\nroundz: 3\n")
    with pytest.raises(
        RayfedError, match=r"recipe.yaml: roundz is no key of a recipe. Did you mean rounds\?"
    ):
        prepare(path)


def test_missing_recipe_names_a_near_one(tmp_path):
    (tmp_path / "quickstart.yaml").write_text("")
    with pytest.raises(RayfedError, match=r"no such recipe file. Did you mean .*quickstart.yaml\?"):
        prepare(tmp_path / "quikstart.yaml")


def test_runs_folder_in_place_of_a_recipe_is_told(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(RayfedError, match=r"this is a run's folder; .* `rayfed-kd resume` goes on"):
        prepare(tmp_path)


def test_search_space_in_place_of_a_recipe_is_told(tmp_path):
    (tmp_path / "space.yaml").write_text("space: {method.gamma: {uniform: [0, 1]}}")
    with pytest.raises(RayfedError, match="this is a search space: rayfed-kd tune RECIPE --space takes it"):
        prepare(tmp_path / "space.yaml")


def test_recipe_that_is_no_yaml_is_told(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("method: {name: [")
    with pytest.raises(RayfedError, match="not YAML"):
        prepare(path)


def test_other_data_do_not_keep_the_recipes_fraction_silently():
    recipe = {"method": {"name": "fedavg"}, "data": {"name": "mnist", "fraction": 0.1}}
    expected = "data.fraction=1 beside it for all training images, or data.fraction=0.1 to keep the share"
    with pytest.raises(RecipeError, match=expected):
        prepare(recipe, ["data.name=digits", "partition={name: iid, clients: 10}"])
    for said, fraction in (("data.fraction=1", 1.0), ("data.fraction=0.1", 0.1)):
        for overrides in (["data.name=digits", said], [said, "data.name=digits"]):
            resolved = load_recipe(recipe, overrides)
            assert (resolved.data.fraction, resolved.fraction_fault) == (fraction, "")
    assert load_recipe(recipe, ["data={name: digits}"]).data.fraction == 1.0
    assert load_recipe(recipe, ["data.name=mnist", "rounds=3"]).data.fraction == 0.1
    assert load_recipe({**recipe, "data": {"name": "mnist"}}, ["data.name=digits"]).data.fraction == 1.0


def test_kinds_of_parts_that_are_numbers_are_refused():
    """YAML reads `0:` as a number; checks then name such a key in the path, beside lists and their places."""
    with pytest.raises(RecipeError) as refused:
        load_recipe({**GOOD, "codec": {"down": {0: [], 2**63: {-1: None}}}})
    assert "codec.down.0 = 0: expected text" in str(refused.value)
