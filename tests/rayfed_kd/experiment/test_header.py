"""What a run tells before its first round."""

import numpy as np
import pytest
from small_recipes import FOUR_CLIENTS, small_recipe

import rayfed_kd
from rayfed_kd.experiment.header import describe_run
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.results.telling import Teller

SYNTHETIC = {"name": "synthetic", "samples": 400, "test_samples": 60, "classes": 4, "shape": [1, 8, 8]}
RECIPE = {
    "method": {"name": "fedavg"},
    "model": {"name": "mlp", "hidden": 5},
    "data": {**SYNTHETIC, "fraction": 0.25},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 8, "min_size": 2},
    "sampling": {"fraction": 0.5},
    "rounds": 7,
    "seed": 3,
}


def test_header_says_what_runs_and_why_so_many_images():
    facts = describe_run(prepare(RECIPE), "ray", "two actors")
    tested = 100 - sum(map(len, prepare(RECIPE).setting.partition.train))
    assert facts == {
        "method": "fedavg (sample-weighted average of locally trained models)",
        "model": f"mlp, {64 * 5 + 5 + 5 * 4 + 4:,} parameters",
        "data": "synthetic, 100 of 400 samples of its training set (data.fraction 0.25) in 4 classes: "
        f"{100 - tested} for training, {tested} for testing",
        "clients": "8, 4 a round; dirichlet (alpha 1.0, min_size 2)",
        "test": f"{tested} samples, parts of the clients' own; 60 samples of the official test set",
        "engine": "ray, 1 thread a process; 7 rounds, seed 3",
        "processes": "two actors",
    }


def test_header_says_how_many_clients_are_asked():
    """Four of eight by `sampling`, unless the schedule asks others, or each client draws for itself."""

    def clients(*changes):
        return describe_run(prepare(RECIPE, ["clock.name=constant", *changes]), "local", "here")["clients"]

    assert clients("sampling={fraction: 0.3, poisson: true}").startswith("8, 2.4 a round on average; ")
    assert clients("schedule={name: quorum, over_selection: 0.5}").startswith("8, 6 a round; ")
    assert clients("schedule={name: fedbuff, buffer: 2, concurrency: 6}").startswith("8, 6 at a time; ")


def test_header_of_whole_data_with_an_official_test_and_public_images():
    changes = ["data.fraction=1", "partition.test=official", "partition.public={count: 40}", "rounds=1"]
    facts = describe_run(prepare(RECIPE, changes), "local", "here")
    expected = "synthetic, 400 samples of its training set in 4 classes: 360 for training, 40 public"
    assert facts["data"] == f"{expected}, which this method does not use"
    assert facts["test"] == "60 samples of the official test set"
    assert facts["engine"] == "local, 1 thread a process; 1 round, seed 3"


@pytest.mark.parametrize(("options", "shown"), [({}, "lenet5"), ({"base": {"name": "mlp"}}, "mlp")])
def test_projected_model_is_called_by_its_base(options, shown):
    data = SYNTHETIC | {"shape": [1, 28, 28]}
    prepared = prepare(RECIPE | {"model": {"name": "projected", **options}, "data": data})
    assert describe_run(prepared, "local", "here")["model"].startswith(f"{shown}, ")


def test_local_training_that_cannot_end_today_is_told_before_it_begins():
    """A client's batches: ceil(n / batch size) an epoch, at 0.1 ms."""
    local = RECIPE | {"local": {"batch_size": 8}}
    most = max(map(len, prepare(local).setting.partition.train))
    long = prepare(local, ["local.epochs=1000000000"])
    batches = -(-most // 8) * 10**9
    (note,) = long.setting.notes
    assert f"local.epochs = 1,000,000,000 are {batches:,} batches a round" in note
    assert f"{round(batches * 1e-4 / 3600):,} hours" in note
    assert "--estimate" in note
    assert note in describe_run(long, "local", "here").values()
    assert prepare(local, ["local.epochs=1000"]).setting.notes == []


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        (
            ["partition.public={count: 40, keep: 30}"],
            "324 for training, 81 for testing, 30 public, which this method does not use, 10 not used",
        ),
        (
            ["partition.public={count: 40, apart: false}"],
            "355 for training, 40 of them public, 90 for testing",
        ),
    ],
)
def test_header_says_what_samples_are_used_for(changes, shares):
    digits = ["data={name: digits, fraction: 0.25}", "partition={name: iid, clients: 3}"]
    facts = describe_run(prepare(RECIPE, [*digits, *changes]), "local", "here")
    assert facts["data"] == f"digits, 445 of 1,797 samples (data.fraction 0.25) in 10 classes: {shares}"
    assert facts["test"].endswith(" samples, parts of the clients' own")


