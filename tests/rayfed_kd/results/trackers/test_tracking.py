"""Who is told of a run, through a tracker of a user's own: each round once, and no result depends on it."""

import json
import sys

import pytest
from paths import ROOT
from recording_tracker import RECIPE, cut_off, rounds_told, told
from small_recipes import assert_same_run

import rayfed_kd
from rayfed_kd.errors import RecipeError

OWN = "recording_tracker:Recording"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return rayfed_kd.run(RECIPE, results={"folder": str(tmp_path_factory.mktemp("a") / "run")}, local=True)


def run(folder, tracker, **options):
    changes = {"results": {"folder": str(folder / "run"), "trackers": [tracker]}}
    return rayfed_kd.run(RECIPE, changes, **{"local": True, **options})


@pytest.mark.parametrize("engine", [{"local": True}, pytest.param({"local": False}, marks=pytest.mark.slow)])
def test_a_tracker_is_told_of_start_rounds_and_end(engine, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "tests/helpers")  # where actors find it
    result = run(tmp_path, OWN, **engine)
    assert_same_run(result, whole)
    ((run_id, *names),), rounds = told(tmp_path, "start"), told(tmp_path, "round")
    assert (len(bytes.fromhex(run_id)), names) == (8, ["run", None])
    assert [one[0] for one in rounds] == [0, 1, 2, 3, 4, 5]
    assert rounds[0][1:] == [{}, ["partition"], []]
    for row, (_, scalars, _, histograms) in zip(result.table("metrics").to_pylist(), rounds[1:], strict=True):
        assert scalars["amp/global"] == row["amp"]
        assert histograms == ["client_accuracy/global"]
    assert [one[1]["bytes/up"] for one in rounds[1:]] == result.table("rounds")["bytes_up"].to_pylist()
    ((*ended, files),) = told(tmp_path, "end")
    assert ended == [5, "finished", False]  # what has its summary.json is over, and not told again
    assert {"config.yaml", "curves.png", "rows.parquet"} <= set(files)
    assert not (result.folder / "tensorboard").exists()  # it is in no list, so nobody wrote it
    assert (whole.folder / "tensorboard").exists()


def test_a_resumed_run_is_told_each_round_once_and_goes_on_under_its_id(whole, tmp_path):
    cut_off(tmp_path / "run", [OWN])
    assert rounds_told(tmp_path) == [0, 1, 2, 3, 4]
    result = rayfed_kd.resume(tmp_path / "run", local=True)
    assert_same_run(result, whole)
    assert rounds_told(tmp_path) == [0, 1, 2, 3, 4, 5]
    first, second = told(tmp_path, "start")
    assert first == second
    assert [one[1] for one in told(tmp_path, "end")] == ["interrupted", "finished"]


def test_a_tracker_that_comes_later_is_told_of_all_rounds_from_the_tables(tmp_path):
    cut_off(tmp_path / "run", ["tensorboard"])
    result = rayfed_kd.resume(tmp_path / "run", {"results.trackers": [OWN]}, local=True)
    assert rounds_told(tmp_path) == [0, 1, 2, 3, 4, 5]
    seconds = [one[1]["time/wall_s"] for one in told(tmp_path, "round")[1:]]
    assert seconds == result.table("rounds")["wall_s"].to_pylist()


def test_a_tracker_that_fails_ends_no_run_and_is_told_the_rest_at_the_end(whole, tmp_path):
    """No picture is told of: the one that is there is unfinished, as a kill leaves it."""
    lines, unfinished = [], tmp_path / "run/figures/.part-0-samples-000003.png"

    def draw(event):
        unfinished.parent.mkdir(exist_ok=True)
        unfinished.touch()

    result = run(tmp_path, {"name": OWN, "fails": 2}, tell=lines.append, on_event=draw)
    assert_same_run(result, whole)
    images = [(number, images) for number, _, images, _ in told(tmp_path, "round")]
    assert images == [(0, ["partition"]), *((number, []) for number in range(1, 6))]
    (line,) = [line for line in lines if line.startswith("results.trackers")]
    assert "Recording failed after round 1, and is told the rest at the end: ValueError: it is full" in line
    assert line in (result.folder / "log.txt").read_text()
    assert json.loads((result.folder / "environment.json").read_text())["own_code"] == {}


@pytest.mark.parametrize(("tracker", "hint"), [("wanb", "Did you mean wandb"), ("wandb", r"'.\[wandb\]'")])
def test_what_cannot_be_told_is_refused_before_the_run(tracker, hint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RecipeError, match=hint):
        run(tmp_path, tracker)
    assert not (tmp_path / "run").exists()


def test_a_comparison_tells_a_group_and_its_listener_every_run(tmp_path):
    events = []

    def listen(event):
        events.append((event["run"], event["round"]))
        if events[-1] == ("a, seed 2", 2):
            raise StopIteration

    recipe = {**RECIPE, "rounds": 3, "results": {"trackers": [OWN]}}
    (found,) = rayfed_kd.compare(
        {"a": recipe}, seeds=2, folder=tmp_path / "study", local=True, on_event=listen
    )
    assert events == [(f"a, seed {seed}", index) for seed in (1, 2) for index in (1, 2, 3)][:-1]
    (first, *names), (second, *others) = told(tmp_path / "study", "start")
    assert (names, others, first != second) == (["a-seed1", "study"], ["a-seed2", "study"], True)
    summary = json.loads((found.folder / "a-seed2/summary.json").read_text())
    assert summary["stopped"] == "on_event raised StopIteration in round 2"
