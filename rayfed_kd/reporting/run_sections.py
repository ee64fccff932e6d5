"""Sections about the runs themselves: what ran, on which machine, how it ended, and the recipes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.comparison.row_notes import flat_settings
from rayfed_kd.errors import in_words
from rayfed_kd.reporting.reading import Run
from rayfed_kd.reporting.sections import Section
from rayfed_kd.results.screen_table import TextTable

# Sections of a recipe that `_facts` has whole.
SHOWN = ("model", "client_models", "partition", "sampling", "local", "schedule", "clock", "attack", "privacy")
SHOWN_OF_DATA = ("data.name", "data.fraction", "data.augment")


def runs_section(runs: Sequence[Run]) -> Section:
    """Method, data, machine and status of each run: a table of what differs, then what all runs share.

    Args:
        runs: at least one.
    """
    others = _other_settings(runs)
    facts = {run.label: _facts(run, others[run.label]) for run in runs}
    first = next(iter(facts.values()))
    differing = [name for name in first if len({run_facts[name] for run_facts in facts.values()}) > 1]
    shared = [(name, value) for name, value in first.items() if value and name not in differing]
    tables = [TextTable("All runs" if len(runs) > 1 else "The run", ("", ""), shared, left=2)]
    if differing:
        rows = [(label, *(run_facts[name] for name in differing)) for label, run_facts in facts.items()]
        tables.insert(0, TextTable("Run by run", ("run", *differing), rows, left=len(differing) + 1))
    return Section("Runs" if len(runs) > 1 else "Run", tables=tables)


def _facts(run: Run, others: Mapping[str, str]) -> dict[str, str]:
    """What is told of a run; `others` are settings in which runs of the report differ."""
    recipe, environment = run.recipe, run.environment
    packages = {name: version for name, version in environment.get("packages", {}).items() if version}
    versions = [
        f"Python {environment.get('python', 'not noted')}",
        *(f"{name} {version}" for name, version in packages.items()),
    ]
    machine = [environment.get(key, "") for key in ("system", "instruction_set")]
    sections, file = recipe.model_dump(include=set(SHOWN), exclude_none=True), recipe.partition.file
    if file is not None:  # the scheme that stands beside it has drawn nothing
        unused = ("name", "file", *recipe.partition.options)
        others_of_it = {key: value for key, value in sections["partition"].items() if key not in unused}
        sections["partition"] = {"name": f"from {file}", **others_of_it}
    return {
        "method": _options_text(recipe.method.model_dump()),
        "paper": run.paper,
        "recipe": recipe.header.lstrip("# ").partition("\n")[0],
        "seed": str(recipe.seed),
        "status": run.status,
        "data": _options_text(recipe.data.model_dump(include={"name", "fraction", "augment"})),
        **{key.replace("_", " "): _options_text(sections.get(key, "")) for key in SHOWN},
        **others,
        "folder": str(run.folder),
        "started": environment.get("started", ""),
        "engine": environment.get("engine", ""),
        "versions": ", ".join(versions),
        "machine": ", ".join([*machine, *environment.get("gpus", [])]).strip(", "),
        "command": _command(environment.get("command", [])),
    }


def _other_settings(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Run -> key -> value, of the recipes' other keys in which runs differ: nothing may differ unsaid."""
    recipes = {run.label: flat_settings(run.recipe) for run in runs}
    keys = sorted({key for settings in recipes.values() for key in settings})
    texts = {
        label: {key: _options_text(settings[key]) if key in settings else "" for key in keys}
        for label, settings in recipes.items()
    }
    differing = [
        key
        for key in keys
        if key.partition(".")[0] not in SHOWN
        and key not in SHOWN_OF_DATA
        and len({settings[key] for settings in texts.values()}) > 1
    ]
    return {label: {key: settings[key] for key in differing} for label, settings in texts.items()}


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


# A row's seeds differ in these lines of config.yaml, and in no other.
_OWN_LINES = re.compile(r"^(seed:|  folder:).*$", re.MULTILINE)


def recipes_section(runs: Sequence[Run]) -> Section:
    """Each row's config.yaml, folded: that of its first seed, with the others named."""
    alike: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        alike.setdefault((run.group, _OWN_LINES.sub("", run.recipe_text)), []).append(run)
    return Section("Recipes", folded={_recipe_title(same): same[0].recipe_text for same in alike.values()})


def _recipe_title(runs: Sequence[Run]) -> str:
    """Whose text it is: of one run, or of a row's runs that differ in seed and folder alone."""
    first, *others = runs
    if not others:
        return f"config.yaml of {first.label}"
    seeds = in_words(str(run.recipe.seed) for run in runs)
    return f"config.yaml of {first.group}, seeds {seeds}: that of seed {first.recipe.seed}"
