"""What methods that exchange predictions share: a round's public samples, learning what is said of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Context, MethodOptions, ServerContext
from rayfed_kd.toolbox.local_training import BatchLoss, Loss, Models, OwnBatch, Phase, Tensors, train_phases
from rayfed_kd.toolbox.losses import soft_cross_entropy
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


def drawn_seed(ctx: ServerContext) -> int:
    """What a round's public samples are drawn from."""
    stream = ctx.stream("public samples")
    return int(torch.randint(2**31, (), generator=stream, device=stream.device))


def paired_batches(
    ids: Tensor, values: Tensor, ctx: Context, epochs: Iterable[int], batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of public samples with what is said of each: images [batch, ...] and rows of `values`.

    Args:
        ids: [n] int64, the samples.
        values: [n, ...], on the step's device, in the order of `ids`.
        epochs: numbers of the passes, each in an order of its own.
    """
    # Indexed by id, because a pass gives ids in an order of its own.
    by_id = values.new_zeros(len(ctx.public), *values.shape[1:]).index_copy(0, ids, values)
    for epoch in epochs:
        for chosen, images in ctx.public.epoch(epoch, batch_size, ids):
            yield images, by_id[chosen]


def soft_label_loss(models: Models, batch: Tensors, given: Tensors) -> Loss:
    """The student's cross entropy with what is said of a batch, probabilities; logged as `soft_ce`."""
    loss = soft_cross_entropy(batch["said"], models["student"](batch["images"]))
    return Loss(loss, {"soft_ce": loss})


def train_on_public(
    student: FlatModule,
    loss: BatchLoss,
    said: tuple[Tensor, Tensor],
    ctx: Context,
    *,
    epochs: int,
    batch_size: int,
    optimizer: Optimizer,
) -> None:
    """Steps on what is said of public samples; clients of a group take them as one.

    Args:
        student: what is trained, `models["student"]` to the loss.
        loss: of a batch with "images" [batch, ...] and "said" [batch, ...].
        said: ids [n] int64, and what is said of these samples, [n, ...], on the step's device.
        ctx: the client's or the server's.
        epochs: passes over the samples, each in an order of its own.
        batch_size: samples a step.
        optimizer: on the student.
    """

    def batches() -> Iterator[OwnBatch]:
        for images, values in paired_batches(*said, ctx, range(epochs), batch_size):
            yield None, {"images": images, "said": values}

    train_phases({"student": student}, [Phase(loss, [optimizer])], batches, ctx)


def train_on_public_labels(
    student: FlatModule,
    ctx: Context,
    *,
    epochs: int,
    batch_size: int,
    optimizer: Optimizer,
    loss: BatchLoss,
    said: Tensor | None = None,
) -> None:
    """Steps on the labels of all public samples, and on what is said of them.

    Args:
        student: what is trained, `models["student"]` to the loss.
        ctx: the client's.
        epochs: passes over all public samples, each in an order of its own.
        batch_size: samples a step.
        optimizer: on the student.
        loss: of a batch with "images" [batch, ...], "labels" [batch] int64, and "said" if it is given.
        said: by id, [N0, ...].
    Raises: RunError if the public labels are not known.
    """

    def batches() -> Iterator[OwnBatch]:
        public = ctx.public
        for epoch in range(epochs):
            for ids, images in public.epoch(epoch, batch_size):
                batch = {"images": images, "labels": public.labels(ids)}
                yield None, batch if said is None else {**batch, "said": said[ids]}

    train_phases({"student": student}, [Phase(loss, [optimizer])], batches, ctx)
