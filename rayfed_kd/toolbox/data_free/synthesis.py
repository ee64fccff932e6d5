"""Images synthesised from clients' models as teachers, by a generator that starts afresh again and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Context, MethodOptions, OptimizerName, OptimizerRecipe, Samples, ServerContext
from rayfed_kd.toolbox.by_class.means import weighted_by_class
from rayfed_kd.toolbox.generation import SHOWN, GeneratorOptions, generate, noise, uniform_labels
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer, minimise

BETAS = (0.5, 0.999)  # Adam's, of generators since Radford et al. 2016 (DCGAN), arXiv 1511.06434


class StudentOptimizer(OptimizerRecipe):
    """The student's optimiser; what is not given is as released."""

    name: OptimizerName = "sgd"
    lr: float = Field(0.005, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum")


class SynthesisOptions(MethodOptions):
    """How images are synthesised, and how the student is distilled on them."""

    generator: GeneratorOptions = GeneratorOptions()
    epochs: int = Field(200, ge=0, description="epochs at the server; 0: the student stays as it is")
    generator_steps: int = Field(30, ge=1, description="steps of a new generator in each epoch")
    images: int = Field(256, ge=2, description="images that an epoch adds to the pool")
    batch_size: int = Field(256, ge=1, description="images of the pool in a step of the student")
    lambda_ce: float = Field(1.0, ge=0, description="weight of the teachers' cross entropy")
    lambda_bn: float = Field(1.0, ge=0, description="weight of the distance of BatchNorm's statistics")
    bn_over: Literal["mean", "sum"] = Field("mean", description="L_BN over the clients")
    initialisation: Literal["torch", "normal"] = Field(
        "torch", description="of the generator: torch's for each kind of layer, or N(0, 0.02) as released"
    )
    lambda_adv: float = Field(1.0, ge=0, description="weight of what teachers and student differ in")
    optimizer: StudentOptimizer = StudentOptimizer()


class Teachers(list[FlatModule]):
    """Frozen models, at least one, one after another: grouped convolutions are slower on a CPU."""

    def __call__(self, images: Tensor) -> Tensor:
        """Logits, [K, batch, C]; gradient reaches the images."""
        return torch.stack([model(images) for model in self])

    def with_gap(self, images: Tensor, over: Literal["mean", "sum"] = "mean") -> tuple[Tensor, Tensor]:
        """Logits, and how far the batch is from the teachers' real images.

        Yin et al. 2020 (DeepInversion), arXiv 1912.08795, eq. 4, as DENSE has it: over all BatchNorm layers
        of a teacher, the sum of ||running variance - variance||_2 + ||running mean - mean||_2, of what the
        layer is given; the variance is the biased one.

        Args:
            images: [batch, c, h, w], as models see them.
            over: the teachers' mean or sum is taken; one without BatchNorm layers counts as 0.
        Returns: [K, batch, C]; scalar, 0 without BatchNorm layers. Gradient reaches the images.
        """
        gaps: list[Tensor] = []

        def compare(layer: Any, inputs: tuple[Tensor, ...]) -> None:
            hidden = inputs[0].transpose(0, 1).flatten(1)  # [channels, all places of all images]
            variance, mean = torch.var_mean(hidden, dim=1, correction=0)
            gaps.append((layer.running_var - variance).norm() + (layer.running_mean - mean).norm())

        layers = [part for model in self for part in model.submodules if isinstance(part, _BatchNorm)]
        hooks = [layer.register_forward_pre_hook(compare) for layer in layers if layer.track_running_stats]
        try:
            logits = self(images)
        finally:
            # The modules are lent: a hook that stays would see the next step's images, too.
            for hook in hooks:
                hook.remove()
        total = torch.stack(gaps).sum() if gaps else logits.new_zeros(())
        return logits, total / len(self) if over == "mean" else total


class ImagePool:
    """All images so far with the classes asked for, in 8 bits a pixel, as the released codes keep them.

    Args:
        ctx: the server's; passes draw from its stream "pool order".
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._images: list[Tensor] = []
        self._labels: list[Tensor] = []

    def __len__(self) -> int:
        return sum(len(labels) for labels in self._labels)

    def add(self, images: Tensor, labels: Tensor) -> None:
        """Adds images as the model sees them, [n, c, h, w], and their classes, [n] int64."""
        self._images.append(self._ctx.pixels(images).mul(255).round().to(torch.uint8))
        self._labels.append(labels)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass in an order of its own: images as the model sees them, and classes."""
        stream, device = self._ctx.stream("pool order"), self._ctx.device
        images, labels = torch.cat(self._images), torch.cat(self._labels)
        order = torch.randperm(len(self), generator=stream, device=device)
        for chosen in self._ctx.in_batches(order, size):
            yield self._ctx.normalise(images[chosen].float() / 255), labels[chosen]

    def newest(self) -> Samples:
        """Some of the images that came last, [n, c, h, w] in [0, 1]; without any n is 0."""
        if not self._images:
            return Samples(torch.zeros(0, *self._ctx.shape), torch.zeros(0, dtype=torch.int64))
        return Samples(self._images[-1][:SHOWN].float().cpu() / 255, self._labels[-1][:SHOWN].cpu())


class Terms(NamedTuple):
    """What of a generator's loss is a method's own.

    Attributes:
        mixed: the ensemble's logits [batch, C] from its members' [K, batch, C].
        fit: the ensemble's logits, classes [batch] -> scalar, small where they are of these classes.
        apart: logits of the ensemble and of the student -> scalar, large where they differ.
    """

    mixed: Callable[[Tensor], Tensor]
    fit: Callable[[Tensor, Tensor], Tensor]
    apart: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Synthesis:
    """A generator's training against teachers and a student.

    Attributes:
        teachers, student: frozen.
        generator: in train mode; its values are given up at each fresh start.
        options: the weights of the terms, steps, images, Adam's rate.
        ctx: noise and classes are from its streams "noise" and "labels"; it logs the terms.
        clip: largest norm of the generator's gradient, and of the noise's; None: any.
    """

    teachers: Teachers
    student: FlatModule
    generator: FlatModule
    options: SynthesisOptions
    ctx: ServerContext
    clip: float | None = None

    def images(self, draw: int, terms: Terms) -> tuple[Tensor, Tensor]:
        """Train a generator that starts afresh, with its noise, for images of random classes.

        Args:
            draw: number of the fresh start in this round.
            terms: of the loss.
        Returns: the images of the step whose loss was the smallest, as models see them; their classes.
        """
        options, ctx, generator = self.options, self.ctx, self.generator
        generator.load(ctx.redrawn_vector(draw, "generator"))
        if options.initialisation == "normal":
            draw_normal(generator, ctx.stream("initialisation"))
        z, labels = FreeTensor(noise(options.images, generator, ctx)), uniform_labels(options.images, ctx)
        adams = [Optimizer(options.generator.optimizer, trained, betas=BETAS) for trained in (generator, z)]
        least, best = math.inf, None
        for _ in range(options.generator_steps):
            images = generate(generator, z.value, None, ctx)
            loss = self.loss(images, labels, terms)
            # The first in any case: a loss that is not finite shows in the student, which the run refuses.
            if best is None or loss.item() < least:
                least, best = loss.item(), images.detach()
            minimise(loss, *adams, clip=self.clip)
        assert best is not None
        return best, labels

    def loss(self, images: Tensor, labels: Tensor, terms: Terms) -> Tensor:
        """lambda_ce fit + lambda_bn gap - lambda_adv apart; terms without weight are not computed."""
        options, gap = self.options, images.new_zeros(())
        if options.lambda_bn:
            logits, gap = self.teachers.with_gap(images, options.bn_over)
        else:
            logits = self.teachers(images)
        mixture = terms.mixed(logits)
        fit = terms.fit(mixture, labels)
        self.ctx.log(generator_ce=fit, batchnorm_gap=gap)
        loss = options.lambda_ce * fit + options.lambda_bn * gap
        if options.lambda_adv:
            apart = terms.apart(mixture, self.student(images))
            self.ctx.log(disagreement=apart)
            loss = loss - options.lambda_adv * apart
        return loss


@torch.no_grad()
def draw_normal(model: FlatModule, stream: torch.Generator) -> None:
    """Draw weights as DCGAN does: N(0, 0.02), those of BatchNorm N(1, 0.02), and biases of 0.

    Radford et al. 2016, arXiv 1511.06434.

    Args:
        model: its linear layers, convolutions and BatchNorm; other layers keep their weights.
        stream: decides.
    """
    for layer in model.submodules:
        normalises = isinstance(layer, _BatchNorm)
        if not normalises and not isinstance(layer, nn.Linear | _ConvNd):
            continue
        for name, parameter in layer.named_parameters(recurse=False):
            if name == "weight":
                parameter.normal_(1.0 if normalises else 0.0, 0.02, generator=stream)
            elif name == "bias":
                parameter.zero_()


class LossGuard:
    """Leaves out a loss above 3 times the mean of the last 20 that stayed, once there are 10, if it is `on`.

    `windows`, name of a loss -> its last values, [at most 20] float64, are those that it begins with.
    """

    def __init__(self, windows: Mapping[str, Tensor], *, on: bool) -> None:
        self.windows, self.on = dict(windows), on

    def keeps(self, name: str, loss: Tensor) -> bool:
        """Whether a scalar loss stays; one that is no number does, and the run refuses what comes of it."""
        if not self.on:
            return True
        last, value = self.windows.get(name, torch.zeros(0, dtype=torch.float64)), loss.item()
        if len(last) >= 10 and 0 < 3 * last.mean() < value:
            return False
        self.windows[name] = torch.cat([last, last.new_tensor([value])])[-20:]
        return True


class GeneratorRates(GeneratorOptions):
    """The generator; FedRevive's released one is `dafl_image` with `width` and `latent` 256."""

    lr: float = Field(0.003, gt=0, description="Adam's learning rate, of the copy as well")


class ByClassOptions(MethodOptions):
    """What FedRevive's generator learns from teachers k that count by class, a_k(y), beside a student u.

    L_feat    sum_k mean(a_k) sum over layers (||mu - mu_run|| + ||var - var_run||)
    L_label   mean of sum_k a_k CE(f(w_k), y)
    L_adv     - mean of sum_k a_k 1[u and w_k say the same class] KL(s(f(w_k)), s(f(u)))
    """

    generator: GeneratorRates = GeneratorRates()
    generator_steps: int = Field(2, ge=1, description="steps of a synthesis, K_synth")
    latent_lr: float = Field(0.001, gt=0, description="Adam's learning rate of noise and embeddings")
    lambda_feature: float = Field(0.003, ge=0, description="weight of L_feat")
    lambda_label: float = Field(1.0, ge=0, description="weight of L_label")
    lambda_adv: float = Field(0.1, ge=0, description="weight of L_adv, from update `blend_after` on")

    def loss(
        self, logits: Tensor, gaps: Tensor, y: Tensor, shares: Tensor, u: Tensor | None, guard: LossGuard
    ) -> Tensor:
        """l_f L_feat + l_l L_label + l_a L_adv, scalar; without gradient if the guard leaves out all of it.

        Args:
            logits, gaps: [k, n, C] and [k], of each teacher as `with_gap` gives them.
            y, shares, u: [n] int64; a_k(y), [k, n]; the student's logits, [n, C], or None: no L_adv.
            guard: of L_feat and L_label; L_adv is never above 0.
        """
        taught, feature = logits.log_softmax(2), self.lambda_feature * (shares.mean(1) * gaps).sum()
        costs = F.nll_loss(taught.flatten(0, 1), y.repeat(len(logits)), reduction="none").view_as(shares)
        costs = self.lambda_label * costs
        # Zeros, not times 0, which would have a gradient: Adam would step on its moments.
        costs = costs if guard.keeps("label", weighted_by_class(costs, shares)) else torch.zeros_like(costs)
        feature = feature if guard.keeps("feature", feature) else torch.zeros_like(feature)
        if u is not None:
            apart = (taught.exp() * (taught - u.log_softmax(1))).sum(2)
            costs = costs - self.lambda_adv * (logits.argmax(2) == u.argmax(1)) * apart
        return feature + weighted_by_class(costs, shares)
