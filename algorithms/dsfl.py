"""DS-FL: clients of any architecture and the server learn from the sharpened mean of public predictions.

Itahara, Nishio, Koda, Morikura, Yamamoto 2020, "Distillation-Based Semi-Supervised Federated Learning",
arXiv 2008.06180.

    update      cross entropy on the client's own data
    predict     Y_k(x) = softmax(f_k(x))                        on the round's N0 public samples
    aggregate   ERA: Y = softmax(mean_k Y_k / T)                entropy reduction: sharper than the mean
                SA:  Y = mean_k Y_k
    distil      -sum_c Y_c log softmax(f)_c on these samples, at the clients and for the server's own model

    up    probabilities Y_k    4 N0 C bytes a client
    down  labels Y             4 N0 C bytes a client

The paper calls its softmax outputs "local logits": ERA is a softmax of probabilities, which flattens where T
is large (T = 1 is flatter than the mean). The server's model is the recipe's `model`. Readings: everyone's
predictions count as much; a round's labels reach its own cohort, in the same round; optimisers start afresh
in update and in distil. Without passes of the clients (`distill_epochs: 0`) they are stand-alone and nothing
goes down; without the server's as well nothing travels.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    PERSONAL,
    Averaged,
    ClientContext,
    Cohort,
    Context,
    Evaluable,
    Message,
    Method,
    Replies,
    Reply,
    ServerContext,
)
from rayfed_kd.toolbox.local_training import public_logits, train_on_labels
from rayfed_kd.toolbox.own_models import OwnModels
from rayfed_kd.toolbox.public_data import PublicOptions, drawn_seed, soft_label_loss, train_on_public


class Options(PublicOptions):
    """DS-FL's options; E of the recipe's `local` are a round's epochs on the client's own data."""

    aggregation: Literal["era", "sa"] = Field("era", description="sharpened mean, or the plain one")
    temperature: float = Field(0.1, gt=0, description="T of era: the softmax of the mean divided by T")
    distill_epochs: int = Field(1, ge=0, description="a client's passes over the public samples")
    server_epochs: int = Field(1, ge=0, description="the server's; 0: it has no model")


class DSFL(OwnModels, Method[Tensor, Tensor], plain_training=True):
    """Distillation-based semi-supervised federated learning: server and clients keep a model each, [P_k]."""

    options: Options
    summary = "clients and server learn from the sharpened mean of predictions on a public set"
    paper = "Itahara et al. 2020, arXiv 2008.06180"
    down = {"labels": "logits"}
    up = {"probabilities": Averaged("logits")}
    server_keeps = "its model"
    heterogeneous = True
    public = "samples"
    evaluates = ("server", "personal")

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError if `public_samples` is more than the public set has."""
        self.options.check_public(ctx)

    def init_server(self, ctx: ServerContext) -> Tensor:
        """The server's own initial model, [P]; `server_epochs: 0` never trains it."""
        return ctx.initial_vector()

    def run_round(self, server: Tensor, cohort: Cohort, ctx: ServerContext) -> Tensor:
        """Update and predict, aggregate, distil."""
        options = self.options
        if not (options.distill_epochs or options.server_epochs):
            cohort.broadcast(self.update, Message())
            return server
        seed = drawn_seed(ctx)
        labels = self.agreed(cohort.broadcast(self.update, Message(seed=seed)))
        if options.distill_epochs:
            cohort.broadcast(self.distil, Message(labels=labels, seed=seed))
        return self._distilled(server, labels.to(ctx.device), seed, options.server_epochs, ctx).cpu()

    def update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """The client's own data, then Y_k: [N0, C]."""
        student = ctx.model(client)
        train_on_labels(student, ctx)
        trained = student.vector()
        if "seed" not in message:
            return trained, Reply()
        logits = public_logits(ctx.frozen_model(trained), ctx, self.options.ids(message["seed"], ctx))
        return trained, Reply(probabilities=logits.softmax(dim=1))

    def agreed(self, replies: Replies) -> Tensor:
        """Y: [N0, C]."""
        mean = replies.mean("probabilities")
        return mean if self.options.aggregation == "sa" else (mean / self.options.temperature).softmax(dim=1)

    def distil(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """The public samples with their labels."""
        labels, seed = message["labels"], message["seed"]
        return self._distilled(client, labels, seed, self.options.distill_epochs, ctx), Reply()

    def evaluated(self, server: Tensor) -> dict[str, Evaluable]:
        """Every client's own model, and the server's if `server_epochs` trains it."""
        personal: dict[str, Evaluable] = {"personal": PERSONAL}
        return {"server": server, **personal} if self.options.server_epochs else personal

    def _distilled(self, model: Tensor, labels: Tensor, seed: int, epochs: int, ctx: Context) -> Tensor:
        """A model, [P], after passes over a round's public samples with their labels, [N0, C]."""
        student, ids = ctx.model(model), self.options.ids(seed, ctx)
        train_on_public(student, soft_label_loss, ctx, epochs=epochs, ids=ids, said=labels)
        return student.vector()