def test_header_names_every_architecture_of_the_clients():
    models = "client_models={models: [{name: mlp, hidden: 5}, {name: mlp, hidden: 3}]}"
    changes = ["method.name=fedmd", "partition.public={count: 20}", models]
    facts = describe_run(prepare(RECIPE, changes), "local", "here")
    assert facts["model"] == "mlp, 349 parameters; mlp, 211 parameters"


TOP = "{name: top_k, share: 0.25, feedback: true}"


@pytest.mark.parametrize(
    ("codec", "line"),
    [
        (f"{{up: {{weights: [difference, {TOP}]}}}}", "up weights: difference, top_k (share 0.25 feedback)"),
        (
            f"{{up: {{weights: [{TOP}, zstd]}}}}",
            "up weights: top_k (share 0.25 feedback), zstd; warning: top_k gets the weights themselves here, "
            "not what a client changed, and spoils them; `up: {weights: [difference, top_k]}` sends changes",
        ),
        (
            "{down: {weights: sign}, up: {weights: {name: cast, to: fp16}}}",
            "up weights: cast (to fp16); down weights: sign; warning: sign gets the weights themselves here, "
            "and spoils them; there is no difference downwards",
        ),
    ],
)
def test_header_says_how_parts_travel_and_warns_of_spoilt_weights(codec, line):
    assert describe_run(prepare(RECIPE, [f"codec={codec}"]), "local", "here")["codec"] == line


def test_run_tells_phases_then_what_runs_then_rounds(tmp_path, own_cache):
    told = []
    teller = Teller(told.append, told.append, lambda facts: told.append(list(facts)))
    recipe = {
        **small_recipe({**FOUR_CLIENTS, "rounds": 1, "sampling": {"count": 2}}, "fedavg"),
        "results": {"folder": str(tmp_path / "run")},
    }
    events = []
    rayfed_kd.run(recipe, local=True, tell=teller, on_event=events.append)
    names = ["method", "model", "data", "clients", "test", "engine", "processes"]
    assert told == ["reading data, model and method", f"decoding {recipe['data']['name']}", names, ""]
    assert events


@pytest.mark.parametrize(("classes", "told"), [(80, None), (81, "4.9"), (200, "2.0")])
def test_header_warns_of_classes_with_few_samples(classes, told):
    """Of 400 samples 80 classes have five each, 81 fewer, whatever the share of the data that is used."""
    data = {**SYNTHETIC, "classes": classes, "fraction": 0.5}
    text = describe_run(prepare({**RECIPE, "data": data}), "local", "here")["data"]
    assert (f"warning: {told} samples of a class on average" in text) is (told is not None)
    assert ("warning" in text) is (told is not None)


def test_notes_of_the_data_are_told_once_and_logged(tmp_path, own_cache):
    np.savez(tmp_path / "a.npz", x_train=np.zeros((60, 4, 4), np.uint8), y_train=np.arange(60) % 3 + 1)
    note = "the labels are 1, 2 and 3; models number them 0 to 2, in this order"
    recipe = {
        **RECIPE,
        "data": {"name": "npz", "folder": str(tmp_path), "file": "a.npz"},
        "partition": {"name": "iid", "clients": 4},
        "rounds": 1,
    }

    def told_by(place, tell):
        told = []
        recipe["results"] = {"folder": str(tmp_path / place)}
        rayfed_kd.run(recipe, local=True, tell=tell(told))
        assert (tmp_path / place / "log.txt").read_text().count(f"note: {note}\n") == 1
        return told

    # The second run finds the data in the cache.
    (facts,) = told_by("console", lambda told: Teller(lambda line: None, begin=told.append))
    assert [text for name, text in facts.items() if name.startswith("note")] == [note]
    assert told_by("lines", lambda told: told.append) == [f"note: {note}"]
