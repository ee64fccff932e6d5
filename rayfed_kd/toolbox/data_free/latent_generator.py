"""A generator with a latent space at the server: given as a file, or trained there on public images."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.errors import RecipeError
from rayfed_kd.protocol import Architecture, ServerContext
from rayfed_kd.toolbox.generation import GeneratorOptions, generate, noise
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer, minimise

PATH = "method.generator.file"


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
            said = " ".join(str(error).split())
            raise RecipeError(
                f"{PATH}: {self.file} is not of {self.name} with these options: {said}"
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
