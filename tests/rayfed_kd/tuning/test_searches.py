"""Searches without Ray: the metric, the folder, what is refused, what is written, what Optuna proposes."""

import json
import math
import shutil
import sys
from dataclasses import replace
from functools import partial

import pyarrow.parquet as pq
import pytest
import yaml
from command_line import loaded_after
from small_recipes import THREE_CLIENTS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rayfed_kd
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.experiment.evaluated_metrics import evaluated_metrics
from rayfed_kd.experiment.judging import SearchMetric, choose_metric
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.tables import TableWriter
from rayfed_kd.tuning.search_folder import SearchFolder, SearchSettings, TrialRecord
from rayfed_kd.tuning.search_result import SearchResult, TrialResult, result_of_search, write_search_result
from rayfed_kd.tuning.search_setup import prepare_search
from rayfed_kd.tuning.space import parse_space, read_space
from rayfed_kd.tuning.trial import TrialRun
from rayfed_kd.tuning.tune import accept_coefficients

RECIPE = {**THREE_CLIENTS, "method": {"name": "fedavg", "track_oca": True}}
KEYS = {
    "local.optimizer.lr": {"loguniform": [0.001, 1.0]},
    "local.epochs": {"randint": [1, 3]},
    "method.weighting": {"choice": ["samples", "uniform"]},
}
SYNTHETIC = {"name": "synthetic", "samples": 60, "test_samples": 30, "shape": [1, 8, 8], "classes": 3}


def space_file(folder, keys=KEYS, **more):
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({"space": keys, **more}, sort_keys=False))
    return path


def ready(folder, *overrides, keys=KEYS, search="random", samples=None, metric=None, **more):
    prepared = prepare(RECIPE, overrides)
    space, accept = read_space(space_file(folder, keys, **more)), partial(accept_coefficients, prepared)
    asked = {"samples": samples, "search": search, "metric": metric, "folder": folder / "search"}
    return prepare_search(prepared.setting, space, accept, **asked)


NAMED = ["evaluation.metrics=[negative_log_likelihood, {name: macro_f1, label: f1}]"]
OWN = ["ua", "amp", "wlp", "server_accuracy"]  # the last of all clients on the official test set
OFFICIAL = [f"data={json.dumps(SYNTHETIC)}", "partition.test=official"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"global": ["amp", "ua", "wlp"], "oca": ["amp", "ua", "wlp"]}),
        (["method={name: standalone}"], {"personal": ["ua", "amp", "wlp"]}),
        ([*OFFICIAL, "method={name: fedprox}"], {"global": ["server_accuracy"]}),
        (["method={name: ccvr}"], {name: ["amp", "ua", "wlp"] for name in ("global", "global_ccvr")}),
        (NAMED, {"global": ["amp", "ua", "wlp", "local_f1"], "oca": ["amp", "ua", "wlp", "local_f1"]}),
        ([*NAMED, *OFFICIAL, "method={name: standalone}"], {"personal": [*OWN, "official_f1"]}),
        ([*OFFICIAL, "method={name: fedgh}"], {"global_head": OWN, "personal": OWN}),
        ([OFFICIAL[0], "method={name: fedgh}"], {"global_head": OWN[:3], "personal": OWN[:3]}),
    ],
)
def test_evaluated_models_have_metrics_to_maximise_with_their_headline_first(overrides, expected):
    assert evaluated_metrics(prepare(RECIPE, overrides).setting) == expected


