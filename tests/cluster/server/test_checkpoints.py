"""Checkpoints: what they hold, what damages them, and that a resumed run is the undisturbed one."""

import itertools
import json
import math
import shutil
import sys
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
import torch
from known_comparison import run_locally, write_yaml
from method_zoo import Pair
from small_recipes import FOUR_CLIENTS, assert_resumed_is_whole, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.algorithms import METHODS
from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.server.checkpoints import FORMAT, Checkpointer
from rayfed_kd.cluster.server.client_records import ClientRecord
from rayfed_kd.cluster.server.round_tables import RoundWriter
from rayfed_kd.cluster.server.run_state import Snapshot
from rayfed_kd.cluster.server.simulation import Simulation, is_due
from rayfed_kd.comparison.compare import compare_runs as compare
from rayfed_kd.comparison.planning import plan_runs
from rayfed_kd.comparison.studies import Study
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import PartRef
from rayfed_kd.protocol.state_packing import pack
from rayfed_kd.protocol.state_unpacking import unpack
from rayfed_kd.recipe.sections.safety import CheckpointRecipe
from rayfed_kd.results.recorder import RunRecorder
from rayfed_kd.results.tables import read_table
from rayfed_kd.toolbox.slots import Slots

RECIPE = {
    **FOUR_CLIENTS,
    "rounds": 4,
    "sampling": {"fraction": 0.5},
    "evaluation": {"samples": False},
    "checkpoint": {"every": 1},
}


def recipe(method="fedkf"):
    return small_recipe(RECIPE, method, **({"track_oca": True} if method == "fedavg" else {}))


def run(folder, *overrides, method="fedkf", **listeners):
    return rayfed_kd.run(recipe(method), [f"results.folder={folder}", *overrides], local=True, **listeners)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(method) -> the run of its recipe from start to end, once for all tests."""
    return cache(lambda method: run(tmp_path_factory.mktemp("whole") / "run", method=method))


@dataclass(frozen=True)
class State:
    weights: torch.Tensor
    slots: Slots
    others: dict[int, tuple[float, None]]
    pair: Pair


def slots(*values):
    ref = PartRef(Held({"student": np.array(values, dtype=np.float32)}), "student")
    return Slots.empty(len(values)).replaced({3: (ref, 0.1)})


def test_state_comes_back_bit_for_bit(tmp_path):
    state = State(
        torch.randn(5), slots(1.5, -2.0), {7: (math.inf, None), -1: (0.1, None)}, Pair(2**40, torch.tensor(3))
    )
    keeper = Checkpointer(tmp_path, CheckpointRecipe())
    held = Held({"state": pack({"steps": np.array(3.0, dtype=np.float32), "name": "x"})})
    keeper.save(Snapshot(8, state, {3: ClientRecord(2, held, 5, exchange=4)}, 12.5))
    found = keeper.latest(Held, "cpu", pytest.fail)
    assert (found.round, found.wall_s) == (8, 12.5)
    assert torch.equal(found.server.weights, state.weights)
    assert found.server.weights.dtype == torch.float32
    assert torch.equal(found.server.slots.total, state.slots.total)
    assert found.server.slots.weights == {3: 0.1}
    assert torch.equal(found.server.slots.entries[3].load(), torch.tensor([1.5, -2.0]))
    assert found.server.others == state.others
    assert (found.server.pair.first, found.server.pair.second.item()) == (2**40, 3)
    record = found.records[3]
    assert (record.participations, record.version, record.exchange) == (2, 5, 4)
    assert unpack(record.state.resolve()["state"])["steps"].shape == ()


def saved(folder, rounds=(1, 2, 3), keep=3):
    keeper = Checkpointer(folder, CheckpointRecipe(keep=keep))
    for index in rounds:
        keeper.save(Snapshot(index, torch.full((3,), float(index)), {}, 0.0))
    return keeper


@pytest.mark.parametrize("damage", ["truncated", "a byte changed", "gone", "note cut off"])
def test_damaged_checkpoint_is_recognised_and_the_one_before_it_used(damage, tmp_path):
    keeper = saved(tmp_path)
    newest = tmp_path / "checkpoints" / "round-000003.safetensors"
    content = bytearray(newest.read_bytes())
    if damage == "truncated":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "a byte changed":
        content[-1] ^= 1
        newest.write_bytes(content)
    elif damage == "gone":
        newest.unlink()
    else:
        newest.with_suffix(".json").write_text('{"round": 3, "by')
    told = []
    found = keeper.latest(Held, "cpu", told.append)
    assert (found.round, found.server.tolist()) == (2, [2.0, 2.0, 2.0])
    assert len(told) == 1
    assert "round-000003.safetensors is damaged" in told[0]
    assert told[0].endswith("the one before it is used")


@pytest.mark.parametrize(("other", "which"), [(FORMAT - 1, "an older"), (FORMAT + 1, "a newer")])
def test_checkpoint_of_another_version_is_refused_with_the_reason(other, which, tmp_path, monkeypatch):
    """It is whole: to take the one before it, or to start afresh, would throw a run away."""
    with monkeypatch.context() as patch:
        patch.setattr("rayfed_kd.cluster.server.checkpoints.FORMAT", other)
        keeper = saved(tmp_path)
    with pytest.raises(
        RecipeError, match=f"written by {which} version .* its format is {other}, .* reads {FORMAT}"
    ):
        keeper.latest(Held, "cpu", pytest.fail)


SAMPLES = {
    "late": {"name": "quorum", "min_fraction": 0.5, "late": "next_round"},
    "fedasync": {"name": "fedasync"},
}


@pytest.mark.parametrize("schedule", SAMPLES)
def test_resumed_asynchronous_run_draws_the_same_generated_samples(schedule, tmp_path, monkeypatch):
    """A client's draws for people depend on how many steps of its participation were begun."""
    drawn, record = {}, RunRecorder.record

    def recorded(self, one):
        drawn.setdefault(self._folder.name, {})[one.round] = one.shown["samples"]
        record(self, one)

    monkeypatch.setattr(RunRecorder, "record", recorded)
    asked = {**recipe(), "schedule": SAMPLES[schedule], "clock": {"name": "lognormal"}, "evaluation": {}}
    assert_resumed_is_whole(asked, tmp_path, 3, 6)
    for round_index, samples in drawn["whole"].items():
        assert torch.equal(drawn["cut"][round_index].images, samples.images), round_index


