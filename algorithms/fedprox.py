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
from torch import Tensor

from rayfed_kd.protocol import ClientContext, Message, Reply
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions
from rayfed_kd.toolbox.local_training import train_local_epochs
from rayfed_kd.toolbox.losses import cross_entropy, squared_distance


class Options(AveragingOptions):
    """FedProx's options."""

    mu: float = Field(0.01, ge=0, description="weight of the proximal term")


class FedProx(Averaging[None]):
    """FedAvg with a proximal term."""

    options: Options
    summary = "local training with a proximal term to the received model"
    paper = "Li et al. 2020, arXiv 1812.06127"

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        student = ctx.model(message["student"])
        received = student.parts(message["student"])

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            hard = cross_entropy(student(images), labels)
            ctx.log(ce=hard)
            if not self.options.mu:
                return hard
            distance = squared_distance(student.parameters(), received)
            ctx.log(squared_distance=distance)
            return hard + self.options.mu / 2 * distance

        train_local_epochs(student, loss, ctx)
        return None, Reply(student=student.vector(), samples=ctx.num_samples)
