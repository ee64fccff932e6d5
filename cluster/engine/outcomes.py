"""What a method's step returned: whether it is what a step returns, and which of its numbers are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayfed_kd.cluster.engine.calls import PersonalCall, StepCall, StepError
from rayfed_kd.errors import RayfedError, kind_of, told_in_full
from rayfed_kd.protocol import Array, Reply
from rayfed_kd.protocol.wire import all_finite

# What a method's code may raise: also what would end the process in which it runs. Ctrl-C is the user's.
CAUGHT = (Exception, SystemExit, GeneratorExit)


def one_line(call: StepCall | PersonalCall | str, error: BaseException) -> StepError:
    """An error of a client's step, with its place; with its stack trace if it is not one of ours."""
    if isinstance(error, StepError):
        return error
    if isinstance(error, RayfedError):
        return StepError(f"{call}: {error}")
    return StepError(f"{call} failed:\n{told_in_full(error)}")


def checked_outcome(call: StepCall, returned: Any) -> tuple[Any, Reply]:
    """What a step returned, if it is (state, Reply).

    Raises: StepError in one line: a stack trace would show our code, not the method's.
    """
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Reply):
        return returned
    what = kind_of(returned)
    if isinstance(returned, tuple):
        what = f"({', '.join(type(one).__name__ for one in returned)})"
    stateless = (
        "; a method whose clients keep nothing returns (None, reply)" if isinstance(returned, Reply) else ""
    )
    raise StepError(f"{call}: it returned {what}, expected (state, Reply){stateless}")


def non_finite_parts(arrays: Mapping[str, Array], wire: Mapping[str, Array]) -> tuple[str, ...]:
    """Parts with a NaN or infinite value, also if only the encoded form has one: a float16 may overflow."""
    names = [name for name, array in arrays.items() if not all_finite(array)]
    # Without a codec `encoded` returns the very same mapping, which needs no second look.
    if wire is not arrays:
        names += [
            name for key in wire if (name := key.partition("/")[0]) not in names and not all_finite(wire[key])
        ]
    return tuple(names)