def test_what_was_removed_is_on_disk_before_a_run_is_finished(tmp_path, monkeypatch):
    """Else a power cut brings it back, and nothing comes after a finished run that would remove it again."""
    flushed = []

    def flush(folder):
        flushed.append((sorted(path.name for path in folder.iterdir()), (tmp_path / "summary.json").exists()))

    monkeypatch.setattr(rayfed_kd.cluster.server.checkpoints, "flush_to_disk", flush)
    run(tmp_path, "checkpoint.keep=1")
    there = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert flushed == [(there, False)]
    assert "round-000003.json" not in there


def test_round_a_million_is_newer_than_the_one_before_it(tmp_path):
    """Its name is longer, and sorts as text before that of round 999,999."""
    keeper = saved(tmp_path, [999_998, 999_999, 1_000_000], keep=2)
    assert keeper.latest(Held, "cpu", pytest.fail).round == 1_000_000
    notes = {path.stem for path in (tmp_path / "checkpoints").glob("*.json")}
    assert notes == {"round-999999", "round-1000000"}


@pytest.mark.parametrize(
    ("every", "minutes", "due"),
    [(2, None, [2, 4]), (None, None, []), (None, 0.4, [1, 2, 3, 4]), (3, 0.6, [3])],
)
def test_when_a_checkpoint_is_due(every, minutes, due, tmp_path):
    checkpointer = Checkpointer(tmp_path, CheckpointRecipe(every=every, minutes=minutes))
    checkpointer.saved_at -= 30
    assert [index for index in range(1, 5) if is_due(checkpointer, index)] == due


