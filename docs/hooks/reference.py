"""MkDocs hook: the tables of docs/reference/recipe.md, made of the models that check a recipe.

`python docs/hooks/reference.py` prints them. examples.yaml beside it has an example of every key, and of each
thing that asks for options or shows some; the others have a plain one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from rayfed_kd.algorithms import METHODS
from rayfed_kd.cli.listing import OptionRow, option_rows
from rayfed_kd.data import SOURCES
from rayfed_kd.data.partition import SCHEMES
from rayfed_kd.features.codecs.loading import CODECS
from rayfed_kd.models import CLASSIFIERS, GENERATORS
from rayfed_kd.recipe.registry import load_object, options_model
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.recipe.sections.torch_optimizers import OPTIMIZERS, defaults, torch_class
from rayfed_kd.recipe.timing import CLOCKS, SCHEDULES
from rayfed_kd.results.trackers.tracking import TRACKERS
from rayfed_kd.setting.metrics import METRICS
from rayfed_kd.timing import StalenessRule
from rayfed_kd.timing.staleness import STALENESS_RULES

ROOT = Path(__file__).parents[2]
PAGE = "reference/recipe.md"
EXAMPLES: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("examples.yaml").read_text("utf8"))

# Of a thing without an example of its own.
PLAIN_EXAMPLES = {
    "method": "method={{name: {}}}",
    "model": "model.name={}",
    "data": "data.name={}",
    "partition": "partition={{name: {}, clients: 10}}",
    "metric": "evaluation.metrics=[{}]",
    "schedule": "schedule.name={}",
    "staleness": "schedule={{name: buffered, buffer: 2, staleness: {{name: {}}}}}",
    "clock": "clock.name={}",
    "codec": "codec.up={{weights: [{}]}}",
    "tracker": "results.trackers=[{}]",
}


def example_of(kind: str, name: str) -> str:
    """An example of a thing, or of one of the `keys`. Raises: KeyError if only examples.yaml can say it."""
    if name in EXAMPLES.get(kind, {}):
        return str(EXAMPLES[kind][name])
    if kind not in PLAIN_EXAMPLES:
        raise KeyError(f"docs/hooks/examples.yaml has no example {kind}: {name}")
    return PLAIN_EXAMPLES[kind].format(name)


# What a key that names a thing says of the options beside the name.
OPTIONS_BELOW = {
    "method": "[Methods](#methods)",
    "model": "[Models](#models)",
    "client_models.models": "[Models](#models)",
    "data": "[Data](#data_1)",
    "local.optimizer": "[Optimisers](#optimisers)",
    "partition": "[Partitions](#partitions)",
    "schedule": "[Schedules](#schedules)",
    "clock": "[Clocks](#clocks)",
    "evaluation.metrics": "[Metrics](#metrics)",
    "results.trackers": "[Trackers](#trackers)",
}


# What the sections are that have no keys of their own beside the name.
NAMED_SECTIONS = {
    "method": "The method. It is the only section that a recipe must have.",
    "model": "The classifier of the clients.",
    "schedule": "Which clients are asked when, and which replies form an update.",
    "clock": "How long each client takes, in simulated seconds.",
}


def recipe_rows() -> list[OptionRow]:
    """Every key of a recipe's frame, in the schema's order; a section before its keys."""
    return rows_of(Recipe)


def rows_of(model: type[BaseModel]) -> list[OptionRow]:
    """Every option of a model; a choice by name needs no text, a staleness rule has its name as default."""
    rules = {
        name: field.default
        for name, field in model.model_fields.items()
        if isinstance(field.default, StalenessRule)
    }
    rows = []
    for row in option_rows(model):
        if row.option in rules:
            row = row._replace(default=f"{{name: {_rule_name(rules[row.option])}}}")  # noqa: PLW2901
        elif row.option.split(".")[-1] == "name" and not row.meaning:
            row = row._replace(meaning="which one")  # noqa: PLW2901
        rows.append(row)
    return rows


def _rule_name(rule: StalenessRule) -> str:
    return next(name for name, location in STALENESS_RULES.items() if type(rule) is load_object(location, ""))


def keys() -> str:
    """One table for each section of a recipe, and one for the keys that have no section."""
    rows = recipe_rows()
    sections = [row.option for row in rows if any(r.option.startswith(f"{row.option}.") for r in rows)]
    parts = []
    for section in (s for s in sections if "." not in s):
        head = next(row for row in rows if row.option == section)
        told = NAMED_SECTIONS.get(section, f"{head.meaning.rstrip('.')}.")
        if head.default:
            told += f" The default is `{head.default}`: none."
        inner = [row for row in rows if row.option.startswith(f"{section}.")]
        parts += [f"### {section}", told, markdown_table(_key_cells(inner))]
    single = [row for row in rows if row.option.split(".")[0] not in sections]
    parts += ["### Keys without a section", markdown_table(_key_cells(single))]
    return "\n\n".join(parts)


def _key_cells(rows: Sequence[OptionRow]) -> Iterator[Sequence[str]]:
    yield "key", "default", "takes", "meaning", "example"
    for row in rows:
        if row.option.endswith(".*"):
            below = OPTIONS_BELOW[row.option.removesuffix(".*")]
            yield f"`{row.option}`", "", "", f"the options of what is named: {below}", ""
            continue
        yield (
            _code(row.option),
            _code(row.default),
            row.takes,
            row.meaning,
            _code(example_of("keys", row.option)),
        )


def methods() -> str:
    """Every method with its options and an example, from a recipe of the repository where there is one."""
    recipes = _shipped()
    parts = []
    for name, location in METHODS.items():
        method = load_object(location, "method")
        if name in recipes:
            path, section = recipes[name]
            example = f"Example, from `{path}`: `method: {_flow(section)}`"
        else:
            example = f"Example: {_code(example_of('method', name))}"
        told = f"{method.summary}. {method.paper}" if method.paper else method.summary
        parts += [f"### {name}", f"{told}.", option_table(method.options_model()), example]
    return "\n\n".join(parts)


def _shipped() -> Mapping[str, tuple[Path, Mapping[str, Any]]]:
    """Method -> the first recipe below configs/ that runs it, and what that has under `method`."""
    recipes: dict[str, tuple[Path, Mapping[str, Any]]] = {}
    for path in sorted(ROOT.glob("configs/*/*.yaml")):
        section = yaml.safe_load(path.read_text("utf8")).get("method")
        if section:
            recipes.setdefault(section["name"], (path.relative_to(ROOT), section))
    return recipes


def models() -> str:
    """Classifiers and generators."""
    return "\n\n".join(
        [
            _things("model", CLASSIFIERS, options_model),
            "The generators below stand under a method's `generator`.",
            _things("generator", GENERATORS, options_model),
        ]
    )


def data() -> str:
    """Data sources."""
    return _things("data", SOURCES, options_model)


def partitions() -> str:
    """Partition schemes."""
    return _things("partition", SCHEMES, options_model)


def metrics() -> str:
    """Metrics beside those of every evaluation."""
    return _things("metric", METRICS, options_model)


def schedules() -> str:
    """Schedules."""
    return _things("schedule", SCHEDULES, lambda schedule: schedule.options_model())


def staleness() -> str:
    """Staleness rules: their fields are their options."""
    return _things("staleness", STALENESS_RULES, lambda rule: rule)


def clocks() -> str:
    """Clocks."""
    return _things("clock", CLOCKS, lambda clock: clock.options_model())


def codecs() -> str:
    """Codecs."""
    return _things("codec", CODECS, options_model)


def trackers() -> str:
    """Trackers."""
    return _things("tracker", TRACKERS, options_model)


def optimizers() -> str:
    """The optimisers of `torch.optim`, with all options and their defaults; SGD and Adam have two of ours."""
    heading = ("optimiser", "class", "options", "example")
    rows = []
    for name in OPTIMIZERS:
        own = OptimizerRecipe(name=name)
        options = {**defaults(name), "lr": own.lr, "weight_decay": own.weight_decay}
        shown = {option: value for option, value in options.items() if option in defaults(name)}
        rows.append(
            (
                _code(name),
                _code(f"torch.optim.{torch_class(name).__name__}"),
                _flow(shown)[1:-1],
                _code(_optimizer(name)),
            )
        )
    return markdown_table([heading, *rows])


def _optimizer(name: str) -> str:
    return f"local.optimizer={{name: {name}, lr: {OptimizerRecipe(name=name).lr}}}"


def _things(kind: str, registered: Mapping[str, str], model_of: Callable[[Any], type[BaseModel]]) -> str:
    parts = []
    for name, location in registered.items():
        thing = load_object(location, kind)
        parts += [
            f"### {name}",
            first_paragraph(thing.__doc__),
            option_table(model_of(thing)),
            f"Example: {_code(example_of(kind, name))}",
        ]
    return "\n\n".join(parts)


def first_paragraph(docstring: str | None) -> str:
    """A docstring's first paragraph as one line."""
    return " ".join((docstring or "").strip().split("\n\n")[0].split())