EVALUATED = {"student": ["server_accuracy", "amp"], "teacher": ["server_accuracy", "amp"], "personal": ["ua"]}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, SearchMetric("ua", "personal")),
        ("ua", SearchMetric("ua", "personal")),
        ("amp/teacher", SearchMetric("amp", "teacher")),
        ("/student", SearchMetric("server_accuracy", "student")),
    ],
)
def test_metric_is_the_headline_of_the_last_model_unless_said(asked, expected):
    assert choose_metric(asked, EVALUATED) == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("amp/techer", "this recipe evaluates student, teacher, personal. Did you mean teacher?"),
        ("amp", "metric 'amp': personal has ua/personal"),
        ("apm/teacher", "teacher has server_accuracy/teacher, amp/teacher. Did you mean amp?"),
        ("fm/teacher", "teacher has server_accuracy/teacher, amp/teacher"),
        ("local_ece", "ua/personal. Large values are looked for: metrics whose smaller ones are better"),
    ],
)
def test_metric_that_is_not_there_is_refused_with_those_that_are(asked, message):
    with pytest.raises(RecipeError) as caught:
        choose_metric(asked, EVALUATED)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("values", "ended", "reported"),
    [([0.25, math.nan], ("finished", 2), [(1, 0.25)] * 2), ([math.nan] * 2, ("failed", 0), [])],
)
def test_trial_reports_a_recipes_metric_where_it_is_finite(tmp_path, monkeypatch, values, ended, reported):
    """The last finite value is reported at the end, also if it was reported before; all rounds count."""
    search, told = ready(tmp_path, "rounds=2", *NAMED, metric="local_f1/oca"), []
    folder = search.folder
    folder.write_record(TrialRecord(0, {}))
    (folder.trial(0) / "config.yaml").write_text("")
    (folder.trial(0) / "summary.json").write_text('{"status": "finished", "rounds": 2}')
    writer = TableWriter(folder.trial(0) / "tables")
    for index, value in enumerate(values, start=1):
        score = {"metric": "f1", "test": "local", "samples": 9, "value": value, "better": "larger"}
        one = {"round": index, "model": "oca"}
        writer.write(index, {"metrics": [one], "scores": [one | score]})
    monkeypatch.setattr(TrialRun, "_simulate", lambda *_: None)
    TrialRun(search, (), str(tmp_path), ()).run(0, {}, lambda *point: told.append(point[:2]))
    assert told == reported
    record = folder.record(0)
    assert (record.status, record.round) == ended
    assert record.error == (None if reported else "no evaluation has a finite local_f1/oca")


def test_samples_of_the_command_win_over_the_files_over_ten(tmp_path):
    assert ready(tmp_path).trials == 10
    assert ready(tmp_path, samples=None, **{"metric": "amp/global"}).metric == SearchMetric("amp", "global")
    (tmp_path / "b").mkdir()
    prepared = prepare(RECIPE)
    space = read_space(space_file(tmp_path / "b", samples=4))
    for samples, expected in ((None, 4), (2, 2)):
        search = prepare_search(
            prepared.setting, space, lambda c: prepared.setting, samples=samples, folder=tmp_path
        )
        assert search.trials == expected


def test_metric_that_the_recipe_does_not_have_names_the_space_that_asks_for_it(tmp_path):
    setting, space = prepare(RECIPE).setting, read_space(space_file(tmp_path, metric="amp/student"))
    for asked, named in ((None, "space.yaml: "), ("amp/student", "")):
        with pytest.raises(RecipeError) as caught:
            prepare_search(setting, space, lambda coefficients: setting, metric=asked, folder=tmp_path)
        said = str(caught.value).removeprefix(f"{tmp_path}/")
        assert said == f"{named}metric 'amp/student': this recipe evaluates global, oca."


@pytest.mark.parametrize("samples", [0, -1])
def test_search_without_trials_is_refused(samples, tmp_path):
    with pytest.raises(RecipeError, match=f"--samples {samples}: expected 1 to 100,000 trials"):
        ready(tmp_path, samples=samples)


def test_grid_search_has_every_combination_and_takes_no_samples(tmp_path):
    keys = {key: KEYS[key] for key in ("local.epochs", "method.weighting")}
    found = ready(tmp_path, keys=keys, search="grid")
    assert (found.trials, len(found.listed)) == (6, 6)
    with pytest.raises(RecipeError, match="--samples: grid search runs every combination"):
        ready(tmp_path, keys=keys, search="grid", samples=3)


