"""Every recipe of configs/ runs one shortened round on made-up data of its own shape."""

import re

import pytest
import yaml
from paths import ROOT
from runs import run_in_process

from rayfed_kd.algorithms import METHODS
from rayfed_kd.comparison.checking import check_study
from rayfed_kd.comparison.planning import plan_runs
from rayfed_kd.comparison.studies import read_study
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.setting.blueprint import make_method

NO_RECIPES = ("claims", "compare", "tune")
RECIPES = sorted(p for p in ROOT.glob("configs/**/*.yaml") if p.parent.name not in NO_RECIPES)
STUDIES = sorted([*ROOT.glob("configs/compare/*.yaml"), *ROOT.glob("configs/claims/*.yaml")])
BASELINES = sorted(ROOT.glob("configs/baselines/*.yaml"))
SHAPES = {
    "mnist": [1, 28, 28],
    "emnist_letters": [1, 28, 28],
    "cifar10": [3, 32, 32],
    "cifar100": [3, 32, 32],
    "fashion_mnist": [1, 28, 28],
    "svhn": [3, 32, 32],
    "cinic10": [3, 32, 32],
    "femnist": [1, 28, 28],
}
PUBLISHED = [p for p in RECIPES if p.parent.name in ("fedkf", "kdia", "fedgems", "dafkd", "fedd2s")]
FEW_STEPS = {
    "fedcog": ["method.generation_from_round=1", "method.steps=2"],
    "datafree": ["method.teacher_rounds=0", "method.steps=2"],
    "kdia": ["method.generator.epochs=1", "method.generator.batches=2"],
    "feddf": ["method.steps=2"],
    "fedrevive": ["local.steps=null"],
    "fadas": ["schedule.buffer=1"],
    "fedftg": ["method.iterations=1", "method.batch_size=4"],
    "fedktl": ["method.generator.epochs=1"],
    "dense": ["method.epochs=1", "method.generator_steps=1", "method.images=4"],
    "coboosting": ["method.epochs=2", "method.generator_steps=1", "method.images=4"],
    "dafkd": ["method.distill_batches=2"],
    "fedl2g": ["method.warmup=0"],
}
CLASSES = {"emnist_letters": 26, "cifar100": 100, "femnist": 62}


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_recipe_runs_one_shortened_round(path):
    raw = yaml.safe_load(path.read_text())
    narrow = ["method.generator.width=4"] if "width" in raw["method"].get("generator", {}) else []
    narrow += ["method.server.blocks=[1, 1, 1]"] if "blocks" in raw["method"].get("server", {}) else []
    result = run_in_process(path, *shortened(raw), *narrow)
    assert result.summary["rounds"] == 1
    assert result.summary["models"]


@pytest.mark.slow
@pytest.mark.parametrize("path", PUBLISHED, ids=name)
def test_published_recipe_runs_a_round_with_its_models_and_generators_at_full_size(path):
    """With its own batch size, on a batch or two: so it starts on the day on which somebody has a GPU."""
    raw = yaml.safe_load(path.read_text())
    batches = [] if "local" not in raw else [f"local.batch_size={raw['local']['batch_size']}"]
    result = run_in_process(path, *shortened(raw), *batches)
    assert result.summary["rounds"] == 1
    for model in result.summary["models"].values():
        values = [value for value in model["last"].values() if value is not None]
        assert values
        assert all(0 <= value <= 1 for value in values)