def option_table(model: type[BaseModel]) -> str:
    rows = rows_of(model)
    if not rows:
        return "It has no options."
    cells = [(_code(row.option), _code(row.default), row.takes, row.meaning) for row in rows]
    return markdown_table([("option", "default", "takes", "meaning"), *cells])


def markdown_table(rows: Any) -> str:
    heading, *body = rows
    ruled = [heading, ["---"] * len(heading), *body]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in ruled)


def _cell(text: str) -> str:
    """Text of a cell: a bar would end the cell, two dollars would be a formula, a star would be emphasis."""
    if text.startswith("`"):
        return text.replace("|", "\\|")
    return re.sub(r"(?<!`)([|$*])(?!`)", r"\\\1", text).replace("<", "&lt;")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()


PARTS: Mapping[str, Callable[[], str]] = {
    "keys": keys,
    "methods": methods,
    "models": models,
    "optimizers": optimizers,
    "data": data,
    "partitions": partitions,
    "metrics": metrics,
    "schedules": schedules,
    "staleness": staleness,
    "clocks": clocks,
    "codecs": codecs,
    "trackers": trackers,
}


def written(markdown: str) -> str:
    """The page with every `<!-- generated: PART -->` replaced by that part.

    Raises: KeyError if there is no such part.
    """
    return re.sub(r"<!-- generated: (\w+) -->", lambda match: PARTS[match[1]](), markdown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with each page's Markdown."""
    return written(markdown) if page.file.src_uri == PAGE else markdown


if __name__ == "__main__":
    asked = sys.argv[1:]
    if unknown := sorted(set(asked) - set(PARTS)):
        sys.exit(f"{unknown[0]}: expected some of {', '.join(PARTS)}, or nothing for the whole page")
    whole = "" if asked else written((ROOT / "docs" / PAGE).read_text("utf8"))
    sys.stdout.write(whole + "\n".join(f"## {part}\n\n{PARTS[part]()}\n" for part in asked))
