"""The benchmark against other simulators: the parts that need none of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run_command

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    """Both folders of scripts are importable, as from their commands."""
    for folder in (ROOT / "tests/benchmarks", BENCHMARKS):
        monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def folder(scripts, tmp_path):
    """A workload of three clients with ten samples each, three rounds."""
    from job_files import PeerWorkload

    model = "rayfed_models:tiny_net"
    work = PeerWorkload("small", 3, 10, (6,), 3, 5, model, 3, epochs=2, folder=tmp_path / "small", signal=1.0)
    work.write()
    return work.folder


def test_the_bare_loop_and_the_command_line_end_at_the_same_model(folder, tmp_path, capsys):
    import bare
    from job import read
    from peers import figures_of_run

    job = read(str(folder))
    job.end(job.module(), "start")
    bare.run(str(folder), processes=1)
    assert capsys.readouterr().out.splitlines() == ["round 1/3", "round 2/3", "round 3/3"]
    ended = run_command(
        "run", folder / "recipe.yaml", "--local", f"results.folder={tmp_path / 'run'}", folder=BENCHMARKS
    )
    assert ended.returncode == 0, ended.stderr
    rounds = [line for line in ended.stdout.splitlines() if line.startswith("round ")]
    assert [line.split()[1].rstrip(":,") for line in rounds] == ["1/3", "2/3", "3/3"]
    start, bare_end = (json.loads((folder / f"{name}.json").read_text()) for name in ("start", "bare"))
    assert figures_of_run(tmp_path / "run") == pytest.approx(bare_end, abs=1e-5)
    assert abs(start["loss"] - bare_end["loss"]) > 1e-3  # it has learned something


def test_the_orders_on_disk_are_those_of_the_bare_loops_streams(folder, scripts):
    from job import read

    from rayfed_kd.recipe.seeds import numpy_stream

    job = read(str(folder))
    assert job.orders.shape == (3, 3, 2, 10)
    # Of client 2 in its second participation, the second epoch.
    expected = numpy_stream(job.seed, "batches", 2, 2, 1).permutation(10)
    assert job.orders[1, 2, 1].tolist() == expected.tolist()
    assert sorted(job.partition.ravel().tolist()) == list(range(30))


def test_the_table_divides_each_repetition_by_the_bare_loops(scripts):
    from end_to_end import Timed
    from peers import table

    # The last round counts for nothing: the model is evaluated in it.
    bare = [
        Timed(1.0, 9.0, 0.5, 100.0, 3.0, {}, [2.0, 2.0, 9.0]),
        Timed(3.0, 9.0, 0.5, 100.0, 3.0, {}, [4.0, 9.0]),
    ]
    other = [
        Timed(1.0, 9.0, 0.5, 200.0, 3.0, {}, [6.0, 1.0]),
        Timed(1.0, 9.0, 0.5, 200.0, 3.0, {}, [4.0, 9.0]),
    ]
    ends = {name: {"loss": 0.25, "accuracy": 0.5} for name in ("bare", "other")}
    last = table({"bare": bare, "other": other}, ends)[-1]
    # 6 / 2 and 4 / 4; the round 5 (4 to 6).
    assert last.split(" | ")[:4] == ["| other", "2.00 (1.00 to 3.00)", "5.000 (4.000 to 6.000)", "1.0"]


@pytest.mark.parametrize("wrong", [{"loss": 1.02, "accuracy": 0.5}, {"loss": float("nan"), "accuracy": 0.5}])
def test_a_simulator_that_ends_elsewhere_is_named(scripts, wrong):
    from peers import disagreements

    right = {"loss": 1.0, "accuracy": 0.5}
    assert disagreements({"bare": right, "pfl": {"loss": 1.005, "accuracy": 0.505}}) == []
    (line,) = disagreements({"bare": right, "flower": wrong})
    assert line.startswith("flower: loss")


@pytest.mark.slow
def test_two_processes_that_sum_in_place_end_where_one_does(folder):
    ends = []
    for processes in (1, 2):
        command = [sys.executable, str(BENCHMARKS / "bare.py"), str(folder), str(processes)]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
        ends.append(json.loads((folder / "bare.json").read_text()))
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)
