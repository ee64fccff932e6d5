"""FML: a private model and a shared small one, the meme, teach one another at each client.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu 2020, Federated Mutual Learning, arXiv 2006.16765.

    z_p, z_m  logits of the private model and of the meme, which are trained on the same batches
    L_priv    alpha CE(z_p) + (1 - alpha) KL(softmax(z_m), softmax(z_p))
    L_meme    beta CE(z_m) + (1 - beta) KL(softmax(z_p), softmax(z_m))
    server    the memes' average
    down      the meme                               4 P_g bytes a client
    up        the trained meme and the count n_k     4 P_g bytes a client

The recipe's `model` is the meme, and `client_models`, if there are any, are the private models. A client
keeps its private model. Readings: each loss reaches its own model, from one forward pass; sample-weighted
(the released code is `weighting: uniform`, and as it is stored never federates); optimisers start afresh in
each round, as everywhere. With beta = 1 the meme is FedAvg's model, with alpha = 1 a client trains alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rayfed_kd.protocol import PERSONAL, ClientContext, Evaluable, Evaluated, Message, Reply
from rayfed_kd.toolbox.averaging import SharedSmall, SharedSmallOptions
from rayfed_kd.toolbox.local_training import Loss, Models, Phase, Tensors, own_batches, train_phases
from rayfed_kd.toolbox.losses import NOTHING, cross_entropy, distillation
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.own_models import OwnModels

MEME = "meme"
PRIVATE = "private"


class Options(SharedSmallOptions):
    """FML's options; the defaults are those of the released code."""

    alpha: float = Field(0.5, ge=0, le=1, description="share of the labels in the private model's loss")
    beta: float = Field(0.5, ge=0, le=1, description="share of the labels in the meme's loss")

    @model_validator(mode="after")
    def _learning(self) -> Options:
        if not (self.alpha or self.beta):
            raise ValueError("alpha: 0 and beta: 0: no model learns labels; expected one above 0")
        return self


class FML(OwnModels, SharedSmall[Tensor], plain_training=True):
    """Federated mutual learning: the server's state is the meme, a client's its private model."""

    options: Options
    summary = "a private model of any architecture and a shared one distil from one another"
    paper = "Shen et al. 2020, arXiv 2006.16765"
    server_keeps = "the meme"
    client_keeps = "its private model"
    small = MEME
    down = {MEME: "weights"}
    evaluates = (MEME, "personal")

    def init_client(self, ctx: ClientContext) -> Tensor:
        """An initial model that no other client has, [P_k]: equal to the meme it would teach it nothing."""
        return ctx.own_initial_vector()

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Train both models for E epochs; the private one stays, the meme is sent."""
        models = {PRIVATE: ctx.model(client), MEME: ctx.model(message["meme"], MEME)}
        optimizers = [Optimizer(ctx.local.optimizer, model) for model in models.values()]
        train_phases(models, [Phase(self.loss, optimizers)], own_batches(ctx), ctx)
        return models[PRIVATE].vector(), Reply(meme=models[MEME].vector(), samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L_priv + L_meme, of which each reaches its own model only."""
        labels, names = batch["labels"], (PRIVATE, MEME)
        private, meme = (models[name](batch["images"]) for name in names)
        private_loss, private_parts = mutual_loss(private, meme, labels, self.options.alpha, extras)
        meme_loss, meme_parts = mutual_loss(meme, private, labels, self.options.beta, extras)
        logged = {**private_parts, **{f"{MEME}_{name}": value for name, value in meme_parts.items()}}
        return Loss(private_loss + meme_loss, logged)

    def evaluated(self, server: Tensor) -> Mapping[str, Evaluable]:
        """The meme, and every client's private model."""
        return {MEME: Evaluated(server, MEME), "personal": PERSONAL}


def mutual_loss(
    logits: Tensor, other: Tensor, labels: Tensor, share: float, extras: Tensors = NOTHING
) -> tuple[Tensor, Tensors]:
    """share CE + (1 - share) KL(softmax(other), softmax(logits)), and its parts by name.

    Args:
        logits: [batch, C]; gradient reaches them only.
        other: the same shape, the other model's.
        labels: [batch] int64.
        share: in [0, 1]; a part whose weight is 0 is left out, for a result without it to the bit.
        extras: as `cross_entropy` takes it.
    """
    parts = {}
    if share:
        parts["ce"] = cross_entropy(logits, labels, extras)
    if share < 1:
        parts["kd"] = distillation(other, logits)
    weights = {"ce": share, "kd": 1 - share}
    return torch.stack([weights[name] * value for name, value in parts.items()]).sum(), parts
