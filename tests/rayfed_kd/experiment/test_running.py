"""A run from the outside: what it leaves, the command line, interruption, a user's own method."""

import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pyarrow.parquet as pq
import pytest
import yaml
from command_line import run_command
from known_comparison import run_locally
from small_recipes import FOUR_CLIENTS, small_recipe
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from waiting import wait_until

import rayfed_kd
from rayfed_kd.cli.doctor import report
from rayfed_kd.cli.interruption import IN_A_RUN
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.comparison.compare import compare_runs as compare
from rayfed_kd.comparison.studies import Study, StudyRun
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.tables import read_table

SMALL = {
    **small_recipe(FOUR_CLIENTS, "fedkf"),
    "rounds": 2,
    "sampling": {"fraction": 0.5},
    "evaluation": {"metrics": ["negative_log_likelihood"]},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    return rayfed_kd.run(SMALL, [f"results.folder={folder}"], local=True)


def write_recipe(folder, **changes):
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "results": {"folder": str(folder / "run")}, **changes}))
    return path


def test_run_leaves_all_that_is_promised(finished):
    names = {path.name for path in finished.folder.iterdir()} - {".lock"}
    assert names == {
        "config.yaml",
        "environment.json",
        "options.yaml",
        "partition.parquet",
        "classes.parquet",
        "summary.json",
        "log.txt",
        "tensorboard",
        "figures",
        "checkpoints",
        "tables",
    }


def test_options_are_kept_with_all_defaults(finished):
    """config.yaml says what was asked; a default may change one day."""
    kept = yaml.safe_load((finished.folder / "options.yaml").read_text())
    config = load_recipe(finished.folder / "config.yaml")
    assert kept["method"]["name"] == config.method.name
    assert kept["method"]["gamma"] == 1.0
    assert kept["method"]["generator"]["lr"] == 0.001
    assert "attackers" not in kept
    assert kept["paper"].startswith("Zhou et al. 2023")  # the class attribute, of an own method as of ours


def test_every_table_has_rows_of_every_round(finished):
    assert not finished.tables["privacy"].num_rows  # rows are of runs whose recipe has `privacy` only
    for name in set(SCHEMAS) - {"privacy"}:
        table = pq.read_table(finished.folder / "tables" / name)
        assert set(table["round"].to_pylist()) == {1, 2}, name


def test_summary_says_what_the_tables_say(finished):
    summary = json.loads((finished.folder / "summary.json").read_text())
    rounds, metrics = finished.tables["rounds"], finished.tables["metrics"].to_pylist()
    assert summary["bytes"]["up"] == sum(rounds["bytes_up"].to_pylist())
    last = next(row for row in metrics if row["round"] == 2 and row["model"] == "oca")
    assert summary["models"]["oca"]["last"]["amp"] == last["amp"]
    scores = finished.tables["scores"].to_pylist()
    score = next(row for row in scores if (row["round"], row["model"]) == (2, "oca"))
    assert summary["models"]["oca"]["last"]["local_negative_log_likelihood"] == score["value"]
    assert "local_negative_log_likelihood" in str(finished)
    assert "local_negative_log_likelihood" in finished._repr_html_()
    assert summary["status"] == "finished"


def test_bytes_of_messages_add_up_to_the_rounds(finished):
    """FedKF: two models of 4 bytes a parameter down, one up, two clients; counts are metadata."""
    module = rayfed_kd.prepare(SMALL).setting.module_pool().initial_vector("model")
    rows = [row for row in finished.tables["messages"].to_pylist() if row["round"] == 1]
    weights = {row["direction"]: row["bytes"] for row in rows if row["kind"] == "weights"}
    assert weights == {"up": 4 * module.numel(), "down": 8 * module.numel()}
    assert {row["kind"] for row in rows} == {"weights", "metadata"}
    assert finished.tables["rounds"]["bytes_down"].to_pylist()[0] == 2 * weights["down"]


def test_pictures_of_generated_samples_are_there_per_evaluated_round(finished):
    names = {path.name for path in (finished.folder / "figures").iterdir()}
    expected = {f"{tag}-{r:06d}.png" for tag in ("samples", "class_means") for r in (1, 2)}
    assert expected | {"partition.png", "curves.png", "logged.png", "client-accuracies.png"} == names


