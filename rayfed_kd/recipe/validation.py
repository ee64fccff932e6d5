"""Values checked against a model; the first fault as a message: what, where, what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from rayfed_kd.errors import RecipeError, nearest, shortened, shown
from rayfed_kd.recipe.sections.torch_optimizers import OptionError
from rayfed_kd.recipe.yaml_documents import read_yaml_file

Model = TypeVar("Model", bound=BaseModel)


def validate(
    model: type[Model], raw: Any, prefix: str = "", owner: str = "", beside: Sequence[str] = ()
) -> Model:
    """`raw` as `model`; the first fault becomes a RecipeError.

    Args:
        prefix: the recipe's path of `raw`, as `method`.
        owner: what the options belong to, as `fedkf`; the recipe itself if empty.
        beside: keys that the recipe may have there as well, taken out of `raw` before.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise _explained(model, error, raw, prefix, owner, beside) from None


@cache
def _elsewhere() -> Mapping[str, str]:
    """Keys that others have, or that stand elsewhere in a recipe -> what to write here."""
    ours = read_yaml_file(Path(__file__).with_name("elsewhere.yaml"), "table of keys")
    return {theirs: key for key, known in ours.items() for theirs in known}


def _path(prefix: str, steps: Sequence[str]) -> str:
    return ".".join(filter(None, [prefix, *map(shortened, steps)]))


def _explained(
    model: type[BaseModel],
    error: ValidationError,
    raw: Any,
    prefix: str,
    owner: str,
    beside: Iterable[str],
) -> RecipeError:
    faults = error.errors(include_url=False)
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    steps = _steps(raw, fault)
    path = _path(prefix, steps)
    if fault["type"] == "extra_forbidden":
        return _unknown_key(model, steps, prefix, owner, beside)
    if fault["type"] == "missing":
        return RecipeError(f"{path} is missing.")
    if fault["type"] == "value_error":
        message, hint = fault["ctx"]["error"], None
        if isinstance(message, OptionError):
            hint = _elsewhere().get(message.option, f"{path}.{message.near}" if message.near else None)
        return RecipeError(f"{path + ': ' if path else ''}{message}", hint=hint)
    _, field = _field_at(model, steps)
    meaning = f" ({field.description})" if field is not None and field.description else ""
    expected = " or ".join(_expected(f) for f in faults if _steps(raw, f) == steps)
    _, name = _field_at(model, [*steps, "name"])
    if fault["type"] == "list_type" and not isinstance(fault["input"], Mapping):
        expected += f", as '{path}=[{shortened(str(fault['input']))}]'"
    elif name is not None and isinstance(fault["input"], str):
        expected += f", as '{path}={{name: {shortened(fault['input'])}}}'"
    near = nearest(str(fault["input"]), re.findall(r"'(\w+)'", expected))
    return RecipeError(f"{path} = {shown(fault['input'])}: expected {expected}{meaning}.", hint=near)


def _unknown_key(
    model: type[BaseModel], steps: Sequence[str], prefix: str, owner: str, beside: Iterable[str]
) -> RecipeError:
    section, _ = _field_at(model, steps[:-1])
    known = list(section.model_fields) if section else []
    beside = [*beside] if len(steps) == 1 else []
    near = nearest(steps[-1], [*known, *beside])
    parent = _path(prefix, steps[:-1])
    called = getattr(model, "called", "a recipe")
    whose = f"no option of {owner}" if owner else f"no key of {parent or called}"
    # Often left over from the recipe when only a name was changed. An element of a list has no path of its
    # own on the command line.
    named = owner and len(steps) == 1 and not parent.rpartition(".")[2].isdigit()
    advice = f" '{parent}={{name: {owner}}}' replaces name and options." if named else ""
    none = " It takes none: options are keyword-only, behind `*,`."
    advice += f" There are: {', '.join(sorted(known))}." if known else none
    advice += f" Beside them: {', '.join(sorted(beside))}." if beside else ""
    hint = ".".join(filter(None, [parent, near])) if near else None
    elsewhere = _elsewhere().get(steps[-1])
    # The nearest key of this section is what was meant, where the recipe's sections are not the question.
    if elsewhere is not None and not (owner and near):
        hint, advice = elsewhere, advice if owner else ""
    return RecipeError(f"{_path(prefix, steps)} is {whose}.{'' if near else advice}", hint=hint)


def _steps(raw: Any, fault: Mapping[str, Any]) -> list[str]:
    """The fault's path as the reader wrote it: pydantic also names the alternatives that it tried."""
    steps: list[str] = []
    for step in fault["loc"]:
        in_list = isinstance(raw, list) and isinstance(step, int) and 0 <= step < len(raw)
        if in_list or (isinstance(raw, Mapping) and step in raw):
            raw = raw[step]
            steps.append(str(step))
    if fault["type"] == "missing":
        steps.append(str(fault["loc"][-1]))
    return steps


def _expected(fault: Mapping[str, Any]) -> str:
    text, wording = str(fault["msg"]), Path(__file__).with_name("wording.yaml")
    for pydantics, ours in read_yaml_file(wording, "table of words").items():
        text = re.sub(pydantics, ours, text)
    return text


def _field_at(model: type[BaseModel], steps: Sequence[str]) -> tuple[type[BaseModel] | None, Any]:
    """The model that holds the last step, and the step's field, as far as they are known."""
    field, named = None, False
    owner: type[BaseModel] | None = model
    for step in steps:
        if named or step.isdecimal():  # a name, or a place in a list, of what the field has
            named = False
            continue
        if owner is None or step not in owner.model_fields:
            return None, None
        field = owner.model_fields[step]
        owner, named = model_in(field.annotation), get_origin(field.annotation) is dict
    return owner, field


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that has keys below it, also where it may be null."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
