"""What clients say of their classes, brought to the latent space of a server's generator: FedKTL's server.

Zhang, Liu, Hua, Cao 2024, arXiv 2403.15760; the kernel is that of its released code. The generator is given
as a file, or trained there on public images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    Architecture,
    FlatModule,
    MethodOptions,
    OptimizerName,
    OptimizerRecipe,
    RecipeError,
    ServerContext,
)
from rayfed_kd.toolbox.by_class.means import PerClass, class_means, spread
from rayfed_kd.toolbox.generation import GeneratorOptions, generate, noise
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer, minimise

PATH = "method.generator.file"
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
    start = class_means([(transformer.predict(sent), labels)], ctx.classes)
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
    return class_means([(transformer.predict(sent), labels)], ctx.classes)


def discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """MMD: mean over all pairs of k(x, x') + k(y, y') - 2 k(x, y), k = sum_b exp(-||.||^2 / (2 b)), scalar.

    Args:
        first, second: [n, length], as many; gradient passes.
    """

    def kernel(rows: Tensor, columns: Tensor) -> Tensor:
        squares = (rows[:, None] - columns).square().sum(2)
        return torch.stack([torch.exp(-squares / (2 * width)) for width in BANDWIDTHS]).sum(0).mean()

    return kernel(first, first) + kernel(second, second) - 2 * kernel(first, second)


class LatentGenerator(GeneratorOptions):
    """A generator of images from latents of normal numbers."""

    latent: int = Field(100, ge=1, description="length of a latent, d_w")
    file: str | None = Field(
        None, description="safetensors of its state_dict; null: it is trained at the server on public images"
    )
    epochs: int = Field(100, ge=1, description="without a file: passes over the public images")
    batch_size: int = Field(64, ge=2, description="public images a step")
    latent_lr: float = Field(0.05, gt=0, description="Adam's learning rate of the public images' latents")

    def architecture(
        self, space: Literal["images", "maps", "features"] = "images", *, conditional: bool = False
    ) -> Architecture:
        """What contexts make as "generator"."""
        plain = super().architecture(space, conditional=conditional)
        options = {**plain.options, "latent": self.latent}
        return Architecture("generator", self.name, options, space=space, conditional=conditional)

    def given(self, ctx: ServerContext) -> Tensor | None:
        """The vector of the file's generator, [G], on the CPU; None without a file.

        Raises: RecipeError if it cannot be read, or holds other tensors than the generator's.
        """
        if self.file is None:
            return None
        try:
            tensors = load_file(Path(self.file).expanduser())
        except (OSError, SafetensorError) as error:
            raise RecipeError(f"{PATH}: {self.file} cannot be read as safetensors: {error}") from None
        generator = ctx.model(ctx.initial_vector("generator"), "generator")
        try:
            generator.module.load_state_dict(tensors)
        except RuntimeError as error:
            detail = " ".join(str(error).split())
            raise RecipeError(
                f"{PATH}: {self.file} is not of {self.name} with these options: {detail}"
            ) from None
        return generator.vector().cpu()

    def trained(self, ctx: ServerContext) -> Tensor:
        """The vector of a generator trained on the public images, [G], on the CPU; logs `generator_mse`.

        Generator and a latent for each image are fitted together to the images by squared error, latents kept
        on the sphere that normal numbers are close to (Bojanowski et al. 2018, GLO, arXiv 1707.05776).
        """
        generator = ctx.model(ctx.initial_vector("generator"), "generator")
        codes = FreeTensor(on_sphere(noise(len(ctx.public), generator, ctx)))
        rates = self.optimizer.model_copy(update={"lr": self.latent_lr, "weight_decay": 0.0})
        adams = [Optimizer(self.optimizer, generator), Optimizer(rates, codes)]
        for epoch in range(self.epochs):
            for ids, images in ctx.public.epoch(epoch, self.batch_size):
                error = F.mse_loss(generate(generator, codes.value[ids], None, ctx), images)
                ctx.log(generator_mse=error)
                minimise(error, *adams)
                codes.trainable.copy_(on_sphere(codes.trainable))
        return generator.vector().cpu()


def on_sphere(latents: Tensor) -> Tensor:
    """Latents, [n, d_w], each of length sqrt(d_w)."""
    return F.normalize(latents, dim=1).mul(latents.shape[1] ** 0.5)