def shortened(raw):
    """A round of one client, with few images of the data set's shape and few steps where there are many."""
    data = raw["data"]["name"]
    lines = ["rounds=1", "local.epochs=1", "local.batch_size=8"]
    if data in SHAPES:
        classes = CLASSES.get(data, 10)
        made = (
            f"{{name: synthetic, samples: {max(40, 2 * classes)}, classes: {classes}, shape: {SHAPES[data]}}}"
        )
        lines += [f"data={made}", "sampling={count: 1}", "partition.test=local"]
        lines += ["partition.min_size=1"] if "min_size" in raw["partition"] else []
        clients = 8 if "client_models" in raw else 5 if "classes_per_client" in raw["partition"] else 4
        lines += [] if raw["partition"]["clients"] == 1 else [f"partition.clients={clients}"]
    if "head_epochs" in raw["method"]:
        lines.append("method.head_epochs=0")
    if "server_epochs" in raw["method"]:
        lines.append("method.server_epochs=1")
    return lines + FEW_STEPS.get(raw["method"]["name"], [])


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "cifar10_heterogeneous", "cifar100_heterogeneous"])
def test_published_settings_of_fedgems_are_the_papers(data):
    """Section 4.1, Tables 10, 11, 13: K 16, all; Adam .001, 1e-4; B 256; 1 + 1 epochs; eps .75; T 200."""
    recipe = load_recipe(ROOT / f"configs/fedgems/{data}.yaml")
    assert (recipe.partition.clients, recipe.sampling.fraction, recipe.rounds) == (16, 1.0, 200)
    assert (recipe.local.epochs, recipe.local.batch_size) == (1, 256)
    adam, options = recipe.local.optimizer, recipe.method.options
    assert (adam.name, adam.lr, adam.weight_decay) == ("adam", 1e-3, 1e-4)
    assert options["server_optimizer"] == {"name": "adam", "lr": 1e-3, "weight_decay": 1e-4}
    assert (options["epsilon"], options["server_batch_size"]) == (0.75, 256)
    assert options["server"] == {"name": "bottleneck_resnet", "blocks": [6, 6, 6]}
    assert recipe.model.options == {"blocks": [1, 1, 1]}
    assert (recipe.partition.public.fraction, recipe.partition.test) == (0.5, "official")
    if data.endswith("heterogeneous"):
        rows = [model.options["blocks"] for model in recipe.client_models.models]
        printed = [[1, 1, 1], [1, 1, 2], [1, 2, 1], [2, 1, 1], [1, 2, 2], [2, 1, 2], [2, 2, 1], [1, 1, 2]]
        assert rows == printed
        assert (recipe.partition.name, recipe.partition.options) == ("dirichlet", {"alpha": 0.5})
    else:
        assert (recipe.partition.name, recipe.client_models) == ("iid", None)


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_recipe_names_its_table(path):
    first = path.read_text().splitlines()[0]
    assert first.startswith("#")
    named = "Table" in first or re.search(r"\((arXiv|NeurIPS) .*\bno table\b", first)
    assert named or path.name.startswith("quickstart")


def test_every_method_that_is_not_one_of_the_five_papers_has_a_recipe_among_the_baselines():
    ours = {"fedkf", "datafree", "kdia", "fedgem", "fedgems", "dafkd", "fedd2s"}
    assert set(METHODS) - ours == {path.stem for path in BASELINES} - {"centralized_all"}


@pytest.mark.parametrize("path", BASELINES, ids=name)
def test_recipe_of_a_comparison_method_says_how_our_papers_run_it_and_that_is_valid(path):
    """Comment lines as `configs/kdia/cifar10.yaml method={name: moon, mu: 5.0}`, or itself such a run."""
    asked = re.findall(r"(configs/\S+\.yaml) (method=\{[^}]*\}+)", path.read_text())
    itself = re.search(
        r"Tables? \d.* of (Cheng|Atapour) et al\. 20|(Cheng|Atapour) et al\. 20\d\d, Table", path.read_text()
    )
    assert asked or itself
    for base, method in asked:
        recipe = load_recipe(ROOT / base, [method])
        assert recipe.method.name == path.stem
        make_method(METHODS[path.stem], recipe.method)


def both_versions(path):
    """A study as the file stands, and its quick version."""
    studies = select_studies([str(path)])
    return studies + select_studies([str(path)], quick=True) if read_study(path).quick else studies


@pytest.mark.parametrize("path", STUDIES, ids=name)
def test_recipes_of_a_study_are_valid(path):
    """Of the first seed: the others change nothing else."""
    for study in both_versions(path):
        first = study.model_copy(update={"seeds": study.seeds[:1]})
        for recipe in check_study(first)[1]:
            # One round, and few clients, whose models the server holds side by side.
            one_exchange = path.stem == "one_shot"
            assert recipe.rounds >= 10 or one_exchange or recipe.method.name in ("standalone", "centralized")
            assert recipe.partition.clients >= 8 or one_exchange or recipe.method.name == "centralized"


@pytest.mark.parametrize("path", STUDIES, ids=name)
def test_study_tells_the_share_of_images_and_no_count_that_holds_for_one_data_folder(path):
    for study in both_versions(path):
        texts = (study.title, *(named.differs for named in study.published))
        assert not [text for text in texts if re.search(r"\d,\d{3} images", text)]
        for share in re.findall(r"data\.fraction=([\d.]+)", " ".join(plan_runs(study)[0].overrides)):
            assert f"{100 * float(share):g} %" in study.title