def interrupted(folder, monkeypatch, at_step, method):
    """A run that Ctrl-C meets in the middle of its `at_step`-th step."""
    steps = []
    original = Host.step

    def step(self, call):
        steps.append(call)
        if len(steps) == at_step:
            raise KeyboardInterrupt
        return original(self, call)

    with monkeypatch.context() as patch:
        patch.setattr(Host, "step", step)
        with pytest.raises(KeyboardInterrupt):
            run(folder, method=method)


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("at_round", [1, 2])
def test_run_stopped_while_a_rounds_line_is_printed_goes_on_from_a_whole_checkpoint(
    at_round, every, undisturbed, tmp_path
):
    """The round has its rows already, and is not complete: the checkpoint of the one before is good."""

    def pressed(event):
        if event["round"] == at_round:
            raise KeyboardInterrupt

    told = []
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", f"checkpoint.every={every}", on_event=pressed)
    restart = at_round == 1  # no round is complete, so there is no checkpoint
    resumed = rayfed_kd.resume(tmp_path / "cut", restart=restart, local=True, tell=told.append)
    assert_same_run(resumed, undisturbed("fedkf"))
    assert not [line for line in told if "cannot be used" in line]


def interrupt_at(count, wanted):
    """A trace function that raises KeyboardInterrupt at the `count`-th line of the functions `wanted`."""
    seen = [0]

    def lines(frame, event, _):
        if event == "line":
            seen[0] += 1
            if seen[0] == count:
                raise KeyboardInterrupt
        return lines

    return lambda frame, event, _: lines if frame.f_code in wanted else None


LOOP = [one.__code__ for one in (Simulation.run, Simulation._save, RoundWriter.wait)]


@pytest.mark.slow
def test_ctrl_c_at_any_line_of_the_loop_loses_no_complete_round(undisturbed, tmp_path):
    """Each line of the loop in each round, until a run ends by itself."""
    expected = undisturbed("fedkf")
    for count in itertools.count(12):  # within the first round, as no checkpoint comes before it
        folder = tmp_path / str(count)
        sys.settrace(interrupt_at(count, LOOP))
        try:
            run(folder)
        except KeyboardInterrupt:
            sys.settrace(None)
        else:
            break
        finally:
            sys.settrace(None)
        told = []
        recorded = read_table(folder, "rounds").num_rows
        resumed = rayfed_kd.resume(folder, restart=recorded <= 1, local=True, tell=told.append)
        assert_same_run(resumed, expected)
        assert not [line for line in told if "cannot be used" in line], count
    assert count > 30


# What is interrupted where matters little to a method: `check_method` resumes each after its first round.
FAST = (("fedkf", 1), ("fedkf", 4), ("fedd2s", 8), ("kdia", 2), ("fedgems", 2))
STOPPED = [(name, 2) for name in METHODS if name != "datafree"]  # which has no steps at clients
STOPPED += [(name, step) for name in ("fedkf", "fedd2s") for step in (1, 4, 8)]


@pytest.mark.parametrize(
    ("method", "at_step"),
    [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in STOPPED],
)
def test_run_stopped_in_mid_round_and_resumed_is_the_undisturbed_run(
    method, at_step, undisturbed, tmp_path, monkeypatch
):
    expected = undisturbed(method)
    interrupted(tmp_path / "cut", monkeypatch, at_step, method)
    assert_same_run(rayfed_kd.resume(tmp_path / "cut", local=True), expected)
    folders = tmp_path / "cut", expected.folder
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    assert summaries[0]["models"] == summaries[1]["models"]
    assert summaries[0]["bytes"] == summaries[1]["bytes"]


def test_twice_cut_off_and_resumed_with_a_damaged_checkpoint(tmp_path, monkeypatch):
    expected = run(tmp_path / "whole", "rounds=5")
    folder = tmp_path / "cut"
    interrupted(folder, monkeypatch, 6, "fedkf")
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:100])
    told = []
    rayfed_kd.resume(folder, ["rounds=4"], local=True, tell=told.append)
    assert told[1:] == ["resumed after round 1"]
    assert_same_run(rayfed_kd.resume(folder, ["rounds=5"], local=True), expected)


