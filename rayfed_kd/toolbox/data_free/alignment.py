"""What clients say of their classes, brought to the latent space of a generator: FedKTL's server.

Zhang, Liu, Hua, Cao 2024, arXiv 2403.15760; the kernel is that of its released code.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import MethodOptions, OptimizerName, OptimizerRecipe, ServerContext
from rayfed_kd.toolbox.by_class.means import ClassMeans, PerClass, spread
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer, minimise

BANDWIDTHS = (10, 15, 20, 50)


class AlignmentOptimizer(OptimizerRecipe):
    """The server's optimiser; what is not given is as released."""

    name: OptimizerName = "adam"
    lr: float = Field(0.01, gt=0, description="learning rate")


class AlignmentOptions(MethodOptions):
    """How the server brings outputs to latents."""

    lambda_mse: float = Field(1.0, ge=0, description="weight of the distance from the class's latent, lambda")
    server_epochs: int = Field(100, ge=0, description="passes over the round's outputs at the server")
    server_batch_size: int = Field(100, ge=2, description="outputs a step there")
    server_optimizer: AlignmentOptimizer = AlignmentOptimizer()


def aligned(
    transformer: FlatModule, sent: Tensor, labels: Tensor, options: AlignmentOptions, ctx: ServerContext
) -> PerClass:
    """Train Fs on MMD(Fs(q), w) + lambda MSE(Fs(q), a_c), and give the mean Fs(q) of each class that came.

    Args:
        transformer: Fs; it is trained.
        sent: [n, C], the q_{k,c}.
        labels: [n] int64, their classes.
        options: passes, batches, rates.
        ctx: w is normal, from its stream "latents"; it logs `mmd` and `latent_mse`.
    """
    start = _class_means(transformer, sent, labels, ctx)
    centres = FreeTensor(spread(start.classes, start.values, ctx.classes)[0])
    optimizers = [Optimizer(options.server_optimizer, trained) for trained in (transformer, centres)]
    stream = ctx.stream("latents")
    for _ in range(options.server_epochs):
        order = torch.randperm(len(labels), generator=stream, device=labels.device)
        for batch in ctx.in_batches(order, options.server_batch_size):
            if len(batch) == 1:  # BatchNorm has no variance of one
                continue
            latents = transformer(sent[batch])
            normal = torch.randn(latents.shape, generator=stream, device=latents.device)
            apart = discrepancy(latents, normal)
            error = F.mse_loss(latents, centres.value[labels[batch]])
            ctx.log(mmd=apart, latent_mse=error)
            minimise(apart + options.lambda_mse * error, *optimizers)
    return _class_means(transformer, sent, labels, ctx)


def discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """MMD: mean over all pairs of k(x, x') + k(y, y') - 2 k(x, y), k = sum_b exp(-||.||^2 / (2 b)), scalar.

    Args:
        first, second: [n, length], as many; gradient passes.
    """

    def kernel(rows: Tensor, columns: Tensor) -> Tensor:
        squares = (rows[:, None] - columns).square().sum(2)
        return torch.stack([torch.exp(-squares / (2 * width)) for width in BANDWIDTHS]).sum(0).mean()

    return kernel(first, first) + kernel(second, second) - 2 * kernel(first, second)


def _class_means(transformer: FlatModule, sent: Tensor, labels: Tensor, ctx: ServerContext) -> PerClass:
    means = ClassMeans(ctx.classes)
    means.add(transformer.predict(sent), labels)
    return means.result()