def test_published_settings_of_fedkf_are_the_papers():
    """Section V-A: K 20, C 0.2, T 100, E 10, B 64; SGD 0.01 for LeNet-5 and 0.1 for ResNet-8."""
    for data, model, lr in (
        ("emnist", "lenet5", 0.01),
        ("cifar10", "resnet8", 0.1),
        ("cifar100", "resnet8", 0.1),
    ):
        recipe = load_recipe(ROOT / f"configs/fedkf/{data}.yaml")
        assert (recipe.partition.clients, recipe.sampling.fraction, recipe.rounds) == (20, 0.2, 100)
        assert (recipe.local.epochs, recipe.local.batch_size, recipe.model.name) == (10, 64, model)
        assert (recipe.local.optimizer.lr, recipe.local.optimizer.momentum) == (lr, 0.0)
        assert recipe.method.options["generator"]["width"] == 128


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "cinic10"])
def test_published_settings_of_kdia_are_the_papers(data):
    """Section 6.1: N 100, C 0.1, T 200, E 10, B 64; SGD .01, .9, 1e-5; generator 10 x 200 x 64."""
    recipe = load_recipe(ROOT / f"configs/kdia/{data}.yaml")
    assert (recipe.partition.clients, recipe.sampling.fraction, recipe.rounds) == (100, 0.1, 200)
    assert (recipe.local.epochs, recipe.local.batch_size, recipe.model.name) == (10, 64, "simple_cnn")
    sgd = recipe.local.optimizer
    assert (sgd.name, sgd.lr, sgd.momentum, sgd.weight_decay) == ("sgd", 0.01, 0.9, 1e-5)
    options = recipe.method.options
    assert (options["lambda_kd"], options["lambda_gen"], options["tau"]) == (0.5, 0.01, 2.0)
    generator = options["generator"]
    assert [generator[key] for key in ("epochs", "batches", "batch_size")] == [10, 200, 64]
    assert (generator["lr"], generator["weight_decay"]) == (1e-3, 1e-5)


@pytest.mark.parametrize(
    ("data", "epochs"), [("mnist", 20), ("fashion_mnist", 20), ("svhn", 20), ("emnist", 40)]
)
def test_published_settings_of_dafkd_are_the_papers(data, epochs):
    """Section 4.1: K 20, r .4, T 60, E 20 (EMNIST 40), B 32, wd 1e-3, lr .001 and .01 in distillation."""
    recipe = load_recipe(ROOT / f"configs/dafkd/{data}.yaml")
    assert (recipe.partition.clients, recipe.sampling.fraction, recipe.rounds) == (20, 0.4, 60)
    assert (recipe.local.epochs, recipe.local.batch_size) == (epochs, 32)
    adam = recipe.local.optimizer
    assert (adam.name, adam.lr, adam.weight_decay) == ("adam", 1e-3, 1e-3)
    options = recipe.method.options
    assert (options["distill_lr"], options["generator"]["lr"], options["generator"]["weight_decay"]) == (
        0.01,
        1e-3,
        1e-3,
    )


@pytest.mark.parametrize(
    ("data", "model"), [("cifar10", "m1"), ("cinic10", "m1"), ("cifar100", "m2"), ("femnist", "m2")]
)
def test_published_settings_of_fedd2s_are_the_papers(data, model):
    """Section IV-A: N 50, rho .2, 100 rounds, E 4, B 128, Adam .01; alpha .1 with Z0 3; F1 to F3 dropped."""
    recipe = load_recipe(ROOT / f"configs/fedd2s/{data}.yaml")
    assert (recipe.partition.clients, recipe.sampling.fraction, recipe.rounds) == (50, 0.2, 100)
    assert (recipe.partition.name, recipe.partition.options, recipe.partition.test) == (
        "dirichlet_client",
        {"alpha": 0.1},
        "local",
    )
    assert (recipe.local.epochs, recipe.local.batch_size, recipe.model.name) == (4, 128, model)
    assert (recipe.local.optimizer.name, recipe.local.optimizer.lr) == ("adam", 0.01)
    assert recipe.method.options["dropping"] == ["F1", "F2", "F3"]
    assert (recipe.method.options["z0"], recipe.method.options["passes"]) == (3, 2)


def alike(*names):
    """Two recipes, after a look that they agree in all but method and local training."""
    ours, theirs = (load_recipe(ROOT / f"configs/{name}.yaml") for name in names)
    for key in ("model", "data", "partition", "rounds", "sampling"):
        assert getattr(ours, key) == getattr(theirs, key)
    return ours, theirs


@pytest.mark.parametrize("name", ["fedper", "fedper_plus", "fedrep", "fedrep_plus", "pfedsd"])
def test_baselines_of_fedd2s_have_its_settings(name):
    ours, theirs = alike(f"baselines/{name}", "fedd2s/cifar10")
    assert ours.local == theirs.local


def test_fedgkt_has_the_settings_of_fedgems():
    """Table 13: Adam .001, 1e-4, B 256, 1 client and 20 server epochs, 200 rounds; T 3, alpha 1 its own."""
    ours, theirs = alike("baselines/fedgkt", "fedgems/cifar10")
    assert ours.local == theirs.local
    options = ours.method.options
    assert (options["server_epochs"], options["temperature"], options["alpha"]) == (20, 3.0, 1.0)
    assert options["server"] == {"name": "bottleneck_resnet", "blocks": [6, 6, 6], "stem": False}


def test_fedict_has_the_settings_of_fedd2s_with_half_the_epochs_on_each_side():
    ours, theirs = alike("baselines/fedict", "fedd2s/cifar10")
    assert ours.local == theirs.local.model_copy(update={"epochs": 2})
    assert theirs.local.epochs == ours.local.epochs + ours.method.options["server_epochs"]
