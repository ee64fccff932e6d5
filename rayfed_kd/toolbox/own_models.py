"""Clients whose whole state is a model of their own, which no round overwrites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from rayfed_kd.protocol import PERSONAL, ClientContext, Evaluable


class OwnModels:
    """The first base of a method with such clients: what they begin with, and that they are evaluated."""

    client_keeps: ClassVar[str] = "its model"

    def init_client(self, ctx: ClientContext) -> Tensor:
        """The initial model, [P_k], equal for all clients of one architecture."""
        return ctx.initial_vector()

    def evaluated(self, server: Any) -> Mapping[str, Evaluable]:
        """Every client's own model."""
        return {"personal": PERSONAL}

    def personal(self, client: Tensor, ctx: ClientContext) -> Tensor:
        """The client's model, [P_k], as its last update left it."""
        return client
