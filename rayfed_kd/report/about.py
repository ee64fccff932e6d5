"""What ran, on what, and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rayfed_kd.recipe.registry import load_object
from rayfed_kd.report.parts import Section, Table
from rayfed_kd.report.reading import Run


def runs_section(runs: Sequence[Run], methods: Mapping[str, str]) -> Section:
    """What ran, on what, and how it ended: what all runs share, then what tells them apart."""
    facts = {run.label: _facts(run, methods) for run in runs}
    first = next(iter(facts.values()))
    apart = [name for name in first if len({found[name] for found in facts.values()}) > 1]
    shared = [(name, value) for name, value in first.items() if value and name not in apart]
    tables = [Table("All runs" if len(runs) > 1 else "The run", ("", ""), shared, left=2)]
    if apart:
        rows = [(label, *(found[name] for name in apart)) for label, found in facts.items()]
        tables.insert(0, Table("Run by run", ("run", *apart), rows, left=len(apart) + 1))
    return Section("Runs" if len(runs) > 1 else "Run", tables=tables)


def _facts(run: Run, methods: Mapping[str, str]) -> dict[str, str]:
    recipe, environment = run.recipe, run.environment
    packages = {name: version for name, version in environment.get("packages", {}).items() if version}
    return {
        "method": _brief(recipe.method.model_dump()),
        "paper": _paper(recipe.method.name, methods),
        "recipe": recipe.header.lstrip("# ").partition("\n")[0],
        "seed": str(recipe.seed),
        "status": run.status,
        "data": _brief(recipe.data.model_dump(include={"name", "fraction", "augment"})),
        "model": _brief(recipe.model.model_dump()),
        "client models": "" if recipe.client_models is None else _brief(recipe.client_models.model_dump()),
        "partition": _brief(recipe.partition.model_dump(exclude_none=True)),
        "sampling": _brief(recipe.sampling.model_dump(exclude_none=True)),
        "local training": _brief(recipe.local.model_dump()),
        "schedule": _brief(recipe.schedule.model_dump()),
        "clock": _brief(recipe.clock.model_dump()),
        "attack": "" if recipe.attack is None else _brief(recipe.attack.model_dump(exclude_none=True)),
        "folder": str(run.folder),
        "started": environment.get("started", ""),
        "engine": environment.get("engine", ""),
        "versions": ", ".join(
            [f"Python {environment.get('python', 'not noted')}", *(f"{n} {v}" for n, v in packages.items())]
        ),
        "machine": ", ".join(
            [
                *(environment.get(key, "") for key in ("system", "instruction_set")),
                *environment.get("gpus", []),
            ]
        ).strip(", "),
        "command": shlex.join(environment.get("command", [])),
    }


def _paper(method: str, methods: Mapping[str, str]) -> str:
    if method not in methods:  # a folder that is only read must not say what is imported
        return "a method of its own"
    return str(load_object(methods[method], "method.name").paper)


def _brief(value: Any) -> str:
    """Nested options in a line: `adam (lr 0.001)`."""
    if isinstance(value, Mapping):
        named = dict(value)
        name = named.pop("name", "")
        told = ", ".join(f"{key} {_brief(inner)}" for key, inner in named.items())
        return f"{name} ({told})" if name and told else name or told
    if isinstance(value, list):
        return f"[{', '.join(map(_brief, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def recipes_section(runs: Sequence[Run]) -> Section:
    """Each run's config.yaml."""
    return Section("Recipes", folded={f"config.yaml of {run.label}": run.recipe_text for run in runs})
