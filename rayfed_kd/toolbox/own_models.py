"""Models that stay at their clients: whole, or their last layers, as FedPer, FedRep, and their + have it.

`OwnModels` is the whole. Where the first layers are shared:

    down  layers 1 to l                     4 P_l bytes a client
    up    the trained layers and n_k        4 P_l bytes a client
    client: its own layers above those it got; trains; keeps the whole model
    server: layer by layer the sample-weighted mean over those who sent the layer; if nobody did, it stays

Buffers go with their layer. A client's own layers start from the common initial values; one that turns
personal goes on from the client's own last value. A client is evaluated with its model as its own last
update left it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import (
    PERSONAL,
    Averaged,
    ClientContext,
    Cohort,
    Declaration,
    Evaluable,
    Message,
    Method,
    MethodOptions,
    OneExchange,
    Predictor,
    Replies,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.layers import DroppingOptions, Layers, all_own, lowest_layer, mean_of_shared
from rayfed_kd.toolbox.local_training import train_on_labels


class OwnModels:
    """The first base of a method with such clients: what they begin with, and that they are evaluated.

    A client's state is its model, [P_k], or has it as `model`.
    """

    client_keeps: ClassVar[str] = "its model"
    evaluates: ClassVar[Sequence[str]] = ("personal",)

    def init_client(self, ctx: ClientContext) -> Any:
        """The initial model, [P_k], equal for all clients of one architecture."""
        return ctx.initial_vector()

    def evaluated(self, server: Any) -> Mapping[str, Evaluable]:
        """Every client's own model."""
        return {"personal": PERSONAL}

    def personal(self, client: Any, ctx: ClientContext) -> Tensor:
        """The client's model, [P_k], as its last update left it."""
        model: Tensor = client if isinstance(client, Tensor) else client.model
        return model

    def composed(self, parts: Sequence[FlatModule], numbers: Tensor) -> Predictor:
        """The client's features, and behind them a part of the server: a head."""
        model, head = parts
        return lambda images: head(model.features(images))


class PersonalOptions(MethodOptions):
    """Which layers stay."""

    personal: list[str] = Field(["F1", "F2", "F3"], description="the last layers, which stay at the client")


class Trained(OwnModels):
    """A client's step in the two forms below."""

    def train(self, student: FlatModule, layers: Layers, shared: int, ctx: ClientContext) -> None:
        """Trains a client's model, whose first `shared` layers are shared: E epochs of CE on all together."""
        train_on_labels(student, ctx)

    def updated(self, client: Tensor, base: Tensor, shared: int, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """A client's step: its own layers on the shared ones it got, trained; its model, and the shared."""
        student = ctx.model(client)
        layers = Layers(student)
        student.load(layers.with_first(client, shared, base))
        self.train(student, layers, shared, ctx)
        vector = student.vector()
        return vector, Reply(base=layers.first(vector, shared), samples=ctx.num_samples)


class PersonalLayers(Trained, OneExchange[Tensor, Tensor]):
    """The border is the same for all, all the time. The server's personal layers are never used."""

    options: PersonalOptions
    server_keeps: ClassVar[str] = "the shared layers"
    down: ClassVar[Declaration] = {"base": "weights"}
    up: ClassVar[Declaration] = {"base": Averaged("weights", by="samples")}

    def check(self, ctx: ServerContext) -> str | None:
        """Raise RecipeError unless `personal` are the model's last layers, in order; may note `all_own`."""
        layers = layers_of(ctx)
        layers.check_cut(self.shared(layers))
        return all_own(self.options, "personal", layers)

    def init_server(self, ctx: ServerContext) -> Tensor:
        """All layers, [P]; those above the border only fill the vector."""
        return ctx.initial_vector()

    def dispatch(self, server: Tensor, ctx: ServerContext) -> Message:
        """Send layers 1 to l, their parameters and then their buffers."""
        layers = layers_of(ctx)
        return Message(base=layers.first(server, self.shared(layers)))

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Put the received layers under the client's own, train, and send them back."""
        return self.updated(client, message["base"], self.shared(layers_of(ctx)), ctx)

    def absorb(self, server: Tensor, replies: Replies, ctx: ServerContext) -> Tensor:
        """Average layers 1 to l by n_k; the server's layers above stay as they began."""
        layers = layers_of(ctx)
        shared = self.shared(layers)
        # The base is no whole vector, so `aggregated` must be told where its buffers begin.
        base = replies.aggregated(
            "base",
            replies.numbers("samples"),
            into=layers.first(server, shared),
            parameters=layers.parameters(0, shared).stop,
        )
        return layers.with_first(server, shared, base)

    def shared(self, layers: Layers) -> int:
        """How many layers are shared."""
        return lowest_layer(layers.names, self.options.personal, "method.personal")


@dataclass(frozen=True)
class ServerState:
    """The server where borders differ.

    Attributes:
        weights: [P], all layers.
        participations: client -> Z, how often it took part.
    """

    weights: Tensor
    participations: Mapping[int, int]


class DroppedLayers(Trained, Method[ServerState, Tensor]):
    """At first all layers are shared; each client drops them by its own participations."""

    options: DroppingOptions
    server_keeps: ClassVar[str] = "all layers, everybody's participations"
    down: ClassVar[Declaration] = {"base": "weights"}
    up: ClassVar[Declaration] = {"base": Unaligned("weights")}  # of other lengths at other clients

    def check(self, ctx: ServerContext) -> str | None:
        """Raise RecipeError unless `dropping` are the model's last layers, in order; may note `all_own`."""
        layers, options = layers_of(ctx), self.options
        options.shared(1, layers)
        return all_own(options, "dropping", layers) if options.at_once or options.z0 else None

    def init_server(self, ctx: ServerContext) -> ServerState:
        """All layers, [P], and no participations."""
        return ServerState(ctx.initial_vector(), {})

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """Send every client its own first l layers; average each layer over those that sent it."""
        layers = layers_of(ctx)
        # Counted at dispatch, so for a client whose reply does not come as well.
        counts = {k: server.participations.get(k, 0) + 1 for k in cohort.clients}
        shared = {k: self.options.shared(count, layers) for k, count in counts.items()}
        messages = {
            k: Message(base=layers.first(server.weights, border), shared=border)
            for k, border in shared.items()
        }
        replies = cohort.scatter(self.client_update, messages)
        weights = mean_of_shared(
            layers,
            server.weights,
            [shared[k] for k in replies.clients],
            replies.vectors("base"),
            replies.numbers("samples"),
        )
        return ServerState(weights, {**server.participations, **counts})

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """One client's step, at the border that the server tells."""
        return self.updated(client, message["base"], int(message["shared"]), ctx)


def layers_of(ctx: ClientContext | ServerContext) -> Layers:
    """The layers of the recipe's model. Raises: RecipeError if it has none."""
    return Layers(ctx.frozen_model(ctx.initial_vector()))