@pytest.fixture(scope="module")
def whole(undisturbed):
    """An undisturbed run of four rounds."""
    return undisturbed("fedavg")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The same run after two of its rounds."""
    return run(tmp_path_factory.mktemp("begun") / "run", "rounds=2", method="fedavg").folder


@pytest.fixture
def cut(begun, tmp_path, blank_pictures):
    """A copy of `begun`, in a folder whose name has a blank, to be damaged and resumed."""
    return shutil.copytree(begun, tmp_path / "my run")


def state_of(folder):
    """Every file with its content, but for the lock."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("damaged", [False, True])
def test_run_without_a_usable_checkpoint_asks_before_it_deletes_rounds(damaged, cut, whole):
    if damaged:
        for path in (cut / "checkpoints").glob("*.safetensors"):
            path.write_bytes(path.read_bytes()[:50])
    else:
        shutil.rmtree(cut / "checkpoints")
    before = state_of(cut)
    with pytest.raises(RecipeError) as caught:
        rayfed_kd.resume(cut, ["rounds=4"], local=True)
    assert "no usable checkpoint" in str(caught.value)
    assert "its 2 recorded rounds would be deleted" in str(caught.value)
    assert f"`rayfed-kd resume '{cut}' --restart`" in str(caught.value)
    assert ("round-000002.safetensors is damaged" in str(caught.value)) == damaged
    assert "the one before it is used" not in str(caught.value)
    assert state_of(cut) == before
    told = []
    resumed = rayfed_kd.resume(cut, ["rounds=4"], local=True, restart=True, tell=told.append)
    assert_same_run(resumed, whole)
    assert told[0].endswith("begins again at round 1, without its 2 recorded rounds")


def test_restart_is_not_needed_where_there_is_nothing_to_lose(cut, whole):
    for name in ("checkpoints", "tables"):
        shutil.rmtree(cut / name)
    (cut / "summary.json").unlink()
    assert_same_run(rayfed_kd.resume(cut, ["rounds=4"], local=True), whole)


@pytest.mark.parametrize("table", ["rounds", "messages"])
def test_lost_rows_of_a_table_are_noticed_and_their_round_runs_again(table, cut, whole):
    path = cut / "tables" / table / "rows.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.filter(pyarrow.compute.equal(rows["round"], 1)), path)
    told = []
    resumed = rayfed_kd.resume(cut, ["rounds=4"], local=True, tell=told.append)
    assert told[1:] == ["resumed after round 1"]
    assert f"round-000002.safetensors cannot be used (table {table} has " in told[0]
    assert_same_run(resumed, whole)


def test_checkpoint_serves_an_export_whose_tables_are_gone(cut, tmp_path):
    shutil.rmtree(cut / "tables")
    assert len(rayfed_kd.export(cut, "oca", tmp_path / "out")) == 2


def test_orphans_and_unusable_checkpoints_go_at_the_next_start(cut):
    checkpoints = cut / "checkpoints"
    note = json.loads((checkpoints / "round-000002.json").read_text())
    (checkpoints / "round-000007.safetensors").write_bytes(b"its note was never written")
    (checkpoints / ".part-0123456789abcdef-round-000009.json").touch()
    (checkpoints / "round-000008.json").write_text(json.dumps({**note, "round": 8}))
    rayfed_kd.resume(cut, ["rounds=3", "checkpoint.keep=1"], local=True)
    names = sorted(path.name for path in checkpoints.iterdir())
    assert names == ["round-000003.json", "round-000003.safetensors", "states-000003.log"]


@pytest.mark.slow
def test_resumed_on_ray_with_more_hosts_gives_the_same_bits(shared_ray, undisturbed, tmp_path):
    run(tmp_path / "cut", "rounds=2")
    overrides = ["rounds=4", "placement.clients_per_actor=2", "placement.client.num_cpus=0.5"]
    assert_same_run(rayfed_kd.resume(tmp_path / "cut", overrides), undisturbed("fedkf"))


