"""What `rayfed-kd methods` and `rayfed-kd models` print.

All facts are derived from the methods themselves, so a method of a user's own is listed like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

import click
from annotated_types import Ge
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rayfed_kd.models import CLASSIFIERS, GENERATORS
from rayfed_kd.protocol import Declaration, Method
from rayfed_kd.protocol.declared import check_declared
from rayfed_kd.recipe.registry import OWN_METHODS, blaming, load_object, locate, options_of
from rayfed_kd.recipe.validation import model_in
from rayfed_kd.timing.reading import schedules_in_rounds

WIDTH = 100  # columns of files and pipes
SAID = ("summary", "paper", "server_keeps", "client_keeps")  # by the class itself
CONDITIONS = ("public_data", "schedules", "in_a_group")  # of `method_facts`: what a method needs
PUBLIC = {"none": "none", "samples": "unlabelled", "labels": "labelled"}
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
TYPES = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true, false",
    "string": "text",
    "object": "keys",
    "null": "null",
}

AnyMethod = type[Method[Any, Any]]


class OptionRow(NamedTuple):
    """What is shown of an option, all as text.

    Attributes:
        option: its name, those of a part as part.option.
        default: its default, or `required`.
        takes: which values it takes.
        meaning: its description.
    """

    option: str
    default: str
    takes: str
    meaning: str


def echo_json(content: object) -> None:
    """Print what a command found as JSON, on standard output, with paths and infinity as texts."""
    plain = json.loads(json.dumps(content, default=str), parse_constant=lambda name: str(float(name)))
    click.echo(json.dumps(plain, indent=2))


def page_width(console: Console) -> Console:
    """The console itself on a terminal; one of 100 columns for a file or pipe.

    Args:
        console: where to print.
    """
    return console if console.is_terminal else Console(width=WIDTH, file=console.file, highlight=False)


def methods_overview(listed: Iterable[Mapping[str, Any]]) -> Table:
    """All methods with paper, messages, states, public data and schedules, 100 columns wide.

    Args:
        listed: what `method_facts` says of each.
    """
    overview = Table.grid()
    for facts in listed:
        overview.add_row(_title(facts))
        columns = Table.grid(padding=(0, 1, 0, 0))
        for width in (1, 20, 25, 27, 23):
            columns.add_column(width=width)
        columns.add_row(
            "",
            Text(facts["paper"], style="dim"),
            Text(f"down: {facts['down']}\nup: {facts['up']}"),
            Text(f"server: {facts['server_keeps']}\nclient: {facts['client_keeps']}"),
            Text("\n".join(f"{name.replace('_', ' ')}: {facts[name]}" for name in CONDITIONS)),
        )
        overview.add_row(columns)
        overview.add_row("")
    return overview


def method_facts(name: str, methods: Mapping[str, str]) -> dict[str, Any]:
    """What is known of a method, by name: summary, paper, messages, states, needs, and every option.

    Args:
        name: a name of `methods`, or package.module:Object.
        methods: name -> location.

    Raises:
        RecipeError: there is no such method, and it names the nearest; or what the class says cannot be read.
    """
    location = locate(name, methods, "method")
    method: AnyMethod = OWN_METHODS.find(location, "method")
    with blaming(f"method: {name}"):
        default = by_default(method)
        check_declared(name, default, {})
        return {
            "name": name,
            **{fact: getattr(method, fact) for fact in SAID},
            "code": location,
            "down": _parts_by_kind(default.down),
            "up": _parts_by_kind(default.up),
            "public_data": public_data(method),
            "schedules": schedules(method),
            "in_a_group": method.group_training or "nothing",
            "models": "clients may have their own (client_models)" if method.heterogeneous else "one for all",
            "options": [row._asdict() for row in option_rows(options_of(method))],
        }


def method_page(facts: Mapping[str, Any]) -> list[Text | Table]:
    """One method for people: its facts, and a table of its options; parts to print, in order."""
    listed = Table.grid(padding=(0, 2))
    for name, text in facts.items():
        if name not in ("name", "summary", "options"):
            listed.add_row(Text(f"  {name.replace('_', ' ')}"), Text(str(text or "not said")))
    return [_title(facts), listed, _options_table(facts["options"])]


def _title(facts: Mapping[str, Any]) -> Text:
    return Text.assemble((facts["name"], "bold"), f": {facts['summary']}" if facts["summary"] else "")


def _options_table(rows: Sequence[Mapping[str, str]]) -> Text | Table:
    if not rows:
        return Text("  no options")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("option", no_wrap=True)  # to be copied: never cut or folded
    for heading in ("default", "takes", "what it is"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return table


def public_data(method: AnyMethod) -> str:
    """What the method needs of `partition.public`: none, unlabelled or labelled.

    Returns: what it needs by default, and with every single choice of an option that changes it.
    """
    return _fact_by_options(method, lambda configured: PUBLIC[configured.public])


def schedules(method: AnyMethod) -> str:
    """The schedules that the method runs under.

    Returns: those by default, and with every single choice of an option that changes them.
    """
    return _fact_by_options(
        method, lambda configured: "all" if configured.asynchronous else ", ".join(schedules_in_rounds())
    )


def by_default(method: AnyMethod) -> Method[Any, Any]:
    """The method with its options' defaults."""
    # `model_construct` does not validate: facts of a method need no value of its required options.
    return method(options_of(method).model_construct())


