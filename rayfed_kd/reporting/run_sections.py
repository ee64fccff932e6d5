"""Sections about the runs themselves: what ran, on which machine, how it ended, and the recipes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.comparison.studies import in_words
from rayfed_kd.reporting.reading import Run
from rayfed_kd.reporting.sections import Section, Table


def runs_section(runs: Sequence[Run]) -> Section:
    """What ran, on what, and how it ended: a table of what differs by run, then what all runs share.

    Args:
        runs: at least one.
    """
    facts = {run.label: _facts(run) for run in runs}
    first = next(iter(facts.values()))
    differing = [name for name in first if len({run_facts[name] for run_facts in facts.values()}) > 1]
    shared = [(name, value) for name, value in first.items() if value and name not in differing]
    tables = [Table("All runs" if len(runs) > 1 else "The run", ("", ""), shared, left=2)]
    if differing:
        rows = [(label, *(run_facts[name] for name in differing)) for label, run_facts in facts.items()]
        tables.insert(0, Table("Run by run", ("run", *differing), rows, left=len(differing) + 1))
    return Section("Runs" if len(runs) > 1 else "Run", _seed_notes(runs), tables)


def _seed_notes(runs: Sequence[Run]) -> list[str]:
    """How many seeds each row has, as `Seeds: 3 of A and B (1, 2 and 3)`; nothing where each has one run."""
    seeds: dict[str, list[int]] = {}
    for run in runs:
        seeds.setdefault(run.group, []).append(run.recipe.seed)
    if len(seeds) == len(runs):
        return []
    rows: dict[tuple[int, ...], list[str]] = {}
    for group, own in seeds.items():
        rows.setdefault(tuple(sorted(own)), []).append(group)
    parts = [
        f"{len(numbers)} of {in_words(groups)} ({in_words(map(str, numbers))})"
        for numbers, groups in rows.items()
    ]
    return [f"Seeds, all that are in the folders: {'; '.join(parts)}."]


def _facts(run: Run) -> dict[str, str]:
    recipe, environment = run.recipe, run.environment
    packages = {name: version for name, version in environment.get("packages", {}).items() if version}
    return {
        "method": _options_text(recipe.method.model_dump()),
        "paper": run.paper,
        "recipe": recipe.header.lstrip("# ").partition("\n")[0],
        "seed": str(recipe.seed),
        "status": run.status,
        "data": _options_text(recipe.data.model_dump(include={"name", "fraction", "augment"})),
        "model": _options_text(recipe.model.model_dump()),
        "client models": ""
        if recipe.client_models is None
        else _options_text(recipe.client_models.model_dump()),
        "partition": _options_text(recipe.partition.model_dump(exclude_none=True)),
        "sampling": _options_text(recipe.sampling.model_dump(exclude_none=True)),
        "local training": _options_text(recipe.local.model_dump()),
        "schedule": _options_text(recipe.schedule.model_dump()),
        "clock": _options_text(recipe.clock.model_dump()),
        "attack": "" if recipe.attack is None else _options_text(recipe.attack.model_dump(exclude_none=True)),
        "privacy": ""
        if recipe.privacy is None
        else _options_text(recipe.privacy.model_dump(exclude_none=True)),
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
        "command": _command(environment.get("command", [])),
    }


def _command(words: Sequence[str]) -> str:
    """A command as a reader would type it: without the folder that its program lies in."""
    return shlex.join([Path(word).name for word in words[:1]] + [*words[1:]])


def _options_text(value: Any) -> str:
    """Nested options in a line, as `adam (lr 0.001)`."""
    if isinstance(value, Mapping):
        named = dict(value)
        name = named.pop("name", "")
        texts = ", ".join(f"{key} {_options_text(inner)}" for key, inner in named.items())
        return f"{name} ({texts})" if name and texts else name or texts
    if isinstance(value, list):
        return f"[{', '.join(map(_options_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def recipes_section(runs: Sequence[Run]) -> Section:
    """Each run's config.yaml, folded."""
    return Section("Recipes", folded={f"config.yaml of {run.label}": run.recipe_text for run in runs})
