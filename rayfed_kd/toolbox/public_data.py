"""What methods that exchange predictions share: a round's public samples, learning what is said of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Context, MethodOptions, ServerContext
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
    by_id = values.new_zeros(len(ctx.public), *values.shape[1:]).index_copy(0, ids, values)
    for epoch in epochs:
        for chosen, images in ctx.public.epoch(epoch, batch_size, ids):
            yield images, by_id[chosen]


def train_on_soft_labels(
    student: FlatModule, batches: Iterable[tuple[Tensor, Tensor]], optimizer: Optimizer, ctx: Context
) -> None:
    """Steps on the cross entropy with soft labels, logged as `soft_ce`.

    Args:
        batches: images [batch, ...] with labels [batch, classes], as from `paired_batches`.
    """
    for images, labels in batches:
        loss = soft_cross_entropy(labels, student(images))
        ctx.log(soft_ce=loss)
        optimizer.minimise(loss)
