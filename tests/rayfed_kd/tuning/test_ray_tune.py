"""Searches on Ray Tune: the same trials with the same results, whatever is killed, stopped or fails."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pyarrow.parquet as pq
import pytest
import recording_tracker
import yaml
from click.testing import CliRunner
from paths import ROOT
from small_recipes import THREE_CLIENTS
from waiting import wait_until

import rayfed_kd
from rayfed_kd.cli.main import commands
from rayfed_kd.cluster.ray_backend.placement import bundles, plan_hosts
from rayfed_kd.cluster.ray_backend.resources import Node
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.tables import read_table
from rayfed_kd.tuning.ray_tune import TUNE_FOLDER, Listener, trial_placement
from rayfed_kd.tuning.search_folder import SearchFolder

RECIPE = {
    **THREE_CLIENTS,
    "data": {"name": "digits", "fraction": 0.3},
    "local": {"epochs": 1, "batch_size": 16},
    "rounds": 9,
    "evaluation": {"samples": False},
    "checkpoint": {"every": 2},
    "placement": {"clients_per_actor": 3},
}
LR = "local.optimizer.lr"


def write(folder, keys, **changes):
    """A recipe and a space."""
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **changes}))
    (folder / "space.yaml").write_text(yaml.safe_dump({"space": keys}, sort_keys=False))
    return folder / "recipe.yaml", folder / "space.yaml"


def search(folder, keys, name="search", told=None, **options):
    """On this process's own Ray."""
    recipe, space = write(folder, keys)
    tell = (lambda line: None) if told is None else told.append
    return rayfed_kd.tune(recipe, space, folder=folder / name, tell=tell, **options)


def same(found, expected):
    """Tables of trials, but for the seconds; every trial's evaluations to the last bit."""
    assert found.table().drop(["seconds"]).equals(expected.table().drop(["seconds"]))
    for row in expected.rows:
        ours, theirs = (SearchFolder(each.folder).trial(row.trial) / "tables" for each in (found, expected))
        metrics = [read_table(tables, "metrics").to_pylist() for tables in (ours, theirs)]
        counted = [[one for one in rows if one["round"] <= row.rounds] for rows in metrics]
        assert counted[0] == counted[1]


@pytest.fixture(scope="module")
def failing(tmp_path_factory, session_ray):
    """Grid search over three learning rates, of which 1e30 makes NaN in the first round."""
    session_ray.start()
    folder, told, events = tmp_path_factory.mktemp("failing"), [], []
    (folder / "tune").mkdir()  # of the user
    keys = {LR: {"choice": [0.05, 1e30, 0.5]}}
    also = {"told": told, "on_event": lambda event: events.append((event["run"], event["round"]))}
    return folder, search(folder, keys, search="grid", scheduler="fifo", concurrent=2, **also), told + events


@pytest.mark.slow
def test_failing_trial_is_shown_with_its_error_and_ends_nothing(failing):
    folder, found, told = failing
    assert (folder / "tune").is_dir()
    assert not (folder / TUNE_FOLDER).exists()
    assert [row.status for row in found.rows] == ["finished", "failed", "finished"]
    (line,) = found.failures()
    assert line.startswith("trial 1 failed: round 1, client 0, client_update: ")
    assert "NaN" in line
    assert any(said.startswith("trial 1: failed after round 0: round 1, client 0") for said in told)
    assert sum("starts" in said for said in told) == 3


@pytest.mark.slow
def test_every_evaluated_round_of_a_trial_counts(failing):
    _, found, told = failing
    for row in (found.rows[0], found.rows[2]):
        assert [index for index, _ in row.values] == list(range(1, 10))
        assert [said[1] for said in told if said[0] == f"trial {row.trial}"] == list(range(1, 10))
        assert f"trial {row.trial}: finished after round 9, {100 * row.last:.2f} %" in told
        assert row.rounds == 9
        assert row.seconds > 0


@pytest.mark.slow
def test_trial_is_the_run_of_its_recipe_and_best_yaml_the_best_of_them(failing, tmp_path):
    """Bit for bit, in this process without Ray."""
    _, found, _ = failing
    best = rayfed_kd.run(found.folder / "best.yaml", [f"results.folder={tmp_path / 'best'}"], local=True)
    trial = SearchFolder(found.folder).trial(found.best.trial)
    assert best.tables["metrics"].equals(read_table(trial / "tables", "metrics"))
    assert max(row["amp"] for row in best.tables["metrics"].to_pylist()) == found.best.best
    command = json.loads((trial / "environment.json").read_text())["command"]
    assert command == sys.argv


