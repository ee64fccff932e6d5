"""What `rayfed-kd methods` and `rayfed-kd models` print.

All facts are derived from the methods themselves, so a method of a user's own is listed like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

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
from rayfed_kd.protocol.crossing import check_declared
from rayfed_kd.recipe.registry import OWN_METHODS, blaming, load_object, locate, options_of
from rayfed_kd.recipe.validation import model_in
from rayfed_kd.timing.reading import schedules_in_rounds

WIDTH = 100  # columns of files and pipes
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


def page_width(console: Console) -> Console:
    """The console itself on a terminal; one of 100 columns for a file or pipe.

    Args:
        console: where to print.
    """
    return console if console.is_terminal else Console(width=WIDTH, file=console.file, highlight=False)


def methods_overview(methods: Mapping[str, str]) -> Table:
    """All methods with paper, messages, states, public data and schedules, 100 columns wide.

    Args:
        methods: name -> location, as package.module:Object.
    """
    overview = Table.grid()
    for name, location in methods.items():
        method: AnyMethod = load_object(location, "method.name")
        overview.add_row(_title(name, method))
        columns = Table.grid(padding=(0, 1, 0, 0))
        for width in (1, 20, 25, 27, 23):
            columns.add_column(width=width)
        default = by_default(method)
        columns.add_row(
            "",
            Text(method.paper, style="dim"),
            Text(f"down: {_parts_by_kind(default.down)}\nup: {_parts_by_kind(default.up)}"),
            Text(f"server: {method.server_keeps}\nclient: {method.client_keeps}"),
            Text(_conditions(method)),
        )
        overview.add_row(columns)
        overview.add_row("")
    return overview


def _conditions(method: AnyMethod) -> str:
    """What a method needs, and which of its clients' work `local.vectorise` batches over clients."""
    group = method.group_training or "nothing"
    return f"public data: {public_data(method)}\nschedules: {schedules(method)}\nin a group: {group}"


def method_facts(name: str, methods: Mapping[str, str]) -> list[Text | Table]:
    """One method: the overview's facts, whether clients may have models of their own, and every option.

    Args:
        name: a name of `methods`, or package.module:Object.
        methods: name -> location.

    Returns: the parts to print, in order.

    Raises:
        RecipeError: there is no such method, and it names the nearest; or what the class says cannot be read.
    """
    location = locate(name, methods, "method")
    method: AnyMethod = OWN_METHODS.find(location, "method")
    with blaming(f"method: {name}"):
        check_declared(name, by_default(method), {})
        return _facts(name, location, method)


def _facts(name: str, location: str, method: AnyMethod) -> list[Text | Table]:
    facts, default = Table.grid(padding=(0, 2)), by_default(method)
    for fact, text in {
        "paper": method.paper,
        "code": location,
        "down": _parts_by_kind(default.down),
        "up": _parts_by_kind(default.up),
        "server keeps": method.server_keeps,
        "client keeps": method.client_keeps,
        "public data": public_data(method),
        "schedules": schedules(method),
        "in a group": method.group_training or "nothing",
        "models": "clients may have their own (client_models)" if method.heterogeneous else "one for all",
    }.items():
        facts.add_row(Text(f"  {fact}"), Text(str(text or "not said")))
    return [_title(name, method), facts, _options_table(options_of(method))]


def _title(name: str, method: AnyMethod) -> Text:
    return Text.assemble((name, "bold"), f": {method.summary}" if method.summary else "")


def _options_table(model: type[BaseModel]) -> Text | Table:
    rows = option_rows(model)
    if not rows:
        return Text("  no options")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("option", no_wrap=True)  # to be copied: never cut or folded
    for heading in ("default", "takes", "what it is"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(Text, row))
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
        f"{name}: {shown}": other
        for name, field in model.model_fields.items()
        for shown, choice in _choices(field)
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


def model_lines() -> Iterator[str]:
    """The lines about each classifier and generator: its name, what it is, and its options."""
    for kind, registered in (("classifier", CLASSIFIERS), ("generator", GENERATORS)):
        for name, location in registered.items():
            make = load_object(location, "model.name")
            first = (make.__doc__ or "").strip().splitlines()
            yield f"{name} ({kind}): {first[0] if first else ''}"
            yield from _model_option_lines(options_of(make))


def _parts_by_kind(declared: Declaration) -> str:
    kinds: dict[str, list[str]] = {}
    for name, kind in declared.items():
        kinds.setdefault(str(kind), []).append(name)
    return ", ".join(f"{', '.join(names)} ({kind})" for kind, names in kinds.items()) or "nothing"


def _model_option_lines(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = default.model_dump() if isinstance(default, BaseModel) else default
        yield f"    {name} = {shown!r}{'  ' + field.description if field.description else ''}"


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
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_values_text(schema.get('items', {}), parts)}"
    bounds = [f"{sign} {schema[bound]:g}" for bound, sign in BOUNDS.items() if bound in schema]
    return f"{TYPES.get(schema.get('type', ''), 'any value')} {', '.join(bounds)}".strip()