def test_combination_that_does_not_fit_is_found_before_the_first_trial(tmp_path):
    """Three clients are enough for each key alone, and not for both together."""
    keys = {"partition.clients": {"choice": [2, 3]}, "sampling": {"choice": [{"count": 2}, {"count": 3}]}}
    with pytest.raises(RecipeError, match=r"space.yaml: trial 1, .*: sampling.count = 3: more than .* = 2"):
        ready(tmp_path, keys=keys, search="grid")
    with pytest.raises(RecipeError, match=r"space.yaml: metric 'amp/oca': this recipe evaluates global"):
        ready(tmp_path, keys={"method.track_oca": {"choice": [True, False]}}, metric="amp/oca")


def test_search_gives_each_trial_its_folder(tmp_path):
    with pytest.raises(RecipeError, match="a search gives each trial its folder; expected --folder"):
        rayfed_kd.tune(RECIPE, space_file(tmp_path), ["results.folder=there"])
    with pytest.raises(RecipeError, match="a search gives each trial its folder; expected --folder"):
        rayfed_kd.tune(RECIPE, space_file(tmp_path), ["results={folder: there}"])


def test_missing_optuna_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(RecipeError, match=r"optuna: Optuna cannot be imported .*pip install -e '\.\[tune\]'"):
        ready(tmp_path, search="optuna")


def test_missing_ray_tune_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rayfed_kd.tuning.ray_tune", None)
    with pytest.raises(RecipeError, match=r"tune: Ray Tune cannot be imported .*pip install -e '\.\[tune\]'"):
        rayfed_kd.tune(RECIPE, space_file(tmp_path), folder=tmp_path / "search")
    assert not (tmp_path / "search").exists()


@pytest.fixture
def folder(tmp_path):
    return SearchFolder(tmp_path / "search")


@pytest.fixture
def asked():
    return SearchSettings(load_recipe(RECIPE).model_dump(), KEYS, "amp/oca", "random", "asha", {})


def test_folder_of_another_search_is_refused_and_a_missing_one_not_resumed(asked, folder):
    with pytest.raises(RecipeError, match=r"--resume: .* holds no search"):
        folder.claimed(asked, resume=True).__enter__()
    with folder.claimed(asked, resume=False):
        pass
    with pytest.raises(RecipeError, match="holds a search already: --resume goes on"):
        folder.claimed(asked, resume=False).__enter__()
    changed = load_recipe(RECIPE, ["seed=2", "placement.threads=2"]).model_dump()
    other = replace(asked, recipe=changed, metric="amp/global")
    difference = r"holds another search: metric was amp/oca, is amp/global; recipe\.seed was 1, is 2"
    with pytest.raises(RecipeError, match=rf"{difference}; recipe\.placement\.threads was 1, is 2"):
        folder.claimed(other, resume=True).__enter__()


def test_search_that_was_refused_before_its_first_trial_blocks_no_other(asked, folder):
    with pytest.raises(RecipeError, match="no room"), folder.claimed(asked, resume=False):
        raise RecipeError("no room")
    with pytest.raises(RecipeError, match="no room"), folder.claimed(asked, resume=False):
        folder.trial(0).mkdir(parents=True)
        folder.write_record(TrialRecord(0, {}, "running"))
        raise RecipeError("no room")
    with pytest.raises(RecipeError, match="holds a search already"):
        folder.claimed(asked, resume=False).__enter__()


def test_search_goes_on_with_other_placement_and_checkpoints(asked, folder):
    with folder.claimed(asked, resume=False):
        pass
    changes = ["placement.clients_per_actor=1", "checkpoint.every=1"]
    other = SearchSettings(load_recipe(RECIPE, changes).model_dump(), KEYS, "amp/oca", "random", "asha", {})
    with folder.claimed(other, resume=True):
        pass