@pytest.mark.slow
def test_search_that_is_there_is_not_begun_again(failing):
    folder, _, _ = failing
    with pytest.raises(RecipeError, match=r"holds a search already: --resume goes on"):
        search(folder, {LR: {"choice": [0.05, 1e30, 0.5]}}, search="grid", scheduler="fifo")


@pytest.mark.slow
def test_resumed_search_reports_again_and_tries_only_failed_trials(failing, capfd):
    folder, found, _ = failing
    told, keys = [], {LR: {"choice": [0.05, 1e30, 0.5]}}
    again = search(folder, keys, told=told, search="grid", scheduler="fifo", concurrent=2, resume=True)
    same(again, found)
    assert [said.split("  ")[0] for said in told if "goes on" in said] == ["trial 1: goes on"]
    assert any(said.startswith("trial 1: failed") for said in told)
    assert told[0].startswith("3 trials, grid search, fifo, for amp/global: ")
    assert "completed" not in capfd.readouterr().out, "what Ray Tune prints of a trial that fails at once"


@pytest.mark.slow
def test_asha_stops_nothing_where_the_last_round_alone_is_evaluated(session_ray, tmp_path):
    session_ray.start()
    recipe, space = write(tmp_path, {LR: {"choice": [0.05, 0.1]}}, rounds=2, evaluation={"every": 4})
    found = rayfed_kd.tune(recipe, space, folder=tmp_path / "search", search="grid", scheduler="asha")
    assert [(row.status, row.rounds) for row in found.rows] == [("finished", 2)] * 2


def test_listener_hears_a_round_once_though_ray_tune_gives_the_last_result_again():
    heard, last = [], {"event": {"round": 2}}
    assert not any(map(Listener(heard.append), "aab", [last, {**last, "done": True}, {"done": True}]))
    assert heard == [{"round": 2}]


