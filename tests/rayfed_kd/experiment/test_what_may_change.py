"""What may change between two parts of a run: neither data, nor code, nor what a number of rounds decides."""

import sys
from pathlib import Path

import pytest
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.experiment.resumability import last_checkpoint
from rayfed_kd.recipe.sections.learning_rates import RateSchedule
from rayfed_kd.results.folder import changed_inputs

EVERY_ROUND = {**THREE_CLIENTS, "checkpoint": {"every": 1}}
METHOD = """
from pathlib import Path

from rayfed_kd.algorithms.fedavg import FedAvg
import HELPER


class Mine(FedAvg):
    def absorb(self, server, replies, ctx):
        FAULT
        return super().absorb(server, replies, ctx)
"""


def run(folder, recipe, **keys):
    return rayfed_kd.run(recipe, {"results.folder": str(folder)}, local=True, **keys)


def resumed(folder, **keys):
    return rayfed_kd.resume(folder, local=True, **keys)


def weights(result):
    return {name: vector.tobytes() for name, vector in result.models.items()}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes a method, `STEM:Mine`, which imports a helper; both are modules of this test alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    helper, method = (tmp_path / f"{name}_{tmp_path.name}.py" for name in ("helper", "mine"))

    def written(fault="pass", helping=""):
        helper.write_text(helping)
        method.write_text(METHOD.replace("HELPER", helper.stem).replace("FAULT", fault))
        for file in (helper, method):  # as in another process
            sys.modules.pop(file.stem, None)
        return {**EVERY_ROUND, "method": {"name": f"{method.stem}:Mine"}}

    return written


def table(folder, rows):
    """A CSV of rows (height, girth, kind)."""
    folder.mkdir(exist_ok=True)
    lines = [f"{height},{girth},{kind}" for height, girth, kind in rows]
    (folder / "trees.csv").write_text("\n".join(["height,girth,label", *lines]) + "\n")


def test_run_goes_on_in_its_own_folder_whatever_its_name(tmp_path):
    """In YAML ` #` begins a comment: another run's folder is left."""
    run(tmp_path / "a", EVERY_ROUND)
    run(folder := tmp_path / "a #3", {**EVERY_ROUND, "rounds": 1})
    assert resumed(folder, rounds=2).folder == folder
    with pytest.raises(RecipeError, match=r"results\.folder: a run goes on in its own folder"):
        resumed(folder, overrides=["results.folder=b"])


def test_run_is_not_resumed_on_the_same_rows_in_another_order(tmp_path):
    rows = [(i / 10, -i, ("fir", "oak", "yew")[i % 3]) for i in range(60)]
    table(tmp_path / "data", rows)
    data = {"name": "csv", "folder": str(tmp_path / "data"), "train": "trees.csv"}
    whole = run(tmp_path / "whole", {**EVERY_ROUND, "data": data}, rounds=3)
    run(tmp_path / "half", {**EVERY_ROUND, "data": data}, rounds=1)
    table(tmp_path / "data", rows[::-1])
    told = "its data, csv, are others than when it was begun, or in another order: train-images, train-labels"
    with pytest.raises(RecipeError, match=told):
        resumed(tmp_path / "half", rounds=3)
    with pytest.raises(RecipeError, match=told):  # whose normalisation would be another
        rayfed_kd.export(tmp_path / "half", "global", tmp_path / "model")
    table(tmp_path / "data", rows)
    assert weights(resumed(tmp_path / "half", rounds=3)) == weights(whole)


def test_another_partition_in_the_same_file_is_told(tmp_path):
    """`compare` asks for what has changed, so that rows of one table have one split."""
    partition, file = {"name": "iid", "clients": 3}, tmp_path / "p.parquet"
    rayfed_kd.partition({**EVERY_ROUND, "partition": partition}).save(tmp_path)
    (tmp_path / "partition.parquet").rename(file)
    run(tmp_path / "run", {**EVERY_ROUND, "partition": {**partition, "file": str(file)}}, rounds=1)
    assert changed_inputs(tmp_path / "run") == []
    file.write_bytes(b"another")
    assert changed_inputs(tmp_path / "run") == [f"another {file}"]