def test_failed_trials_are_tried_again_and_others_left(asked, folder):
    records = [
        TrialRecord(0, {"a": 1}, "finished", 2),
        TrialRecord(1, {"a": 2}, "failed", 1, "boom"),
        TrialRecord(2, {"a": 3}),
    ]
    with folder.claimed(asked, resume=False):
        for record in records:
            folder.write_record(record)
    with folder.claimed(asked, resume=True):
        assert folder.records() == [records[0], TrialRecord(1, {"a": 2}, "running", 1), records[2]]


def test_search_goes_on_with_the_same_data_alone(asked, folder, tmp_path):
    hashes = ready(tmp_path).settings.inputs
    with folder.claimed(replace(asked, inputs=hashes), resume=False):
        pass
    other = replace(asked, inputs={**hashes, "data": hashes["data"] | {"train-labels": "another"}})
    with pytest.raises(RecipeError, match=r"holds another search: data.train-labels was .*, is another"):
        folder.claimed(other, resume=True).__enter__()


def test_folder_that_cannot_be_made_is_refused(asked, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match=r"--folder: .* cannot be written"):
        SearchFolder(tmp_path / "file" / "search").claimed(asked, resume=False).__enter__()


def test_folder_that_takes_no_file_is_refused(asked, tmp_path):
    (tmp_path / "search" / "search.yaml").mkdir(parents=True)
    with pytest.raises(RecipeError, match=r"--folder: .*/search cannot be written \(.*search.yaml"):
        SearchFolder(tmp_path / "search").claimed(asked, resume=False).__enter__()


def test_folder_in_use_is_refused(asked, tmp_path):
    first = SearchFolder(tmp_path / "search")
    with first.claimed(asked, resume=False), pytest.raises(RecipeError, match="another process is searching"):
        SearchFolder(tmp_path / "search").claimed(asked, resume=True).__enter__()


def rows():
    """Trial 1 has the largest value; 3 had a larger one, and failed; 2 ties with it, and came later."""

    def row(trial, lr, epochs, values, status="finished", error=None):
        coefficients = {
            "local.optimizer.lr": lr,
            "local.epochs": epochs,
            "method.weighting": ("samples", "uniform")[trial % 2],
        }
        return TrialResult(trial, coefficients, values, len(values), 1.5, status, error)

    return [
        row(0, 0.01, 1, [(1, 0.2), (2, 0.4)]),
        row(1, 0.1, 2, [(1, 0.6), (2, 0.5)]),
        row(2, 0.5, 3, [(1, 0.6)], "stopped"),
        row(3, 1.0, 1, [(1, 0.9)], "failed", "round 2: NaN"),
        row(4, 0.3, 1, [], "failed", "no such thing"),
    ]


@pytest.fixture
def found(tmp_path):
    space, recipe = read_space(space_file(tmp_path)), Recipe.model_validate(RECIPE)
    return SearchResult(
        tmp_path / "out", rows(), space, SearchMetric("amp", "oca"), recipe, "random search, asha"
    )


def test_best_trial_is_the_first_of_equals_that_did_not_fail(found):
    assert (found.best.trial, found.best.best, found.best.best_round, found.best.last) == (1, 0.6, 1, 0.5)


def test_table_has_a_row_a_trial_by_hand(found):
    write_search_result(found)
    table = pq.read_table(found.folder / "trials.parquet")
    names = ["trial", *KEYS, "best", "best_round", "last", "rounds", "seconds", "status", "error"]
    assert table.column_names == names
    assert table["local.epochs"].to_pylist() == [1, 2, 3, 1, 1]
    assert table["method.weighting"].to_pylist() == ["samples", "uniform"] * 2 + ["samples"]
    assert table["best"].to_pylist() == [0.4, 0.6, 0.6, 0.9, None]
    assert table["last"].to_pylist() == [0.4, 0.5, 0.6, 0.9, None]
    assert table["best_round"].to_pylist() == [2, 1, 1, 1, None]
    assert table["status"].to_pylist() == ["finished", "finished", "stopped", "failed", "failed"]
    assert table["error"].to_pylist() == [None, None, None, "round 2: NaN", "no such thing"]
    assert table.schema.metadata[b"metric"] == b"amp/oca"


