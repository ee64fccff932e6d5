"""FedNTD: clients keep what the received model says of all classes but a sample's own.

Lee, Jeong, Shin, Bae, Yun 2022, Preservation of the Global Knowledge by Not-True Distillation in Federated
Learning, arXiv 2106.03097, Algorithm 1.

    z, g     logits of a sample of class y under w and under the received w^t
    L_NTD    tau^2 KL(softmax(g without g_y / tau), softmax(z without z_y / tau)), over C - 1 classes
    L        CE + beta mean L_NTD
    server   FedAvg's
    down     the model w^t                                4 P bytes a client
    up       the trained model w_k and the count n_k      4 P bytes a client

Clients keep nothing. Readings: the teacher is frozen and in eval mode (the released code copies the model and
leaves it in train mode); gradient enters through z only; the average takes BatchNorm's buffers. beta = 0 is
FedAvg, and so would two classes be, of which one is left: they are refused.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import ClientContext, Message, RecipeError, Reply, ServerContext
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, train_batches
from rayfed_kd.toolbox.losses import cross_entropy, distillation


class Options(AveragingOptions):
    """FedNTD's options; the defaults are those of the released code."""

    beta: float = Field(1.0, ge=0, description="weight of the not-true distillation")
    tau: float = Field(
        1.0, gt=0, description="temperature of the not-true distillation, which is times tau^2"
    )


class FedNTD(Averaging[None], plain_training=True):
    """Not-true distillation from the received model."""

    options: Options
    summary = "local distillation from the received model, over the classes that a sample is not of"
    paper = "Lee et al. 2022, arXiv 2106.03097"

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError for two classes: without its own a sample has one, which softmax makes 1."""
        if self.options.beta and ctx.classes < 3:
            raise RecipeError("fedntd on two classes is fedavg; expected three or more, or method.beta = 0")

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train w from w^t on L for E epochs, with w^t as the frozen teacher; send w_k and n_k."""
        student, teacher = ctx.model(message["student"]), ctx.frozen_model(message["student"])
        train_batches({"student": student, "teacher": teacher}, self.loss, ctx)
        return None, Reply(student=student.vector(), samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L."""
        images, labels = batch["images"], batch["labels"]
        logits = models["student"](images)
        hard = cross_entropy(logits, labels, extras)
        # Without the term, not with a term of weight 0: then the result is FedAvg's to the bit.
        if not self.options.beta:
            return Loss(hard, {"ce": hard})
        with torch.no_grad():
            taught = models["teacher"](images)
        soft = distillation(not_true(taught, labels), not_true(logits, labels), self.options.tau)
        return Loss(hard + self.options.beta * soft, {"ce": hard, "ntd": soft})


def not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits without each row's own class.

    Args:
        logits: [batch, classes], at least two classes; gradient passes to those that stay.
        labels: [batch] int64.
    Returns: [batch, classes - 1], the other classes in their order.
    """
    place = torch.arange(logits.shape[1] - 1, device=logits.device)
    # Class c of the others is class c before the label and class c + 1 from it on.
    return logits.gather(1, place + (place >= labels[:, None]).long())
