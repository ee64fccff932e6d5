"""A wrapper of a method that checks each call by a host against the rules of the contract."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from rayfed_kd.errors import RunError
from rayfed_kd.protocol import ClientContext, Message, Method, Reply, ServerContext
from rayfed_kd.protocol.state_packing import pack
from rayfed_kd.testing.rules import ContractError

DRAWN = "a global generator was drawn from or set"


def global_generators() -> tuple[bytes, Any, Any]:
    """The states of the global generators of torch (CPU), NumPy and Python, in a comparable form."""
    return torch.get_rng_state().numpy().tobytes(), pickle.dumps(np.random.get_state()), random.getstate()


class OwnDraws:
    """Whether anything beside modules draws from a global generator, while `watching`.

    What a module draws in its forward pass, as dropout does, comes of a stream of the step's own.
    """

    def __init__(self) -> None:
        self._expected, self._depth, self._follows = global_generators(), 0, False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within, forward passes are told apart from what is around them."""
        with (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ):
            yield

    def found(self) -> bool:
        """Whether something was drawn up to now."""
        return global_generators() != self._expected

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if not self._depth:
            self._follows = not self.found()
        self._depth += 1

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._depth -= 1
        # A pass that does not begin where the last one ended is in a stream that is put back, or behind a
        # draw that was not a module's.
        if not self._depth and self._follows:
            self._expected = global_generators()


def own_attributes(method: Method[Any, Any]) -> dict[str, Any]:
    """Attribute -> id of its value, of a method and its classes; values of `cached_property` are left out."""
    ids = {f"self.{name}": id(value) for name, value in vars(method).items()}
    for kind in type(method).__mro__:
        if issubclass(kind, Method) and kind is not Method:
            ids |= {f"{kind.__name__}.{name}": id(value) for name, value in vars(kind).items()}
    cached = {
        f"self.{n}" for n in vars(method) if isinstance(getattr(type(method), n, None), cached_property)
    }
    return {name: value for name, value in ids.items() if name not in cached}


def content(value: Any) -> tuple[str, list[tuple[str, bytes]]]:
    """A state or a package's parts, in a form that is comparable bit for bit.

    Raises: RunError if it cannot be stored.
    """
    packed = pack(value)
    arrays = [(f"{array.dtype} {array.shape}", array.tobytes()) for array in packed.arrays]
    return repr(packed.structure), arrays


class WatchedMethod:
    """A method as hosts see it: each call with a client's context is checked against the rules."""

    def __init__(self, method: Method[Any, Any]) -> None:
        self._method = method
        # Client -> the state that its last step returned, and its content then.
        self._left: dict[int, tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._method, name)
        return partial(self._call, attribute) if isinstance(attribute, MethodType) else attribute

    def _call(self, called: MethodType, *arguments: Any) -> Any:
        if called.__name__ == "run_round":
            return self._round(called, *arguments)
        ctx = next((argument for argument in arguments if isinstance(argument, ClientContext)), None)
        if ctx is None:
            return called(*arguments)
        where = f"round {ctx.round}, client {ctx.client}, {called.__name__}"
        state = arguments[0] if len(arguments) > 1 else None
        message = next((argument for argument in arguments if isinstance(argument, Message)), Message())
        before, sent, draws = content(state), package_content(message), OwnDraws()
        left, as_it_was = self._left.get(ctx.client, (None, content(None)))
        if content(left) != as_it_was:
            raise ContractError(
                "own tensors", where, "the state that the client's step before returned has changed"
            )
        with draws.watching():
            result = called(*arguments)
        if content(state) != before:
            raise ContractError("client state", where, "the state that it was given has changed")
        if package_content(message) != sent:
            raise ContractError("message", where, "the message that it was given has changed")
        if draws.found():
            raise ContractError("global random", where, DRAWN)
        is_step = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Reply)
        if is_step or called.__name__ == "init_client":
            new = result[0] if is_step else result
            try:
                self._left[ctx.client] = new, content(new)
            except RunError as error:
                raise ContractError("storable", where, str(error)) from None
        return result

    def _round(self, called: MethodType, server: Any, cohort: Any, ctx: ServerContext) -> Any:
        before, draws = content(server), OwnDraws()
        with draws.watching():
            new = called(server, cohort, ctx)
        if content(server) != before:
            raise ContractError(
                "server state", f"round {ctx.round}", "the state that it was given has changed"
            )
        if draws.found():
            raise ContractError("global random", "the server's part", DRAWN)
        return new


def package_content(package: Message | Reply) -> Any:
    """A message's or reply's parts and metadata, in a form that is comparable bit for bit."""
    return content(dict(package.parts)), dict(package.metadata)