def test_mixed_and_nested_values_stand_in_the_table_as_json(found, tmp_path):
    """So do whole numbers that float64 does not hold, beside others."""
    keys = {"a": {"choice": ["x", {"b": 1}]}, "c": {"choice": [1, 0.5]}, "d": {"choice": [2**53 + 1, 0.5]}}
    row = TrialResult(0, {"a": {"b": 1}, "c": 1, "d": 2**53 + 1}, [(1, 0.5)], 1, 1.0, "finished")
    other = TrialResult(1, {"a": "x", "c": 0.5, "d": 0.5}, [(1, 0.4)], 1, 1.0, "finished")
    space = read_space(space_file(tmp_path, keys))
    table = SearchResult(tmp_path, [row, other], space, found.metric, found.recipe, "").table()
    assert table["a"].to_pylist() == ['{"b": 1}', '"x"']
    assert table["c"].to_pylist() == [1.0, 0.5]
    assert table["d"].to_pylist() == ["9007199254740993", "0.5"]


def test_a_trial_that_failed_and_is_stopped_at_its_second_try_has_the_end_of_that(tmp_path):
    search = ready(tmp_path, "rounds=3")
    folder = search.folder.trial(0)
    search.folder.write_record(TrialRecord(0, {}, "stopped", 2))
    (folder / "config.yaml").write_text(yaml.safe_dump(search.recipe.model_dump()))
    (folder / "summary.json").write_text('{"status": "failed", "rounds": 1}')
    writer = TableWriter(folder / "tables")
    for index in (1, 2):
        writer.write(
            index,
            {
                "metrics": [{"round": index, "model": "oca"}],
                "rounds": [{"round": index, "bytes_up": 0, "bytes_down": 0}],
            },
        )
    TrialRun(search, (), str(tmp_path), ()).end_stopped(print)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("interrupted", 2)


def test_best_recipe_of_a_space_from_python_names_no_file(found):
    of_python = replace(found, space=replace(found.space, source=None))
    assert "(random search, asha)." in of_python.best_recipe().splitlines()[0]


def test_best_recipe_is_one_that_run_takes_headed_by_value_and_trial(found):
    write_search_result(found)
    first, second, third, *_ = (found.folder / "best.yaml").read_text().splitlines()
    told = "# amp/oca 60.00 % in round 1: the best of 5 trials, trial 1 (random search, asha, "
    assert first.startswith(told)
    assert second == "# The same value in trial 2: the lowest number counts."
    assert third == "# local.optimizer.lr 0.1, local.epochs 2, method.weighting uniform"
    best = load_recipe(found.folder / "best.yaml")
    changes = ["local.optimizer.lr=0.1", "local.epochs=2", "method.weighting=uniform"]
    assert best.model_dump() == load_recipe(RECIPE, changes).model_dump()
    found.recipe._header = "# FedAvg, of a paper"
    assert "of a paper" in found.best_recipe()
    other = [replace(row, coefficients={"method": {"name": "fedprox"}}) for row in found.rows]
    assert "of a paper" not in replace(found, rows=other).best_recipe()


def test_own_metric_has_its_own_unit_and_a_trial_without_a_value_is_the_last_that_did_not_fail(found):
    without, negative = replace(found.rows[4], status="running"), replace(found.rows[0], values=[(1, -0.25)])
    metric = SearchMetric("official_r2", "oca")
    header, rows = replace(found, rows=[without, negative], metric=metric).trial_texts()
    assert [row[0] for row in rows] == ["0", "4"]
    assert (header[5], rows[0][5], metric.told(-0.25)) == ("best", "-0.2500", "-0.2500")


