"""FedProx: clients stay near the model that they received.

Li et al. 2020, arXiv 1812.06127, Algorithm 2.

    client   min over w of F_k(w) + (mu / 2) ||w - w^t||^2, E epochs of the recipe's optimiser
    server   FedAvg's
    down     the model w^t                                4 P bytes a client
    up       the trained model w_k and the count n_k      4 P bytes a client

Readings: the term is part of the loss, over parameters and not over buffers, so momentum sees it; every
client does all E epochs (the released code cuts stragglers' short). mu = 0 is FedAvg.
"""

from __future__ import annotations

from pydantic import Field

from rayfed_kd.protocol import ClientContext, Message, Reply
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, train_batches
from rayfed_kd.toolbox.losses import cross_entropy, squared_distance


class Options(AveragingOptions):
    """FedProx's options."""

    mu: float = Field(0.01, ge=0, description="weight of the proximal term")


class FedProx(Averaging[None], plain_training=True):
    """FedAvg with a proximal term."""

    options: Options
    summary = "local training with a proximal term to the received model"
    paper = "Li et al. 2020, arXiv 1812.06127"

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train w from w^t for E epochs, with w^t as the proximal term's centre; send w_k and n_k."""
        student = ctx.model(message["student"])
        train_batches({"student": student}, self.loss, ctx, extras={"received": message["student"]})
        return None, Reply(student=student.vector(), samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """CE and the proximal term."""
        student = models["student"]
        hard = cross_entropy(student(batch["images"]), batch["labels"], extras)
        # Without the term, not with a term of weight 0: then the result is FedAvg's to the bit.
        if not self.options.mu:
            return Loss(hard, {"ce": hard})
        distance = squared_distance(student.parameters(), student.parts(extras["received"]))
        return Loss(hard + self.options.mu / 2 * distance, {"ce": hard, "squared_distance": distance})
