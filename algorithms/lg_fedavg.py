"""LG-FedAvg: each client learns a representation of its own, and the last layers above it are shared.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency 2020, Think Locally, Act Globally: Federated
Learning with Local and Global Representations, arXiv 2001.01523.

    down    the last layers                             4 P_g bytes a client
    up      the trained last layers and the count n_k   4 P_g bytes a client
    client  E epochs of cross entropy on its own first layers and the received last layers together
    last layers = sum over the cohort of n_k layers_k / sum of n_k

The first layers may be of any architecture, with equal last layers behind them. A client keeps its whole
model, and is evaluated with it. Buffers go with their layer. Readings: without the start from a trained model
of FedAvg that the released code's results have; averaged by samples (that code: `weighting: uniform`). With
all layers shared it is FedAvg whose clients' local models are evaluated, with none Stand-Alone.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    Averaged,
    ClientContext,
    Declaration,
    FlatModule,
    Message,
    MethodOptions,
    OneExchange,
    RecipeError,
    Replies,
    Reply,
    ServerContext,
)
from rayfed_kd.toolbox.averaging import Weighting, cohort_weights
from rayfed_kd.toolbox.layers import Layers
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.own_models import OwnModels


class Options(MethodOptions):
    """LG-FedAvg's options."""

    shared_layers: int = Field(1, ge=0, description="how many of the last layers are shared")
    weighting: Weighting = Field("samples", description="a client's weight in the mean")


class LGFedAvg(OwnModels, OneExchange[Tensor, Tensor], plain_training=True):
    """Local representations, a global head."""

    options: Options
    summary = "the last layers averaged, over a representation that is each client's own"
    paper = "Liang et al. 2020, arXiv 2001.01523"
    server_keeps = "the shared last layers"
    down = {"head": "weights"}
    heterogeneous = True

    @property
    def up(self) -> Declaration:
        """The last layers, averaged by `weighting`."""
        return {"head": Averaged("weights", by=self.options.weighting)}

    def check(self, ctx: ServerContext) -> str | None:
        """Raise RecipeError unless all models have so many layers, and equal ones at their ends."""
        model = ctx.frozen_model(ctx.initial_vector())
        shared, count, expected = self.options.shared_layers, len(Layers(model)), self._shapes(model)
        for name in ctx.client_architectures:
            shapes = self._shapes(ctx.frozen_model(ctx.initial_vector(name), name))
            if shapes != expected:
                raise RecipeError(
                    f"the last {shared} layers have parameters of {shapes} in one model and of "
                    f"{expected} in the recipe's `model`; lg_fedavg shares them, so it expects equal ones",
                    path="client_models",
                )
        like = {0: "standalone", count: "fedavg"}.get(shared)
        return like and f"method.shared_layers = {shared} of {count} layers: as with the method {like}"

    def init_server(self, ctx: ServerContext) -> Tensor:
        """The initial model's last layers, [P_g]."""
        return self._head(ctx.frozen_model(ctx.initial_vector()), ctx.initial_vector())

    def dispatch(self, server: Tensor, ctx: ServerContext) -> Message:
        """Send the last layers, their parameters and then their buffers."""
        return Message(head=server)

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Put the received last layers on the client's own first ones, train all, send the last ones."""
        student = ctx.model(client)
        layers = Layers(student)
        student.load(layers.with_rest(client, self._border(layers), message["head"]))
        train_on_labels(student, ctx)
        vector = student.vector()
        return vector, Reply(head=self._head(student, vector), samples=ctx.num_samples)

    def absorb(self, server: Tensor, replies: Replies, ctx: ServerContext) -> Tensor:
        """Average the last layers by n_k."""
        layers = Layers(ctx.frozen_model(ctx.initial_vector()))
        # A part of a vector, so `aggregated` must be told where its buffers begin.
        stretch = layers.parameters(self._border(layers), len(layers))
        counts = cohort_weights(replies, self.options.weighting)
        return replies.aggregated("head", counts, into=server, parameters=stretch.stop - stretch.start)

    def _border(self, layers: Layers) -> int:
        """How many first layers are the client's own."""
        if self.options.shared_layers > len(layers):
            raise RecipeError(
                f"method.shared_layers = {self.options.shared_layers}: the model has {len(layers)} layers"
            )
        return len(layers) - self.options.shared_layers

    def _head(self, model: FlatModule, vector: Tensor) -> Tensor:
        layers = Layers(model)
        return layers.rest(vector, self._border(layers))

    def _shapes(self, model: FlatModule) -> list[list[int]]:
        """Of the parameters of the last layers, in the vector's order."""
        layers = Layers(model)
        stretch = layers.parameters(self._border(layers), len(layers))
        shapes, start = [], 0
        for parameter in model.parameters():
            if stretch.start <= start < stretch.stop:
                shapes.append(list(parameter.shape))
            start += parameter.numel()
        return shapes