def test_tensorboard_reads_the_run(finished):
    events = EventAccumulator(str(finished.folder / "tensorboard")).Reload()
    tags = events.Tags()
    assert {"amp/global", "amp/oca", "logged/ce", "bytes/up", "time/client_s"} <= set(tags["scalars"])
    assert "local_negative_log_likelihood/oca" in tags["scalars"]
    assert {"samples", "class_means", "partition"} <= set(tags["images"])
    assert "client_accuracy/oca" in tags["histograms"]
    amp = [event.value for event in events.Scalars("amp/oca")]
    table = [row["amp"] for row in finished.tables["metrics"].to_pylist() if row["model"] == "oca"]
    assert amp == pytest.approx(table)


def test_resolved_config_runs_again_with_the_same_bits(finished, tmp_path):
    again = rayfed_kd.run(
        str(finished.folder / "config.yaml"), [f"results.folder={tmp_path / 'again'}"], local=True
    )
    assert again.tables["metrics"].equals(finished.tables["metrics"])


def test_folder_of_another_run_is_refused_before_anything_is_told_or_started(finished):
    told, rounds = [], len(finished.tables["rounds"])
    for words in ({"local": True}, {"address": "192.0.2.1:6379"}):
        with pytest.raises(
            RecipeError,
            match=rf"holds a finished run of {rounds} rounds; `rayfed-kd resume \S+ --local rounds=N`",
        ):
            rayfed_kd.run(SMALL, [f"results.folder={finished.folder}"], tell=told.append, **words)
    assert not told


def test_evaluation_every_third_round_and_the_last(tmp_path):
    changes = [
        f"results.folder={tmp_path / 'x'}",
        "rounds=5",
        "evaluation.every=3",
        "evaluation.samples=false",
    ]
    result = rayfed_kd.run(SMALL, changes, local=True)
    assert sorted(set(result.tables["metrics"]["round"].to_pylist())) == [3, 5]


def test_official_test_set_gives_server_accuracy_only(tmp_path):
    data = {"name": "synthetic", "samples": 60, "test_samples": 30, "shape": [1, 8, 8], "classes": 3}
    recipe = {**SMALL, "data": data, "method": {"name": "fedavg"}}
    changes = [f"results.folder={tmp_path / 'x'}", "partition.test=official"]
    rows = rayfed_kd.run(recipe, changes, local=True).tables["metrics"].to_pylist()
    assert all(row["amp"] is None and row["server_accuracy"] is not None for row in rows)


def test_non_finite_reply_stops_the_run_with_client_and_step(tmp_path):
    changes = [f"results.folder={tmp_path / 'x'}", "local.optimizer.lr=1e30"]
    with pytest.raises(rayfed_kd.errors.RunError, match=r"round 1, client \d, client_update: .*NaN"):
        rayfed_kd.run(SMALL, changes, local=True)
    assert json.loads((tmp_path / "x" / "summary.json").read_text())["status"] == "failed"


