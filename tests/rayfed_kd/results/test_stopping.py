"""A recipe's `stop`: after which evaluation a run ends, on any engine and after a resumption."""

import pyarrow.compute as pc
import pytest
import torch
from small_recipes import FOUR_CLIENTS, assert_same_run, assert_same_tables, refused, small_recipe

import rayfed_kd
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.sections.safety import StopRecipe
from rayfed_kd.results.stopping import StopRule

BASE = {
    **small_recipe(FOUR_CLIENTS, "fedavg"),
    "rounds": 6,
    "sampling": {"fraction": 0.5},
    "evaluation": {"samples": False},
    "checkpoint": {"every": 2},
}
BYTES = [100, 50, 50, 100, 50]


def ended_after(values, every=1, **stop):
    """The round after which a run ends whose model has these values; and why."""
    rule = StopRule(StopRecipe(**stop))
    for index, (value, size) in enumerate(zip(values, BYTES, strict=False), start=1):
        row = {"round": index, "bytes_up": size - 10, "bytes_down": 10, "sim_s": 2.0 * index, "wall_s": 0.5}
        named = zip("abc", (1.0, *(value if isinstance(value, tuple) else (value,))), strict=False)
        metrics = [{"round": index, "model": name, "amp": one} for name, one in named]
        rule.take({"rounds": [row], "metrics": metrics if index % every == 0 else []})
        if rule.why:
            return index, rule.why
    return None, ""


@pytest.mark.parametrize(
    ("values", "stop", "expected"),
    [
        ([0.1, 0.3, 0.2, 0.5], {"metric": "amp", "at": 0.3}, 2),  # reached is enough
        ([0.1, 0.2, 0.2, 0.2], {"metric": "amp", "at": 0.3}, None),
        ([0.1, 0.2, 0.2, 0.3], {"metric": "amp", "model": "a", "at": 0.9}, 1),
        ([0.1, 0.3, 0.2, 0.3, 0.9], {"metric": "amp", "patience": 2}, 4),  # equal is no better
        ([0.1, 0.3, 0.2, 0.4, 0.3], {"metric": "amp", "patience": 2}, None),
        ([None, float("nan"), 0.2, 0.1], {"metric": "amp", "patience": 2}, 2),
        ([0.0] * 5, {"bytes": 200}, 3),
        ([0.0] * 5, {"bytes": 201}, 4),
        ([0.0] * 5, {"sim_seconds": 7}, 4),
        ([0.0] * 5, {"seconds": 0.6}, None),
        ([0.1, 0.9, 0.9], {"metric": "amp", "at": 0.9, "bytes": 100}, 1),  # the first that holds
        ([0.1, (0.9, 0.2), (0.8, 0.3), (0.7, 0.4)], {"metric": "amp", "patience": 2}, 4),  # c comes later
        ([(0.1, 0.9), 0.1, (0.1, 0.8), 0.1, (0.1, 0.7)], {"metric": "amp", "patience": 2}, 5),  # c not always
    ],
)
def test_a_run_ends_after_the_first_evaluation_at_which_one_holds(values, stop, expected):
    index, why = ended_after(values, **stop)
    assert index == expected
    assert (f"after round {expected}" in why) is (expected is not None)


def test_rounds_without_an_evaluation_count_and_do_not_end_it():
    assert ended_after([0.0] * 5, every=2, bytes=200)[0] == 4
    assert ended_after([0.9, 0.1, 0.1, 0.9], every=2, metric="amp", at=0.9)[0] == 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return rayfed_kd.run(BASE, [f"results.folder={folder}"], local=True)


def stopped(folder, at, **engine):
    return rayfed_kd.run(BASE, [f"results.folder={folder}", f"stop={{metric: amp, at: {at!r}}}"], **engine)


def first_better(whole):
    """A round that is better than those before it, not the first, and its value."""
    values = whole.tables["metrics"]["amp"].to_pylist()
    return next((n + 1, values[n]) for n in range(2, 5) if values[n] > max(values[:n]))