def test_trials_placement_group_holds_server_and_hosts():
    """A server of half a core and three hosts of a core each; a host that asks for nothing has no bundle."""
    placement = {"clients_per_actor": 1, "server": {"num_cpus": 0.5}, "client": {"num_cpus": 1}}
    recipe = Recipe.model_validate({**RECIPE, "placement": placement})
    plan = plan_hosts(recipe, 3, [Node(4, 0, 2**34)])
    assert bundles(plan).requests == [{"CPU": 0.5}, {"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 1.0}]
    assert bundles(plan).places == [0, 1, 2, 3]
    group = trial_placement(plan)
    assert group.head_bundle_is_empty  # the function that waits
    assert group.required_resources == {"CPU": 3.5}
    recipe = Recipe.model_validate({**RECIPE, "placement": {**placement, "client": {"num_cpus": 0}}})
    found = bundles(plan_hosts(recipe, 3, [Node(4, 0, 2**34)]))
    assert (found.requests, found.places) == ([{"CPU": 0.5}], [0, -1, -1, -1])


def test_command_refuses_a_bad_space_before_anything_starts(tmp_path):
    recipe, space = write(tmp_path, {"local.optimizer.lrr": {"uniform": [0.1, 1]}})
    words = ["tune", str(recipe), "--space", str(space), "--folder", str(tmp_path / "search")]
    shown = CliRunner().invoke(commands, words)
    assert isinstance(shown.exception, RecipeError)
    assert "Did you mean local.optimizer.lr?" in str(shown.exception)
    assert not (tmp_path / "search").exists()


@pytest.mark.slow
def test_asha_stops_the_trial_that_is_behind_at_its_first_rung(tmp_path, monkeypatch):
    """Nine rounds: rungs at 1 and 3. A rate of 1e-6 learns nothing: below the first trial's value in round 1.

    The last, which does the same as the first, is not below it. One at a time the search repeats exactly.
    """
    keys = {LR: {"choice": [0.5, 1e-06, 0.5000000000000001]}}
    monkeypatch.chdir(ROOT / "tests/helpers")  # where trials find the tracker
    tracked = {"results.trackers": ["recording_tracker:Recording"]}
    found = search(tmp_path, keys, search="grid", concurrent=1, overrides=tracked)
    assert [(row.status, row.rounds) for row in found.rows][:2] == [("finished", 9), ("stopped", 1)]
    ends = recording_tracker.told(tmp_path / "search/trials", "end")
    assert [status for _, status, *_ in ends] == ["finished", "finished", "interrupted"]
    summary = json.loads((SearchFolder(tmp_path / "search").trial(1) / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("interrupted", ends[2][0])
    same(search(tmp_path, keys, "again", search="grid", concurrent=1), found)
    same(search(tmp_path, keys, "again", search="grid", concurrent=1, resume=True), found)


@pytest.mark.slow
def test_optuna_repeats_and_goes_on_with_more_trials_as_if_asked_at_once(tmp_path):
    keys = {LR: {"loguniform": [0.001, 1.0]}}
    whole = search(tmp_path, keys, "whole", search="optuna", samples=4, concurrent=1)
    first = search(tmp_path, keys, "parts", search="optuna", samples=2, concurrent=1)
    assert len(first.rows) == 2
    same(search(tmp_path, keys, "parts", search="optuna", samples=4, concurrent=1, resume=True), whole)


LONG = {"rounds": 24, "model": {"name": "lenet5"}, "data": {"name": "digits", "fraction": 0.5}}


def start(recipe, space, folder, *words):
    words = ["tune", str(recipe), "--space", str(space), "--folder", str(folder), *words]
    command = [sys.executable, "-m", "rayfed_kd", *words, "--samples", "3", "--scheduler", "fifo"]
    return subprocess.Popen(
        [*command, "--concurrent", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def table(folder):
    return pq.read_table(folder / "trials.parquet").drop(["seconds"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    recipe, space = write(folder, {LR: {"loguniform": [0.01, 0.5]}}, **LONG)
    process = start(recipe, space, folder / "whole")
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    return folder, recipe, space


def begun(undisturbed, name, trial=0):
    """A search's folder, its process, and those below it, as soon as a trial has made five rounds."""
    folder, recipe, space = undisturbed
    process = start(recipe, space, folder / name)
    tables = SearchFolder(folder / name).trial(trial) / "tables"
    wait_until(lambda: tables.is_dir() and read_table(tables, "rounds").num_rows >= 5, 900, process)
    return folder / name, process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize("trial", [0, 2])
def test_search_whose_driver_was_killed_goes_on_to_the_same_table(trial, undisturbed):
    """In the middle of the first trials, and of the third, when others are over."""
    (folder, *files), (place, process, below) = undisturbed, begun(undisturbed, f"killed-{trial}", trial)
    process.kill()
    process.wait()
    psutil.wait_procs(below, timeout=60)
    assert not (place / "trials.parquet").exists()
    process = start(*files, place, "--resume")
    said, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    assert f"trial {trial}: goes on" in said
    assert table(place).equals(table(folder / "whole"))
    for number in range(3):
        ours, theirs = (SearchFolder(each).trial(number) / "tables" for each in (place, folder / "whole"))
        for name in ("metrics", "clients", "messages"):
            assert read_table(ours, name).equals(read_table(theirs, name))


@pytest.mark.slow
def test_trial_whose_server_was_killed_goes_on_by_itself(undisturbed):
    place, process, below = begun(undisturbed, "server")
    servers = [child for child in below if "ServerActor" in " ".join(child.cmdline())]
    assert servers
    for server in servers:
        server.kill()
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    assert table(place).equals(table(place.with_name("whole")))
    log = (SearchFolder(place).trial(0) / "log.txt").read_text()
    assert "resumed after round" in log


@pytest.mark.slow
def test_ctrl_c_ends_a_search_and_says_how_to_go_on(undisturbed):
    _, process, below = begun(undisturbed, "interrupted")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "the same tune command with --resume goes on" in errors
    assert psutil.wait_procs(below, timeout=30)[1] == []


@pytest.mark.slow
def test_quickstarts_search_gives_all_that_readme_says(tmp_path):
    files = (ROOT / "configs/quickstart.yaml", "--space", ROOT / "configs/tune/quickstart.yaml")
    command = [sys.executable, "-m", "rayfed_kd", "tune", *files, "--folder", tmp_path / "search"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sys.stdout.write(f"\n{done.stdout}{time.monotonic() - started:.0f} s\n")
    names = {path.name for path in (tmp_path / "search").iterdir()}
    assert {"trials.parquet", "best.yaml", "figures", "tensorboard", "trials", "search.yaml"} <= names
    assert pq.read_table(tmp_path / "search" / "trials.parquet").num_rows == 6
