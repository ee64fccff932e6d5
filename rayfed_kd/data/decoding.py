"""How far the decoding of data is, for those who wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("decoding", default=None)
_source: ContextVar[str] = ContextVar("decoded source", default="data")


@contextmanager
def decoding_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Call a function with what is being decoded, while the block runs.

    Args:
        tell: called with a text as `decoding mnist`, or `decoding cinic10 40 %`.
    """
    token = _listener.set(tell)
    try:
        yield
    finally:
        _listener.reset(token)


def begin_decoding(name: str) -> None:
    """Tell that a source is decoded from now on.

    Args:
        name: the source's name in the recipe.
    """
    _source.set(name)
    _tell("")


def decoded(items: Iterable[T], total: int) -> Iterator[T]:
    """Hand on decoded items, and tell whole percents on the way.

    Args:
        items: decoded one by one.
        total: how many there will be.
    """
    last = 0
    for place, item in enumerate(items, start=1):
        percent = 100 * place // total
        if percent > last:
            last = percent
            _tell(f" {percent} %")
        yield item


def _tell(progress: str) -> None:
    listener = _listener.get()
    if listener is not None:
        listener(f"decoding {_source.get()}{progress}")
