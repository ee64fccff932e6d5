"""Co-Boosting: DENSE whose images and ensemble improve one another, epoch by epoch.

Dai, Zhang, Li, Liu, Yang, Han 2024, Enhancing One-Shot Federated Learning Through Data and Ensemble
Co-Boosting, ICLR, arXiv 2402.15070.

    z_e        sum_k w_k f_k(x) / sum_k w_k; w_k = 1 / K at first
    each epoch (1) a generator that starts afresh, with its noise: steps of Adam on
                   lambda_ce mean (1 - p_y)^hs CE(z_e, y) + lambda_bn L_BN - lambda_adv L_A
                   p_y: the ensemble's probability of y, a number; L_A = T_a^2 KL(z_e, z_s; T_a)
                   its images join the pool
               (2) from the second epoch on, for each batch of the pool with its classes y
                   w <- clip(w - mu 0.99^epoch sign(grad_w CE(z_e, y)), 0, 1)
               (3) one pass of the student over the pool, each image moved to where the ensemble is less sure:
                   x + radius sign(grad_x r . softmax(z_e(x) / T)), r uniform in [-1, 1]^C
                   T^2 KL(z_e, z_s; T)
    up, down   as DENSE's

KL(a, b; T) is that of softmaxes of logits over T. The rate of (3) falls on a cosine over the epochs. Reading
beside DENSE's: `radius` is of images as the model sees them. With mu, hs and radius 0 it is DENSE whose L_div
has no mask and a temperature, with the cosine, and gradients clipped at 10.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import FlatModule, ServerContext
from rayfed_kd.toolbox.data_free.one_shot import OneShot
from rayfed_kd.toolbox.data_free.synthesis import (
    ImagePool,
    StudentOptimizer,
    Synthesis,
    SynthesisOptions,
    Teachers,
    Terms,
)
from rayfed_kd.toolbox.losses import cross_entropy, distillation, kl_divergence
from rayfed_kd.toolbox.optimizers import Optimizer

FADE = 0.99  # factor of the weights' step an epoch
CLIP = 10.0  # largest norm of a gradient, the generator's and the student's


class BoostedOptimizer(StudentOptimizer):
    """The student's optimiser; what is not given is as released."""

    lr: float = Field(0.01, gt=0, description="learning rate of the first epoch")
    weight_decay: float = Field(1e-4, ge=0, description="weight decay")


class Options(SynthesisOptions):
    """Co-Boosting's options; the defaults are those of the released script."""

    images: int = Field(128, ge=2, description="images that an epoch adds to the pool")
    batch_size: int = Field(128, ge=1, description="images of the pool in a step of w and of the student")
    lambda_bn: float = Field(0.0, ge=0, description="weight of the distance of BatchNorm's statistics")
    optimizer: BoostedOptimizer = BoostedOptimizer()
    hardness: float = Field(
        1.0, ge=0, description="hs: how much more images count that the ensemble fails at"
    )
    adversarial_temperature: float = Field(3.0, gt=0, description="T_a")
    mu: float = Field(0.01, ge=0, description="step of the ensemble's weights in the first epoch")
    radius: float = Field(8 / 255, ge=0, description="how far each pixel is moved before the student sees it")
    temperature: float = Field(4.0, gt=0, description="T of the student's loss, which is times T^2")


class CoBoosting(OneShot, plain_training=True):
    """Data and ensemble co-boosting."""

    options: Options
    summary = "one exchange: DENSE with harder images and an ensemble whose weights learn"
    paper = "Dai et al. 2024, arXiv 2402.15070"

    def distil(self, student: FlatModule, teachers: Teachers, ctx: ServerContext) -> ImagePool:
        """Epochs of a new generator, of the weights, and of the student."""
        options, pool = self.options, ImagePool(ctx)
        weights = torch.full((len(teachers),), 1 / len(teachers), device=ctx.device)
        generator = ctx.model(ctx.initial_vector("generator"), "generator")
        synthesis = Synthesis(teachers, student, generator, options, ctx, CLIP)
        fit = partial(hard_cross_entropy, hardness=options.hardness)
        apart = partial(student_divergence, temperature=options.adversarial_temperature)
        learning = Optimizer(options.optimizer, student)
        for epoch in range(options.epochs):
            student.freeze()
            pool.add(*synthesis.images(epoch, Terms(partial(mixed, weights), fit, apart)))
            if epoch and options.mu:
                for images, labels in pool.batches(options.batch_size):
                    with torch.no_grad():
                        logits = teachers(images)
                    weights = boosted(weights, logits, labels, options.mu * FADE**epoch)
            student.train()
            pace = (1 + math.cos(math.pi * epoch / options.epochs)) / 2
            for images, _ in pool.batches(options.batch_size):
                moved = self.moved(images, teachers, weights, ctx) if options.radius else images
                with torch.no_grad():
                    mixture = mixed(weights, teachers(moved))
                kl = distillation(mixture, student(moved), options.temperature)
                ctx.log(distillation=kl, largest_weight=weights.max() / weights.sum())
                learning.minimise(kl, factor=pace, clip=CLIP)
        return pool

    def moved(self, images: Tensor, teachers: Teachers, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Images, [n, c, h, w], each pixel by the radius along the slope of random sums of probabilities."""
        x = images.clone().requires_grad_()
        mixture = (mixed(weights, teachers(x)) / self.options.temperature).softmax(1)
        r = torch.rand(mixture.shape, generator=ctx.stream("directions"), device=mixture.device) * 2 - 1
        (slope,) = torch.autograd.grad((r * mixture).sum(), x)
        return images + self.options.radius * slope.sign()


def mixed(weights: Tensor, logits: Tensor) -> Tensor:
    """z_e, [batch, C], of weights [K] and logits [K, batch, C]."""
    return torch.einsum("k,kbc->bc", weights / weights.sum(), logits)


def hard_cross_entropy(logits: Tensor, labels: Tensor, hardness: float) -> Tensor:
    """(1 - p_y)^hs CE, mean over the batch; gradient passes through CE alone."""
    losses = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - torch.exp(-losses.detach())) ** hardness * losses).mean()


def student_divergence(mixture: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(mixture / T), softmax(logits / T)), mean over the batch; gradient reaches both."""
    return temperature**2 * kl_divergence(mixture / temperature, logits / temperature)


def boosted(weights: Tensor, logits: Tensor, labels: Tensor, step: float) -> Tensor:
    """w after a step of sign descent on CE(z_e, y), in [0, 1].

    Args:
        weights: [K]; logits: [K, batch, C]; labels: [batch] int64.
        step: mu 0.99^epoch.
    """
    w = weights.clone().requires_grad_()
    (slope,) = torch.autograd.grad(cross_entropy(mixed(w, logits), labels), w)
    # Never all at 0: sum_k w_k slope_k is 0, so where a weight falls another one rises.
    return (weights - step * slope.sign()).clamp(0, 1)
