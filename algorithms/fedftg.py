"""FedFTG: the server fine-tunes the average on images that are hard for it and that clients know.

Zhang, Shen, Ding, Tao, Duan 2022, arXiv 2203.09249.

    start      w = sum over the cohort of p_k w_k
    labels     y with p(y) = sum_S n_k^y / sum;  a_{k,y} = n_k^y / sum_S n_j^y;  images x~ = G(z, y)
    I times    (1) for each k, G minimises - a_{k,y} L_md(f(w; x~), f(w_k; x~))
                     + lambda_cls a_{k,y} CE(f(w_k; x~), y) + lambda_dis L_dis / m        m clients
               (2) I_d times, w minimises KL(sum_k a_{k,y} softmax(f(w_k; x~)), softmax(f(w; x~)))
    client     FedAvg's, from the fine-tuned w
    down       the model w                                       4 P bytes a client
    up         w_k, the count n_k, and once the label counts     4 P bytes a client, 4 C once

The generator stays at the server; its Adam is new each round; both rates shrink by 0.998 an update. Readings:
L_md = KL(softmax(f(w_k)), softmax(f(w))), through both models to G; weights per sample; the labels of all I
batches are split by p(y) and shuffled; in (1) G steps after each client, as released, or on the sum over
clients (`generator_update: sum`); whatever does not learn is in eval mode; w's running statistics of
BatchNorm stay those of real images; `clip: 10` is the released form of local training, and the server clips
nothing. L_dis is FedGen's diversity loss. I = 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    Architecture,
    ClientContext,
    Cohort,
    FlatModule,
    OptimizerRecipe,
    Replies,
    ServerContext,
    Shown,
)
from rayfed_kd.toolbox.averaging import AveragingOptions, TellingOnce, Told, new_model
from rayfed_kd.toolbox.by_class.means import (
    ClassWeights,
    class_shares,
    proportional_labels,
    weighted_by_class,
)
from rayfed_kd.toolbox.distillation import BATCHNORM, BatchNormMode, normalising
from rayfed_kd.toolbox.ensembles import Ensemble
from rayfed_kd.toolbox.generation import GeneratorOptions, class_samples, generate, noise
from rayfed_kd.toolbox.local_training import label_options, train_local_epochs
from rayfed_kd.toolbox.losses import cross_entropy, pairwise_diversity_loss, target_divergence
from rayfed_kd.toolbox.optimizers import Optimizer, faded


class ImageGenerator(GeneratorOptions):
    """The server's generator of images."""

    name: str = Field("conditional_image", description="a registered conditional generator")
    lr: float = Field(0.01, gt=0, description="Adam's learning rate before the first update")


