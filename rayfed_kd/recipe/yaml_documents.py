"""YAML as recipes, studies and spaces use it: plain values, of bounded size.

A text that YAML's own loader would turn into something else (a date, a set, bytes, an object) is refused, and
so is a key that stands twice. A recipe is code, as it names what is imported: a text that is made to take all
memory is not kept out.
"""

from __future__ import annotations

import math
import re
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from rayfed_kd.errors import RecipeError, shortened
from rayfed_kd.recipe.shipped import Kind, find_file

MOST_BYTES = 1 << 20  # a recipe that lists something for each of 100,000 clients has half of that
OLD_NUMBER = re.compile(r"[-+]?(0[0-9_]|[0-9_]+:)")
WHOLE_NUMBERS = range(-(2**63), 2**63)  # what tables and random streams can hold


class _PlainLoader(yaml.SafeLoader):
    """Builds what JSON has, and reads YAML 1.2's floats: PyYAML reads 1e-4, which has no dot, as text."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """As YAML's own; a key that stands twice is refused: of two values one would be lost silently."""
        node = super().compose_mapping_node(anchor)
        seen = set[tuple[str, str]]()
        for key, _ in node.value:
            name = (key.tag, str(key.value))  # before merge keys are resolved, which may be overridden
            if isinstance(key, yaml.ScalarNode) and name in seen:
                raise _refused(f"the key {shortened(key.value)} stands twice", key.start_mark)
            seen.add(name)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """As YAML's own; refuses what cannot be read as its tag says, and numbers that nothing can hold."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, OverflowError, KeyError, IndexError, AttributeError):
            kind = node.tag.rpartition(":")[2]
            raise _refused(f"{shortened(repr(node.value))} is no {kind}", node.start_mark) from None
        problem = None
        if isinstance(value, int) and value not in WHOLE_NUMBERS:
            problem = f"{shortened(node.value)} needs more than 64 bits"
        if isinstance(value, float) and math.isnan(value):
            problem = "NaN is no number"
        if isinstance(value, float) and math.isinf(value) and "inf" not in node.value.lower():
            problem = f"{shortened(node.value)} is too large"
        if type(value) in (int, float) and OLD_NUMBER.match(node.value):
            problem = f"{shortened(node.value)} is octal or of base 60 in YAML; expected a plain number"
        if problem is not None:
            raise _refused(problem, node.start_mark)
        return value


def _refused(problem: str, mark: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=mark)


# Tables of its own: those of the base class are shared with all of PyYAML's users. A date is a text.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
}
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def load_yaml(text: str) -> Any:
    """The value of a YAML text: plain values only, as in JSON, but for `.inf`.

    Raises: RecipeError saying what is wrong, and where in the text.
    """
    if len(text) > MOST_BYTES:
        raise RecipeError(f"{len(text):,} characters of YAML; expected at most {MOST_BYTES:,}")
    try:
        return deepcopy(_parsed(text))
    except yaml.YAMLError as error:
        raise RecipeError(f"not YAML: {_told(error)}") from None
    except RecursionError:
        raise RecipeError("too many levels of lists and keys; expected about five") from None


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    """The runs of a study have one base recipe, and most overrides in common: parsing is slow."""
    return yaml.load(text, Loader=_PlainLoader)


def read_yaml(source: str | Path, *kinds: Kind) -> Any:
    """The value of a recipe, study or space.

    Args:
        source: a file's path, or the name of one that comes with the package.
        kinds: what it may be.
    Raises: RecipeError if there is no such file, it cannot be read or it is no YAML.
    """
    return read_yaml_file(find_file(source, *kinds), f"{' or '.join(kinds)} file")


def read_yaml_file(path: Path, kind: str) -> Any:
    """The value of a YAML file.

    Args:
        path: the file.
        kind: what the file is to be, as `recipe file`, for the message.
    Raises: RecipeError if it cannot be read or it is no YAML.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RecipeError(f"{path.stat().st_size:,} bytes; expected a {kind} of at most {MOST_BYTES:,}")
        text = path.read_text(encoding="utf8")
    except OSError as error:
        raise RecipeError(f"cannot be read ({error.strerror}); expected a {kind}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"byte {error.start} is not UTF-8; expected a {kind} in UTF-8") from None
    return load_yaml(text)


class _PlainDumper(yaml.SafeDumper):
    """Quotes each text that `_PlainLoader` would read as something else, as the text 1e-4."""

    yaml_implicit_resolvers = _PlainLoader.yaml_implicit_resolvers


def yaml_line(value: Any) -> str:
    """A plain value as a recipe has it in one line, as `{name: sgd, lr: 0.1}`.

    Raises: yaml.YAMLError if the value is none that a recipe can hold.
    """
    text: str = yaml.dump(
        [value], Dumper=_PlainDumper, default_flow_style=True, sort_keys=False, width=float("inf")
    )
    return text.strip()[1:-1]


def yaml_text(value: Any) -> str:
    """Plain values as a file that `load_yaml` reads back as they are: texts such as 1e-4 in quotes.

    Raises: yaml.YAMLError if a value is none that a recipe can hold.
    """
    return str(yaml.dump(value, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True))


def _told(error: yaml.YAMLError) -> str:
    """An error of the loader in one line: the problem and its place, without a copy of the text."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None:  # of characters that no YAML has
        return shortened(" ".join(str(error).split()), 200)
    place = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    context = getattr(error, "context", None)
    return shortened(f"{context + ', ' if context else ''}{problem}", 200) + place