def test_command_ends_with_table_folder_and_tensorboard(tmp_path):
    done = run_command("run", write_recipe(tmp_path), "--local", "rounds=1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"round 1/1  \d+\.\d s  global amp", done.stdout)
    assert re.search(r"│ oca +│ +\d+\.\d\d %", done.stdout)
    assert f"tensorboard --logdir {tmp_path / 'run'}\n" in done.stdout
    assert done.stdout.endswith(f"rayfed-kd report {tmp_path / 'run'}\n")
    assert "\x1b" not in done.stdout


@pytest.fixture
def start():
    """Starts a command in a process group of its own, as a terminal does; a test that fails leaves none."""
    started = []

    def start(recipe, *words, command="run"):
        words = [sys.executable, "-m", "rayfed_kd", command, str(recipe), *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(words, **pipes, text=True, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for_rounds(folder, count, process):
    tables = folder / "tables"
    wait_until(lambda: tables.is_dir() and read_table(tables, "rounds").num_rows >= count, 120, process)


@pytest.mark.parametrize(
    "words", [pytest.param(["--local"], id="local"), pytest.param([], id="ray", marks=pytest.mark.slow)]
)
def test_ctrl_c_leaves_readable_tables_and_no_actor(words, start, tmp_path):
    process = start(write_recipe(tmp_path, rounds=100_000), *words)
    wait_for_rounds(tmp_path / "run", 2, process)
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= (0 if words else 3)  # the server, a client and Ray's own
    os.killpg(process.pid, signal.SIGINT)  # a terminal's Ctrl-C goes to the whole group
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130
    answer, end = filter(None, errors.splitlines())
    assert answer == IN_A_RUN
    last = max(int(note.stem[-6:]) for note in (tmp_path / "run" / "checkpoints").glob("round-*.json"))
    command = " ".join(["rayfed-kd", "resume", str(tmp_path / "run"), *words])
    assert end == f"interrupted: `{command}` goes on after round {last}"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert read_table(tmp_path / "run" / "tables", "rounds").num_rows == summary["rounds"] >= 2
    _, alive = psutil.wait_procs(below, timeout=30)
    assert alive == []


def test_ctrl_c_in_a_comparison_tells_that_the_comparison_goes_on(start, tmp_path):
    recipe = {**SMALL, "rounds": 100_000}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(recipe))
    folder = tmp_path / "compared"
    process = start(tmp_path / "long.yaml", "--local", "--folder", str(folder), command="compare")
    wait_for_rounds(folder / "long-seed1.running", 2, process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130
    told = "interrupted: finished work is kept; the same compare command again goes on\n"
    assert errors.endswith(told)


def test_ctrl_c_in_a_search_tells_that_the_search_goes_on(monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("rayfed_kd.tuning.tune.tune", interrupt)
    done = run_command("tune", "recipe.yaml", "--space", "space.yaml")
    assert done.returncode == 130
    assert done.stderr.endswith("; the same tune command with --resume goes on\n")


def test_failed_run_of_a_comparison_tells_that_the_comparison_goes_on(tmp_path, monkeypatch):
    """Its folder has another name once it is finished."""
    step = Host.step

    def failing(self, call):
        if call.facts.round == 2:
            raise RunError("lost")
        return step(self, call)

    monkeypatch.setattr(Host, "step", failing)
    base = write_recipe(tmp_path, checkpoint={"every": 1})
    study = Study(base=str(base), folder=str(tmp_path / "study"), runs=[StudyRun(label="A")])
    with pytest.raises(RunError, match=r"the same compare command again goes on after round 1$"):
        compare(study, run=run_locally())


def test_sigterm_ends_as_cleanly(start, tmp_path):
    process = start(write_recipe(tmp_path, rounds=100_000), "--local")
    wait_for_rounds(tmp_path / "run", 1, process)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"


def test_partition_command_draws_and_saves(tmp_path):
    done = run_command("partition", write_recipe(tmp_path), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "partition-bubbles.png",
        "partition.parquet",
    }
    assert "largest class" in done.stdout


def test_models_are_listed_with_their_options():
    assert "width = 64  stem channels" in run_command("models").stdout


@pytest.mark.slow
def test_bad_recipe_does_not_leave_ray_behind(start, tmp_path):
    """Ray starts while the recipe is checked; a fault ends it, too. floor(n_c / 5) of ten classes: 355."""
    process = start(write_recipe(tmp_path), "partition.clients=100000")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "there are 355 training samples" in errors
    group = [p for p in psutil.process_iter() if _group(p) == process.pid]
    assert psutil.wait_procs(group, timeout=20)[1] == []


def _group(process):
    try:
        return os.getsid(process.pid)
    except OSError:
        return None


def assert_doctor_tells_all(report):
    assert re.search(r"torch sees +\d+ cores", report)
    assert re.search(r"torchvision +\d", report)
    assert re.search(r"digits +found, 1 file", report)
    assert re.search(r"cifar10 +not found; looked there|cifar10 +not found; ", report)
    assert re.search(r"ray machine 0 +\S+ at [\d.]+: \d+ CPU \(one for the server", report)


def test_doctor_tells_of_ray_torch_torchvision_and_data(shared_ray, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYFED_KD_DATA", str(tmp_path))
    facts = list(report(None))
    assert_doctor_tells_all("\n".join(map("  ".join, facts)))
    assert len({name.strip() for name, _ in facts}) == len(facts)  # each is a key of its own in `--json`


@pytest.mark.slow
def test_doctor_starts_a_ray_of_its_own(tmp_path):
    words, environment = [sys.executable, "-m", "rayfed_kd", "doctor"], {"RAYFED_KD_DATA": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | environment, check=False)
    assert done.returncode == 0, done.stderr
    assert_doctor_tells_all(done.stdout)
