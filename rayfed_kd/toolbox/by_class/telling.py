"""Clients of a shared model that tell the server something of their classes, with every reply or once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from rayfed_kd.protocol import ClientContext, FlatModule, Message, Reply
from rayfed_kd.protocol.method import missing
from rayfed_kd.toolbox.averaging import ClientState, SharedModel, State
from rayfed_kd.toolbox.local_training import train_on_labels

Sent = tuple[ClientState, Reply]


class Telling(SharedModel[State, ClientState]):
    """`SharedModel` whose clients send what `told` gives beside the model; `up` declares it."""

    def client_update(self, client: ClientState, message: Message, ctx: ClientContext) -> Sent[ClientState]:
        """Train the received model; send it with n_k, and what is told."""
        student = ctx.model(message["student"])
        self.train_locally(student, ctx)
        return client, Reply(student=student.vector(), **self.told(client, ctx), samples=ctx.num_samples)

    def train_locally(self, student: FlatModule, ctx: ClientContext) -> None:
        """E epochs of cross entropy, as FedAvg."""
        train_on_labels(student, ctx)

    def told(self, client: ClientState, ctx: ClientContext) -> Mapping[str, Tensor]:
        """The parts beside the model."""
        raise missing(self, "told", "toolbox/by_class/telling.py")


@dataclass(frozen=True)
class Told:
    """What a client keeps: whether the server knows what it tells once."""

    told: bool


class TellingOnce(Telling[State, Told]):
    """`Telling`, with a client's first reply alone: `told` asks `client.told`."""

    def init_client(self, ctx: ClientContext) -> Told:
        """Nothing is told yet."""
        return Told(told=False)

    def client_update(self, client: Told, message: Message, ctx: ClientContext) -> tuple[Told, Reply]:
        """As `Telling`; remember that it was told."""
        _, reply = super().client_update(client, message, ctx)
        return Told(told=True), reply