def _fact_by_options(method: AnyMethod, fact: Callable[[Method[Any, Any]], str]) -> str:
    """A fact that the method itself tells, and what it tells with other choices of one option."""
    model, usual = options_of(method), fact(by_default(method))
    changing = {
        f"{name}: {text}": other
        for name, field in model.model_fields.items()
        for text, choice in _choices(field)
        if (other := fact(method(model.model_construct(**{name: choice})))) != usual
    }
    return "; ".join([usual, *(f"{other} if {choice}" for choice, other in changing.items())])


def _choices(field: FieldInfo) -> Iterator[tuple[str, Any]]:
    """Choices of an option, as text and value: every word, a number's least, a part with its defaults."""
    part = model_in(field.annotation)
    if get_origin(field.annotation) is Literal:
        yield from ((str(choice), choice) for choice in get_args(field.annotation))
    elif part is not None:
        yield "{}", part.model_construct()
    else:
        yield from ((str(bound.ge), bound.ge) for bound in field.metadata if isinstance(bound, Ge))


def model_facts() -> Iterator[dict[str, Any]]:
    """What is known of each classifier and generator: name, kind, summary and options."""
    for kind, registered in (("classifier", CLASSIFIERS), ("generator", GENERATORS)):
        for name, location in registered.items():
            make = load_object(location, "model.name")
            summary = (make.__doc__ or "").strip().partition("\n")[0]
            options = [row._asdict() for row in option_rows(options_of(make))]
            yield {"name": name, "kind": kind, "summary": summary, "options": options}


def model_lines(listed: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The same as lines for people.

    Args:
        listed: as `model_facts` gives them.
    """
    for facts in listed:
        yield f"{facts['name']} ({facts['kind']}): {facts['summary']}"
        for row in facts["options"]:
            yield f"    {row['option']} = {row['default']}  {row['meaning']}".rstrip()


def _parts_by_kind(declared: Declaration) -> str:
    kinds: dict[str, list[str]] = {}
    for name, kind in declared.items():
        kinds.setdefault(str(kind), []).append(name)
    return ", ".join(f"{', '.join(names)} ({kind})" for kind, names in kinds.items()) or "nothing"


def option_rows(model: type[BaseModel]) -> list[OptionRow]:
    """Every option of a model of options; those of a part come after the part.

    Args:
        model: a method's options.

    Returns: a row per option. A part's own row has no default unless it may be null.
    """
    schema = model.model_json_schema()
    return list(_walk_options(model, schema, schema.get("$defs", {})))


def _walk_options(
    model: type[BaseModel], schema: Mapping[str, Any], parts: Mapping[str, Any], prefix: str = ""
) -> Iterator[OptionRow]:
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        inner = model_in(field.annotation)
        default_text = "" if inner is field.annotation else _default_text(default)
        meaning = (field.description or (inner.__doc__ if inner else None) or "").strip().split("\n")[0]
        values = _values_text(schema["properties"][name], parts)
        yield OptionRow(f"{prefix}{name}", default_text, values, meaning)
        if inner is not None:
            yield from _walk_options(inner, parts[inner.__name__], parts, f"{prefix}{name}.")
    if model.model_config.get("extra") == "allow":
        others = getattr(model, "other_options", "the options of what is named: `rayfed-kd models`")
        yield OptionRow(f"{prefix}*", "", "", others)


def _default_text(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    return default if isinstance(default, str) else json.dumps(default)


def _values_text(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """The values that an option takes, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(_values_text(kind, parts) for kind in schema["anyOf"])
    if "$ref" in schema:
        return "keys"
    if "enum" in schema:
        return ", ".join(map(_default_text, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_values_text(schema.get('items', {}), parts)}"
    bounds = [f"{sign} {schema[bound]:g}" for bound, sign in BOUNDS.items() if bound in schema]
    return f"{TYPES.get(schema.get('type', ''), 'any value')} {', '.join(bounds)}".strip()