class Options(AveragingOptions):
    """FedFTG's options; the defaults are the released code's for CIFAR-10."""

    generator: ImageGenerator = ImageGenerator()
    iterations: int = Field(10, ge=0, description="I; 0: nothing is fine-tuned")
    generator_steps: int = Field(1, ge=0, description="I_g, passes of step (1) an iteration")
    student_steps: int = Field(5, ge=0, description="I_d, steps (2) an iteration")
    batch_size: int = Field(50, ge=2, description="generated images an iteration")
    lambda_cls: float = Field(1.0, ge=0, description="weight of the cross entropy")
    lambda_dis: float = Field(1.0, ge=0, description="weight of the diversity loss")
    discrepancy: Literal["kl", "l1_logits"] = Field(
        "kl", description="L_md: KL(client, global), or the mean absolute difference of logits as released"
    )
    class_weights: ClassWeights = Field(
        "per_sample", description="a_{k,y} a sample in the cross entropy, or cancelled as released"
    )
    generator_update: Literal["each", "sum"] = Field(
        "each", description="G steps after each client, or once on the sum over clients"
    )
    server_lr: float = Field(0.1, gt=0, description="SGD's learning rate of step (2) before the first update")
    server_weight_decay: float = Field(0.0, ge=0, description="SGD's weight decay of step (2)")
    lr_decay: float = Field(0.998, gt=0, le=1, description="factor of both server rates an update")
    batchnorm: BatchNormMode = Field("keep", description=BATCHNORM)
    clip: float | None = Field(
        None, gt=0, description="largest norm of a client's gradient; null: any. Released: 10"
    )


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        weights: [P], the fine-tuned model.
        generator: [G].
        label_counts: client -> [C], of every client seen.
        version: how many updates made them.
    """

    weights: Tensor
    generator: Tensor
    label_counts: Mapping[int, Tensor]
    version: int = 0


class FedFTG(TellingOnce[ServerState]):
    """Fine-tuning the global model by data-free distillation."""

    options: Options
    summary = "the server fine-tunes the average on generated images that are hard for it"
    paper = "Zhang et al. 2022, arXiv 2203.09249"
    group_training = "all local training, unless gradients are clipped"
    label_options = True
    server_keeps = "the global model, the generator, everybody's label counts"
    client_keeps = "whether its label counts were sent"
    up = {"student": "weights", "label_counts": "counts"}

    def architectures(self) -> Mapping[str, Architecture]:
        """G, a conditional generator of images; it never leaves the server."""
        return {"generator": self.options.generator.architecture("images", conditional=True)}

    def init_server(self, ctx: ServerContext) -> ServerState:
        """The initial w and G; no client's label counts are known."""
        return ServerState(ctx.initial_vector(), ctx.initial_vector("generator"), {})

    def train_locally(self, student: FlatModule, ctx: ClientContext) -> None:
        """Train as in FedAvg, with gradients clipped at `clip`."""
        if self.options.clip is None:
            super().train_locally(student, ctx)
        else:
            extras = label_options(ctx)

            def loss(images: Tensor, labels: Tensor) -> Tensor:
                hard = cross_entropy(student(images), labels, extras)
                ctx.log(ce=hard)
                return hard

            train_local_epochs(student, loss, ctx, clip=self.options.clip)

    def told(self, client: Told, ctx: ClientContext) -> Mapping[str, Tensor]:
        """The counts n_k^y, [C], which go up with the first reply alone."""
        return {} if client.told else {"label_counts": ctx.label_counts()}

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Average the cohort's models, then fine-tune the average and G for I iterations."""
        fresh = {reply.client: reply["label_counts"] for reply in replies if "label_counts" in reply}
        known = {**server.label_counts, **fresh}
        mean = new_model(replies, self.options, server.weights)
        counts = torch.stack([known[client] for client in replies.clients])
        tuned, generator = self._fine_tuned(mean, server, replies, counts.to(ctx.device), ctx)
        return ServerState(tuned, generator, known, server.version + 1)

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        """Images of G for every class, with what w says of them."""
        generator = ctx.frozen_model(server.generator, "generator")
        return {"samples": class_samples(generator, ctx.frozen_model(server.weights), ctx)}

    def _fine_tuned(
        self, mean: Tensor, server: ServerState, replies: Replies, counts: Tensor, ctx: ServerContext
    ) -> tuple[Tensor, Tensor]:
        """w and G after I iterations; the counts are n_k^y, [m, C]."""
        options = self.options
        if not options.iterations:
            return mean, server.generator
        shares, fade = class_shares(counts), options.lr_decay**server.version
        teachers = Ensemble(ctx.frozen_model(mean), list(replies.vectors("student")), batched=False)
        student, generator = ctx.model(mean), ctx.model(server.generator, "generator")
        generating = Optimizer(faded(options.generator.optimizer, fade), generator)
        sgd = OptimizerRecipe(lr=options.server_lr, weight_decay=options.server_weight_decay)
        learning = Optimizer(faded(sgd, fade), student)
        pool = proportional_labels(counts.sum(0), options.iterations * options.batch_size)
        order = torch.randperm(len(pool), generator=ctx.stream("label order"), device=ctx.device)
        everybody = list(range(len(teachers)))
        turns = [everybody] if options.generator_update == "sum" else [[member] for member in everybody]
        for labels in torch.split(pool[order], options.batch_size):
            z, weights = noise(len(labels), generator, ctx), shares[:, labels]
            student.freeze()
            generator.train()
            for members in turns * options.generator_steps:  # (1)
                # From the same z and labels, and anew, because G has moved since the last turn.
                images = generate(generator, z, labels, ctx)
                taught = teachers.some(members, images)
                loss = self._generator_loss(taught, student(images), labels, weights[members], ctx)
                # L_dis / m for each client of this turn, so that a pass over all m has it once.
                diversity = pairwise_diversity_loss(z, images) * len(members) / len(teachers)
                ctx.log(diversity=diversity)
                generating.minimise(loss + options.lambda_dis * diversity)
            generator.freeze()
            student.train()
            # G and the clients' models stand still during the I_d steps: one target serves them all.
            with torch.no_grad():
                images = generate(generator, z, labels, ctx)
                target = torch.einsum("kb,kbc->bc", weights, teachers(images).softmax(2))
            for _ in range(options.student_steps):  # (2)
                with normalising(student, options.batchnorm):
                    logits = student(images)
                divergence = target_divergence(target, logits)
                ctx.log(distillation=divergence)
                learning.minimise(divergence)
        return student.vector().cpu(), generator.vector().cpu()

    def _generator_loss(
        self, taught: Tensor, logits: Tensor, labels: Tensor, weights: Tensor, ctx: ServerContext
    ) -> Tensor:
        """What G minimises without diversity: members' logits [k, batch, C], w's [batch, C], a [k, batch]."""
        fits = torch.stack([F.cross_entropy(member, labels, reduction="none") for member in taught])
        fit = weighted_by_class(fits, weights, self.options.class_weights)
        discrepancy = weighted_by_class(self._discrepancy(taught, logits), weights)
        ctx.log(generator_ce=fit, discrepancy=discrepancy)
        return self.options.lambda_cls * fit - discrepancy

    def _discrepancy(self, taught: Tensor, logits: Tensor) -> Tensor:
        """L_md, [k, batch], of members' logits [k, batch, C] and w's [batch, C]."""
        if self.options.discrepancy == "l1_logits":
            return (taught - logits).abs().mean(2)
        log_taught, log_global = taught.log_softmax(2), logits.log_softmax(1)
        return (log_taught.exp() * (log_taught - log_global)).sum(2)