@pytest.mark.pictures
def test_tune_writes_pictures_and_hparams(found, tmp_path, monkeypatch):
    monkeypatch.setattr("rayfed_kd.tuning.tune._search_on_ray", lambda *_, **options: None)
    monkeypatch.setattr("rayfed_kd.tuning.search_result._trial_results", lambda folder, metric: found.rows)
    result = rayfed_kd.tune(RECIPE, space_file(tmp_path), folder=found.folder, samples=5)
    assert {path.name for path in result.files} == {"trials.parquet", "best.yaml", "coefficients.png"}
    assert str(result).endswith(f"\ntrial 4 failed: no such thing\nfolder: {found.folder}")
    assert (found.folder / "figures/coefficients.png").stat().st_size > 5000
    runs = sorted(path.name for path in (found.folder / "tensorboard").iterdir())
    assert runs == ["00000", "00001", "00002", "00003"]  # trial 4 has no value
    events = EventAccumulator(str(found.folder / "tensorboard" / "00001")).Reload()
    assert [event.value for event in events.Scalars("amp/oca")] == pytest.approx([0.6, 0.5])
    assert "_hparams_/session_start_info" in events.summary_metadata
    assert events.Scalars("best/amp/oca")[0].value == pytest.approx(0.6)
    write_search_result(found)  # again, as after --resume: nothing doubles
    events = EventAccumulator(str(found.folder / "tensorboard" / "00001")).Reload()
    assert len(events.Scalars("amp/oca")) == 2


def test_search_whose_trials_all_failed_ends_with_their_errors(tmp_path):
    search = ready(tmp_path)
    search.folder.write_record(TrialRecord(0, search.listed[0], "failed", 0, "boom"))
    with pytest.raises(RunError, match="no trial ended with a value:\ntrial 0 failed: boom"):
        result_of_search(search)


def learned(search, begun=(), trials=16):
    """Proposals, each told a value that is best at lr 0.03 and one epoch; trial 3 failed."""
    from rayfed_kd.tuning.ray_tune import VALUE, Proposals

    for number, coefficients in enumerate(begun):
        search.folder.write_record(TrialRecord(number, coefficients))
    searcher, proposed = Proposals(search, lambda line: None), []
    for number in map(str, range(trials)):
        proposed.append(searcher.suggest(number)["coefficients"])
        value = -abs(proposed[-1]["local.optimizer.lr"] - 0.03) - proposed[-1]["local.epochs"]
        searcher.on_trial_complete(number, {} if number == "3" else {VALUE: value})
    shutil.rmtree(search.folder.path)
    return proposed


def test_optuna_proposes_the_same_again_and_after_a_restart(tmp_path):
    """Also past its ten random trials, where what it was told decides."""
    search = ready(tmp_path, search="optuna")
    whole = learned(search)
    assert learned(search) == whole
    assert learned(search, begun=whole[:12]) == whole
    assert len({trial["local.optimizer.lr"] for trial in whole}) == 16
    for trial in whole:
        assert 0.001 <= trial["local.optimizer.lr"] <= 1
        assert trial["local.epochs"] in (1, 2, 3)
        assert trial["method.weighting"] in ("samples", "uniform")


def test_optuna_begins_again_with_the_very_values_of_the_trials_that_began():
    """Where Python takes them for the same, too."""
    from rayfed_kd.tuning.ray_tune import optuna_search

    space = parse_space({"space": {"a": {"choice": [1, True, 1.0]}}}, "")
    resumed = optuna_search(space, 1, [{"a": True}, {"a": 1.0}])
    assert [resumed.suggest("0"), resumed.suggest("1")] == [{"a": 1}, {"a": 2}]


def test_optuna_learns_what_does_well(tmp_path):
    """One epoch is best by a wide margin: after ten random trials it is proposed more than by chance."""
    later = learned(ready(tmp_path, search="optuna"), trials=40)[10:]
    assert sum(trial["local.epochs"] == 1 for trial in later) > 15


def test_importing_what_a_search_is_made_of_loads_neither_torch_nor_ray():
    code = "import rayfed_kd.tuning.space, rayfed_kd.tuning.search_folder"
    assert loaded_after(code, "torch", "ray", "optuna") == []
