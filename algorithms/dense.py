"""DENSE: one exchange; the server distils the ensemble of its clients' models on images made from them.

Zhang, Chen, Li, Lyu, Wu, Ding, Shen, Wu 2022, DENSE: Data-Free One-Shot Federated Learning, NeurIPS,
arXiv 2112.12371.

    z_e, z_s   mean_k f_k(x), the ensemble's logits, and the student's
    each epoch a generator that starts afresh, with its noise: steps of Adam on
               lambda_ce CE(z_e, y) + lambda_bn L_BN - lambda_adv L_div,  y random
    L_BN       distance of the images' statistics from running ones: the sum over a model's BatchNorm layers,
               the mean over clients
    L_div      mean of KL(softmax(z_e), softmax(z_s)) where arg max z_s is not arg max z_e, else 0
    pool       the images of the step of the smallest loss join those of all epochs before
    student    one pass over the pool on T^2 KL(softmax(z_e / T), softmax(z_s / T))
    up         the trained model                       4 P_k bytes a client
    down       the student, before a further exchange  4 P bytes a client; nothing before the first

Clients' models may be of any architectures; the student is of the recipe's `model`. Readings: the last epoch
counts (the released code takes the best by test accuracy); the student is in eval mode while images are made;
generators start from torch's weights (released: N(0, 0.02), an option); no augmentation. Without epochs the
student is the initial model.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import FlatModule, ServerContext
from rayfed_kd.toolbox.data_free.one_shot import OneShot
from rayfed_kd.toolbox.data_free.synthesis import ImagePool, Synthesis, SynthesisOptions, Teachers, Terms
from rayfed_kd.toolbox.losses import cross_entropy, distillation
from rayfed_kd.toolbox.optimizers import Optimizer


class Options(SynthesisOptions):
    """DENSE's options; the defaults are those of the released command."""

    temperature: float = Field(20.0, gt=0, description="T of the student's loss, which is times T^2")


class DENSE(OneShot, plain_training=True):
    """Data-free one-shot federated learning."""

    options: Options
    summary = "one exchange: the server distils clients' models of any architectures on images made from them"
    paper = "Zhang et al. 2022, arXiv 2112.12371"

    def distil(self, student: FlatModule, teachers: Teachers, ctx: ServerContext) -> ImagePool:
        """Epochs of a new generator, whose images join the pool, and of a pass of the student over it."""
        options, pool = self.options, ImagePool(ctx)
        generator = ctx.model(ctx.initial_vector("generator"), "generator")
        synthesis = Synthesis(teachers, student, generator, options, ctx)
        terms = Terms(mixed=lambda logits: logits.mean(0), fit=cross_entropy, apart=disagreement)
        learning = Optimizer(options.optimizer, student)
        for epoch in range(options.epochs):
            student.freeze()
            pool.add(*synthesis.images(epoch, terms))
            student.train()
            for images, _ in pool.batches(options.batch_size):
                with torch.no_grad():
                    mean = teachers(images).mean(0)
                kl = distillation(mean, student(images), options.temperature)
                ctx.log(distillation=kl)
                learning.minimise(kl)
        return pool


def disagreement(ensemble: Tensor, logits: Tensor) -> Tensor:
    """L_div: KL(softmax(ensemble), softmax(logits)) where their largest classes differ, mean over the batch.

    Args:
        ensemble: [batch, C], the ensemble's logits; gradient reaches them.
        logits: the same shape, the student's; gradient reaches them, too.
    """
    log_ensemble, log_student = ensemble.log_softmax(1), logits.log_softmax(1)
    divergence = F.kl_div(log_student, log_ensemble, reduction="none", log_target=True).sum(1)
    return torch.where(ensemble.argmax(1) != logits.argmax(1), divergence, 0.0).mean()