def test_finished_run_says_so_and_is_extended(tmp_path):
    run(tmp_path / "a", "rounds=2")
    told = []
    rayfed_kd.resume(tmp_path / "a", local=True, tell=told.append)
    assert "is finished: 2 rounds" in told[0]
    assert rayfed_kd.resume(tmp_path / "a", ["rounds=3"], local=True).summary["rounds"] == 3
    with pytest.raises(RecipeError, match=r"rounds = 1: .* has 3 rounds already"):
        rayfed_kd.resume(tmp_path / "a", ["rounds=1"], local=True)
    with pytest.raises(
        RecipeError, match=r"also with --restart.*config.yaml rounds=1 results.folder=ANOTHER"
    ):
        rayfed_kd.resume(tmp_path / "a", ["rounds=1"], local=True, restart=True)


def test_another_recipe_is_refused_with_the_differences(tmp_path):
    run(tmp_path / "a", "rounds=1")
    with pytest.raises(RecipeError) as caught:
        rayfed_kd.resume(tmp_path / "a", ["rounds=2", "local.epochs=3", "placement.threads=2"], local=True)
    assert "placement.threads was 1, is 2" in str(caught.value)  # of which torch's last bits are
    assert "local.epochs was 1, is 3" in str(caught.value)


def test_other_versions_are_refused_with_both_unless_asked_for(tmp_path):
    run(tmp_path / "a", "rounds=1")
    path = tmp_path / "a" / "environment.json"
    begun = json.loads(path.read_text())
    begun["packages"]["torch"] = "1.0"
    path.write_text(json.dumps(begun))
    with pytest.raises(RecipeError, match=r"was begun with torch 1.0, now .*--anyway"):
        rayfed_kd.resume(tmp_path / "a", ["rounds=2"], local=True)
    assert rayfed_kd.resume(tmp_path / "a", ["rounds=2"], local=True, anyway=True).summary["rounds"] == 2


def test_partition_that_is_another_now_is_refused(tmp_path):
    run(tmp_path / "a", "rounds=1")
    other = prepare(recipe(), ["seed=9"]).setting.partition
    other.save(tmp_path / "a" / "partition.parquet")
    with pytest.raises(RecipeError, match="its partition is another"):
        rayfed_kd.resume(tmp_path / "a", ["rounds=2"], local=True)


def test_folder_without_a_run_is_told(tmp_path):
    with pytest.raises(RecipeError, match="holds no run"):
        rayfed_kd.resume(tmp_path, local=True)
    with pytest.raises(RecipeError, match=r"holds no run: there is no config.yaml"):
        rayfed_kd.export(tmp_path, "global", tmp_path / "x")
    (tmp_path / "runs" / "A-seed1").mkdir(parents=True)
    with pytest.raises(RecipeError, match=r"rums: no such folder. Did you mean .*/runs\?"):
        rayfed_kd.resume(tmp_path / "rums", local=True)
    (tmp_path / "runs" / "A-seed1" / "config.yaml").touch()
    with pytest.raises(RecipeError, match="holds no run itself, but runs below it"):
        rayfed_kd.resume(tmp_path / "runs", local=True)
    with pytest.raises(RecipeError, match=r"config.yaml is a file; expected a folder"):
        rayfed_kd.resume(tmp_path / "runs" / "A-seed1" / "config.yaml", local=True)


def test_comparison_goes_on_in_the_middle_of_a_run(tmp_path, monkeypatch):
    base = write_yaml(tmp_path / "base.yaml", recipe())
    study = Study.model_validate(
        {"base": str(base), "folder": str(tmp_path / "runs"), "runs": [{"label": "A"}]}
    )
    interrupted(plan_runs(study)[0].unfinished_folder, monkeypatch, 6, "fedkf")
    told = []
    found = compare(study, run=run_locally(told))
    assert "A, seed 1: goes on in" in told[0]
    whole = study.model_copy(update={"folder": str(tmp_path / "whole")})
    expected = compare(whole, run=run_locally())
    assert found.curves == expected.curves
