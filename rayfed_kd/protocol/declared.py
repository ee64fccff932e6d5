"""Whether what a method declares is sound: its parts, and its architectures' names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rayfed_kd.errors import RecipeError, kind_of, nearest, shown
from rayfed_kd.protocol.declaration import KINDS, Exact, Part, Simulated
from rayfed_kd.protocol.method import RECIPE_MODEL, Architecture, Method

AVERAGED = "Averaged(KIND, by=NUMBER) in `up`"
# Members that a method had before its parts said so -> what says it now.
REPLACED = {
    **dict.fromkeys(("averages", "averages_only", "averaged_by", "sums_suffice"), AVERAGED),
    "slots": "a kind alone in `up`, as 'weights'",
    "aligned": "Unaligned(KIND) in `up`",
    "asks": "Answers(KIND) in `up`",
    "public_needed": "`public`, which may be a property",
    "trains_in_groups": "`group_training`",
}


def check_declared(name: str, method: Method[Any, Any], architectures: Mapping[str, Any]) -> None:
    """Check what a method declares to send, and what it calls its architectures.

    Args:
        name: the method's, for messages.
        method: with its options.
        architectures: as it gives them.
    Raises: RecipeError naming the part or the architecture, and what was expected.
    """
    refused = partial(RecipeError, path="method.name")
    for old, instead in REPLACED.items():
        if hasattr(method, old):
            raise refused(f"{name} has `{old}`, which is not read; expected {instead}: docs/extend/method.md")
    for key, value in architectures.items():
        if key == RECIPE_MODEL or not isinstance(value, Architecture):
            raise refused(
                f"{name} calls {kind_of(value)} its architecture {key!r}; expected an Architecture by a "
                f"name of its own, as {RECIPE_MODEL!r} is the recipe's"
            )
    for direction, parts, classes in (("down", method.down, Exact | Simulated), ("up", method.up, Part)):
        where = f"{name} declares {direction} = {shown(parts)}"
        if not isinstance(parts, Mapping):
            raise refused(f"{where}; expected part names and their kinds")
        for part, declared in parts.items():
            if not isinstance(part, str) or not part.isidentifier():
                raise refused(f"{where}: a part's name is an identifier")
            kind = declared.kind if isinstance(declared, classes) else declared
            if kind not in KINDS:
                known = f"{shown(kind)} is no kind; there are {', '.join(KINDS)}"
                raise refused(f"{where}: {known}", hint=nearest(str(kind), KINDS))