@pytest.mark.parametrize("engine", [{"local": True}, pytest.param({}, marks=pytest.mark.slow)])
def test_a_stopped_run_has_the_rounds_of_the_whole_one_and_can_go_on(engine, whole, tmp_path):
    last, at = first_better(whole)
    result = stopped(tmp_path, at, **engine)
    assert (result.summary["status"], result.summary["rounds"]) == ("finished", last)
    assert result.summary["stopped"] == f"amp of global is {at:.4g} after round {last}, and stop.at = {at:g}"
    cut = {name: rows.filter(pc.field("round") <= last) for name, rows in whole.tables.items()}
    assert_same_tables(result.tables, cut)
    again = rayfed_kd.resume(tmp_path, local=True)
    assert again.summary == result.summary  # it is finished
    assert_same_run(rayfed_kd.resume(tmp_path, ["stop=null"], local=True), whole)


def test_a_rule_that_holds_after_the_last_round_has_stopped_nothing(tmp_path):
    changes = {"rounds": 1, "stop": {"metric": "amp", "at": 1e-9}, "results.folder": tmp_path / "run"}
    assert "stopped" not in rayfed_kd.run(BASE, changes, local=True).summary


def test_run_that_was_killed_when_it_had_stopped_makes_no_further_round(whole, tmp_path):
    last, at = first_better(whole)
    result = stopped(tmp_path, at, local=True)
    (tmp_path / "summary.json").unlink()
    again = rayfed_kd.resume(tmp_path, local=True)
    assert (again.summary["rounds"], again.summary["stopped"]) == (last, result.summary["stopped"])
    assert_same_run(again, result)


def test_a_stopped_run_that_was_gone_on_with_and_killed_is_not_finished(whole, tmp_path):
    stopped(tmp_path, first_better(whole)[1], local=True)
    noted = (tmp_path / "summary.json").read_bytes()
    with pytest.raises(ZeroDivisionError):
        rayfed_kd.resume(tmp_path, ["stop=null"], local=True, on_event=lambda event: 1 / 0)
    (tmp_path / "summary.json").write_bytes(noted)  # a kill leaves that of the end before
    assert_same_run(rayfed_kd.resume(tmp_path, local=True), whole)


@pytest.mark.parametrize(("stop", "message"), refused("stop"))
def test_what_cannot_end_a_run_is_refused_before_it(stop, message, tmp_path):
    with pytest.raises(RecipeError, match=message):
        rayfed_kd.run(BASE, [f"stop={stop}", f"results.folder={tmp_path / 'run'}"], local=True)
    assert not (tmp_path / "run").exists()


def test_what_is_not_evaluated_before_round_1_cannot_end_a_run():
    with pytest.raises(RecipeError, match="stop: the method evaluates no model before its first round"):
        rayfed_kd.prepare(BASE, ["method={name: fens}", "stop={metric: amp, at: 0.9}"])


def test_a_recipe_without_stop_has_none():
    assert load_recipe(BASE).stop is None


@pytest.mark.parametrize("engine", [{"local": True}, pytest.param({}, marks=pytest.mark.slow)])
def test_a_listener_ends_a_run_as_a_rule_does(engine, whole, tmp_path):
    def listen(event):
        if event["round"] == 3:  # not evaluated
            raise StopIteration

    changes = [f"results.folder={tmp_path}", "evaluation.every=2"]
    summary = rayfed_kd.run(BASE, changes, on_event=listen, **engine).summary
    assert (summary["status"], summary["stopped"]) == ("finished", "on_event raised StopIteration in round 3")
    assert summary["rounds"] in ((4,) if engine else (4, 6))  # on Ray the server is ahead of its listener
    assert rayfed_kd.resume(tmp_path, local=True).summary == summary
    gone_on = rayfed_kd.resume(tmp_path, rounds=6, local=True)
    torch.testing.assert_close(*(run.load("global").state_dict() for run in (gone_on, whole)), rtol=0, atol=0)
