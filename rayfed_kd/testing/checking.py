"""The check of a method: a recorded run, and repetitions of it that must give the same bits."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from rayfed_kd.cluster.engine.calls import StepCall, StepFacts, StepResult
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.errors import RunError
from rayfed_kd.experiment.preparation import find_own_modules, method_location, prepare
from rayfed_kd.experiment.running import run
from rayfed_kd.protocol import Method
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.sections.safety import CheckpointRecipe
from rayfed_kd.setting.blueprint import make_method
from rayfed_kd.setting.setting import Setting
from rayfed_kd.testing.rules import CLIENT_KEEPS, EVALUATES, ON_RAY, RULES, ContractError
from rayfed_kd.testing.runs import (
    MEASURED,
    BackwardsEngine,
    FirstCheckpointer,
    RecordingEngine,
    compare_outcomes,
    run_outcome,
)
from rayfed_kd.testing.watching import DRAWN, WatchedMethod, content, global_generators, own_attributes

SMALL: Mapping[str, Any] = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 4},
    "local": {"epochs": 1, "batch_size": 32},
    "sampling": {"fraction": 1.0},
    "rounds": 2,
}


def check_method(
    method: str | type[Method[Any, Any]],
    recipe: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    ray: bool = False,
) -> None:
    """Runs a method on a small recipe and holds it against every rule of `RULES`.

    The run of two rounds is repeated with the clients in another order and from a checkpoint; the last call
    of each step in each round is run again by hosts that know nothing of the clients. All of it happens in
    this process, with one torch thread. The global random generators are afterwards as they were. It prints a
    line about what it checked, which pytest shows with `-rP` or `-s`.

    Args:
        method: a registered name, `package.module:Object`, or a class at the top level of a module.
        recipe: sections that differ from those of `SMALL`, as `{"model": {"name": "mlp"}}`. `method` is not
            among them. A method that needs public data gets half of the training images.
        options: the method's options; others have their defaults.
        ray: also compares a run on Ray, where four clients lie on two actors, with one in this process. It
            uses the Ray of this process if there is one, else a private Ray; either takes many seconds.
    Raises:
        ContractError: a rule is broken; `rule` and `where` say which and where.
        RecipeError, RunError: the method refuses the recipe, or a step raised.
    """
    location = method if isinstance(method, str) else f"{method.__module__}:{method.__qualname__}"
    sections = {**SMALL, **(recipe or {}), "method": {"name": location, **(options or {})}}
    # One by one: a client of a group has other last bits than the same client alone, and no order of its own.
    sections["local"] = {"vectorise": "off", **sections["local"]}
    find_own_modules()
    small = load_recipe(sections)
    public = make_method(method_location(small), small.method).public
    if public != "none" and "public" not in sections["partition"]:
        given = {"fraction": 0.5, "labels": public == "labels"}
        sections["partition"] = {**sections["partition"], "public": given}
    with _undisturbed(), tempfile.TemporaryDirectory() as folder:
        setting = prepare(sections).setting
        _check_in_process(setting, Path(folder))
        if ray:
            _check_on_ray(sections, Path(folder))
    sys.stdout.write(f"{_summary(location, setting, ray=ray)}\n")


def _summary(location: str, setting: Setting, *, ray: bool) -> str:
    """Which rules the method was seen to keep, and on what."""
    recipe, rules = setting.recipe, (CLIENT_KEEPS, EVALUATES)  # rules and attributes of these names
    left = {rule: "the method says nothing there" for rule in rules if not getattr(setting.method, rule)}
    if not ray:
        left[ON_RAY] = "ray=True does"
    checked = ", ".join(rule for rule in RULES if rule not in left)
    rest = "".join(f"; not checked: {rule} ({why})" for rule, why in left.items())
    ran = (
        f"{recipe.partition.clients} clients, {recipe.rounds} rounds, {recipe.data.name}, {recipe.model.name}"
    )
    return f"{location} keeps the contract ({ran}): {checked}{rest}"


def _check_in_process(setting: Setting, folder: Path) -> None:
    method = setting.method
    outcomes = setting.architectures.outcomes
    watched = replace(setting, method=cast(Any, WatchedMethod(method)), outcomes=outcomes)
    engine = RecordingEngine(Host(watched, keep_states=setting.recipe.partition.clients))
    keeper = FirstCheckpointer(folder, CheckpointRecipe(every=1))
    generators, attributes = global_generators(), own_attributes(method)
    expected = run_outcome(watched, engine, keeper)
    if global_generators() != generators:
        raise ContractError("global random", "the server's part", DRAWN)
    changed = sorted(name for name, value in own_attributes(method).items() if attributes.get(name) != value)
    if changed:
        raise ContractError("frozen", "the run", f"it sets {', '.join(changed)}")
    for (round_index, step), (call, result) in engine.calls.items():
        _check_replayed(watched, f"round {round_index}, client {call.facts.client}, {step}", call, result)
    stateless = not any(result.facts.keeps_state for _, result in engine.calls.values())
    if method.client_keeps and (method.client_keeps == "nothing") != stateless:
        left = "no state" if stateless else "a state"
        raise ContractError(CLIENT_KEEPS, "its steps", f"it says {method.client_keeps!r}, they leave {left}")
    named = {row["model"] for (table, _), rows in expected.rows.items() if table == "metrics" for row in rows}
    if unnamed := named.difference(method.evaluates or named):
        raise ContractError(EVALUATES, "the run", f"it does not name {', '.join(sorted(unnamed))}")
    backwards = run_outcome(setting, BackwardsEngine(Host(setting, keep_states=0)))
    compare_outcomes("order", "a run whose clients go last first", backwards, expected)
    try:
        start = keeper.latest(engine.publish, "cpu", lambda line: None)
        resumed = run_outcome(setting, LocalEngine(Host(setting)), start=start)
    except RunError as error:
        raise ContractError("checkpoint", "the round after it", str(error)) from error
    compare_outcomes("checkpoint", "the round after it", resumed, expected)


def _check_on_ray(recipe: Mapping[str, Any], folder: Path) -> None:
    local = run(recipe, [f"results.folder={folder / 'local'}"], local=True)
    placed = [f"results.folder={folder / 'ray'}", "placement.clients_per_actor=2"]
    other = run(recipe, placed)
    rows = [
        {name: table.drop(MEASURED) if name == "rounds" else table for name, table in result.tables.items()}
        for result in (local, other)
    ]
    for name in ("rounds", "metrics", "scores", "clients", "messages"):
        if not rows[0][name].equals(rows[1][name]):
            raise ContractError(ON_RAY, "a run on two actors", f"the table {name} is another")
    for name, vector in local.models.items():
        if not np.array_equal(vector, other.models[name]):
            raise ContractError(ON_RAY, "a run on two actors", f"the model {name} is another")


def _check_replayed(watched: Setting, where: str, call: StepCall, result: StepResult) -> None:
    """Run a recorded call again on new hosts, which must fetch the state, under other global seeds."""
    replays = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        facts, parts, state = Host(watched, keep_states=0).step(call)
        replays.append(_contents(facts, parts, state.resolve()))
    recorded = _contents(result.facts, result.parts.resolve(), result.state.resolve())
    for name in recorded:
        if replays[0][name] != replays[1][name]:
            raise ContractError("replay", where, f"the second time its {name} is another")
        if replays[0][name] != recorded[name]:
            raise ContractError("complete state", where, f"where the state is fetched, its {name} is another")


def _contents(facts: StepFacts, parts: Any, state: Any) -> dict[str, Any]:
    reply = content(dict(parts)), dict(facts.metadata)
    return {"reply": reply, "log": dict(facts.logged), "state": content(state["state"])}


@contextmanager
def _undisturbed() -> Iterator[None]:
    """One torch thread, as a run has by default; the caller's threads and generators come back."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    numpy_state, python_state = np.random.get_state(), random.getstate()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
