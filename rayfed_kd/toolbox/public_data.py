"""What methods that exchange predictions share: a round's public samples, learning what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.data.augment import augment, check_augmentation
from rayfed_kd.errors import RecipeError
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Context, Control, MethodOptions, ServerContext
from rayfed_kd.toolbox.local_training import BatchLoss, Loss, Models, OwnBatch, Phase, Tensors, train_phases
from rayfed_kd.toolbox.losses import cross_entropy, soft_cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer


class PublicOptions(MethodOptions):
    """Which public samples a round is about."""

    public_samples: int | None = Field(None, ge=1, description="public samples a round, N0; null: all")

    def check_public(self, ctx: ServerContext) -> None:
        """Raises RecipeError if there are not so many."""
        if (self.public_samples or 0) > len(ctx.public):
            raise RecipeError(
                f"method.public_samples = {self.public_samples}: there are {len(ctx.public)} in all"
            )

    def ids(self, seed: int, ctx: Context) -> Tensor:
        """A round's public samples, [N0] int64, the same at the server and at every client.

        Args:
            seed: from `drawn_seed`; it goes down as a number, so that no ids travel.
        """
        if self.public_samples is None:
            return ctx.public.ids
        # Drawn on the CPU, so that server and clients get the same samples on any device.
        order = torch.randperm(len(ctx.public), generator=torch.Generator().manual_seed(int(seed)))
        return order[: self.public_samples].to(ctx.device)


# Of methods with `TeacherOptions` that train on public labels, as their `controls` give them.
TEACHER_CONTROLS: dict[Control, Sequence[str]] = {
    "labels alone": ["method.teacher=none"],
    "teacher at chance": ["method.teacher=uniform"],
}


class TeacherOptions(MethodOptions):
    """Whose logits are distilled; a teacher that knows nothing is a control."""

    teacher: Literal["exchanged", "uniform", "none"] = Field(
        "exchanged", description="of public samples; controls: uniform: at chance, none: labels alone"
    )

    def taught(self, logits: Tensor) -> Tensor:
        """The teacher's logits, [n, C], or those of a teacher at chance, all zero."""
        return logits if self.teacher == "exchanged" else torch.zeros_like(logits)


class AugmentingOptions(MethodOptions):
    """How public images are changed where a model trains on them."""

    public_augment: Literal["none", "crop_flip", "reflect_crop_flip", "crop_flip_rotate"] = Field(
        "none", description="augmentation of public images in training; predictions are of the stored ones"
    )

    def check_augment(self, ctx: Context) -> None:
        """Raises RecipeError if the images cannot take it."""
        check_augmentation(self.public_augment, ctx.shape, "method.public_augment")

    def training_images(self, ids: Tensor, stored: Tensor, ctx: Context) -> Tensor:
        """What a model trains on in place of stored images: [n, ...], normalised, of public samples [n]."""
        if self.public_augment == "none":
            return stored
        stream = ctx.stream("public augment")
        return ctx.public.images(ids, partial(augment, name=self.public_augment, stream=stream))


def drawn_seed(ctx: ServerContext, of: str = "public samples") -> int:
    """What a round's samples are drawn from; it goes down as a number."""
    stream = ctx.stream(of)
    return int(torch.randint(2**31, (), generator=stream, device=stream.device))


def soft_label_loss(models: Models, batch: Tensors, extras: Tensors) -> Loss:
    """The student's cross entropy with what is said of a batch, probabilities; logged as `soft_ce`."""
    loss = soft_cross_entropy(batch["said"], models["student"](batch["images"]))
    return Loss(loss, {"soft_ce": loss})


def public_label_loss(models: Models, batch: Tensors, extras: Tensors) -> Loss:
    """Cross entropy, not logged: it is of another data set than the tables' `ce`."""
    return Loss(cross_entropy(models["student"](batch["images"]), batch["labels"]))


def train_on_public(
    student: FlatModule,
    loss: BatchLoss,
    ctx: Context,
    *,
    epochs: int,
    batch_size: int | None = None,
    optimizer: Optimizer | None = None,
    ids: Tensor | None = None,
    said: Tensor | None = None,
    labelled: bool = False,
    augmenting: AugmentingOptions | None = None,
) -> None:
    """Steps on public samples: on their labels, on what is said of them, or both. It batches over clients.

    Args:
        student: what is trained, `models["student"]` to the loss.
        loss: of a batch with "images" [batch, ...], and where they are given "said" [batch, ...] and
            "labels" [batch] int64.
        ctx: the client's or the server's.
        epochs: passes over the samples, each in an order of its own.
        batch_size: samples a step; None: the recipe's.
        optimizer: on the student; None: the recipe's, afresh.
        ids: [n] int64, the samples; None: all.
        said: [n, ...], what is said of each, on the step's device; None: nothing.
        labelled: whether a batch has labels.
        augmenting: how images are changed; None: not at all.
    Raises: RunError if labels are asked for and the public labels are not known.
    """
    by_id = said if said is None or ids is None else values_by_id(ids, said, ctx)
    size, stepping = batch_size or ctx.local.batch_size, optimizer or Optimizer(ctx.local.optimizer, student)

    def batches() -> Iterator[OwnBatch]:
        for epoch in range(epochs):
            for chosen, stored in ctx.public.epoch(epoch, size, ids):
                images = stored if augmenting is None else augmenting.training_images(chosen, stored, ctx)
                batch = {"images": images}
                if labelled:
                    batch["labels"] = ctx.public.labels(chosen)
                if by_id is not None:
                    batch["said"] = by_id[chosen]
                yield None, batch

    # Epochs and steps are counted in passes over the client's own samples: no rate changes in others.
    counted = stepping.pace, stepping.steps
    stepping.pace = None
    train_phases({"student": student}, [Phase(loss, [stepping])], batches(), ctx)
    stepping.pace, stepping.steps = counted


def values_by_id(ids: Tensor, values: Tensor, ctx: Context) -> Tensor:
    """What is said of some public samples, [n, ...], as rows by the samples' ids; other rows are 0."""
    return values.new_zeros(len(ctx.public), *values.shape[1:]).index_copy(0, ids, values)