def test_module_that_a_method_imports_counts_as_its_code(mine):
    folder = run("run", mine(), rounds=1).folder
    recipe = mine(helping="SCALE = 2")
    helper = f"helper_{recipe['method']['name'].removeprefix('mine_').removesuffix(':Mine')}.py"
    told = f"was begun with another {helper}, or none that is found from this folder: the bits may differ"
    with pytest.raises(RecipeError, match=told):
        resumed(folder, rounds=2)
    assert resumed(folder, rounds=2, anyway=True).summary["rounds"] == 2


def test_error_in_a_method_leaves_a_checkpoint_of_the_last_complete_round(mine):
    """As Ctrl-C does: with the method mended, the run goes on after round 3 and is the undisturbed one."""
    # A process imports a module once: what is mended is a file that the method looks for.
    recipe = mine("if ctx.round == 4 and Path('faulty').exists(): raise ValueError('mine')")
    recipe = {**recipe, "checkpoint": {"every": 10}}
    whole = run("whole", recipe, rounds=5)
    Path("faulty").touch()
    with pytest.raises(RunError, match=r"(?s)round 4, server of .*ValueError: mine.* goes on after round 3"):
        run("run", recipe, rounds=5)
    Path("faulty").unlink()
    assert last_checkpoint(Path("run")) == 3
    assert weights(resumed("run")) == weights(whole)


def rates(**keys):
    return {**EVERY_ROUND, "local": {"epochs": 1, "lr_schedule": {"rounds": keys}}}


def test_run_whose_rate_falls_over_all_rounds_is_not_extended(tmp_path):
    folder = run(tmp_path / "run", rates(name="cosine"), rounds=2).folder
    told = r"rounds was 2, is 4, .*local.lr_schedule.rounds, a cosine, .*local.lr_schedule.rounds.over=4"
    with pytest.raises(RecipeError, match=told):
        resumed(folder, rounds=4)
    assert resumed(folder).summary["rounds"] == 2


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "cosine", "over": 4},
        {"name": "step", "every": 2, "factor": 0.5},
        {"name": "exponential", "factor": 0.9},
        {"name": "constant", "warmup": 1},
    ],
)
def test_run_whose_rate_does_not_depend_on_their_number_is_extended(keys, tmp_path):
    whole = run(tmp_path / "whole", rates(**keys), rounds=4)
    folder = run(tmp_path / "run", rates(**keys), rounds=2).folder
    assert weights(resumed(folder, rounds=4)) == weights(whole)


def test_run_of_a_method_that_asks_for_the_number_of_rounds_is_not_extended(mine):
    folder = run("run", mine("ctx.rounds"), rounds=1).folder
    with pytest.raises(RecipeError, match=r"goes by the number of all rounds \(ctx.rounds\)"):
        resumed(folder, rounds=2)


def test_fedkd_is_extended_if_it_says_over_how_many_rounds_its_energy_rises(tmp_path):
    def fedkd(name, **options):
        return run(tmp_path / name, {**EVERY_ROUND, "method": {"name": "fedkd", **options}}, rounds=1)

    with pytest.raises(RecipeError, match="fedkd goes by the number of all rounds"):
        resumed(fedkd("run").folder, rounds=2)
    assert resumed(fedkd("other", energy_rounds=2).folder, rounds=2).summary["rounds"] == 2


def test_cosine_over_a_given_number_is_that_of_a_run_of_it_and_then_stays():
    """Half a cosine over 4: (1 + cos(pi n / 4)) / 2 for n = 0 to 3."""
    by_hand = [1.0, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2]
    given = RateSchedule(name="cosine", over=4)
    assert [given.at(place, 100) for place in range(6)] == pytest.approx([*by_hand, by_hand[-1], by_hand[-1]])
    assert [RateSchedule(name="cosine").at(place, 4) for place in range(4)] == pytest.approx(by_hand)
    assert (given.depends_on_total, RateSchedule(name="cosine").depends_on_total) == (False, True)
    with pytest.raises(ValueError, match="expected fewer than over, 4"):
        RateSchedule(name="cosine", over=4, warmup=4)
    with pytest.raises(ValueError, match="over belongs to cosine, not to constant"):
        RateSchedule(name="constant", over=4)
