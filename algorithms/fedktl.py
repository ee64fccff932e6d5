"""FedKTL: a server's generator gives clients of any architecture an image and a latent of each class.

Zhang, Liu, Hua, Cao 2024, An Upload-Efficient Scheme for Transferring Knowledge From a Server-Side
Pre-trained Generator to Clients in Heterogeneous Federated Learning, CVPR, arXiv 2403.15760.

    e_c      fixed directions of the classes, a simplex, which everybody draws from `etf_seed`
    L        ArcFace cross entropy of a model's output, with e_c as classifier, + mu MSE(g(h(x~)), w~)
    x~, w~   a batch of the received images and latents, with each batch of own samples; g a linear map of
             features, the same initial one at every client in every round
    up       q_{k,c}: normalised mean of normalised outputs, and c         4 C_k (C + 1) bytes a client
    server   trains Fs = Linear, BatchNorm, ReLU, Linear from outputs to latents by
             MMD(Fs(q), w) + lambda MSE(Fs(q), a_c),  w normal latents, a_c trainable, at first mean Fs(q)
    down     w~_c: mean of Fs(q) over class c; x~_c = G(w~_c)     4 C (C_in H W + d_w) bytes a client

Prediction: the class of the largest cosine. G is given as a file, or else trained at the server on public
images, which is not the paper's. Readings: a class that nobody sent has no image; an update takes what came
in it; pairs are drawn anew for each batch, at most as many as it has samples; BatchNorm's running statistics
are of real images (`batchnorm`). mu = 0: clients use nothing of what they receive.
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
    Drawn,
    Message,
    Replies,
    Reply,
    Samples,
    ServerContext,
    Shown,
)
from rayfed_kd.toolbox.by_class.simplex import SimplexClients, SimplexOptions, angular_logits, simplex
from rayfed_kd.toolbox.data_free.alignment import AlignmentOptions, aligned
from rayfed_kd.toolbox.data_free.latent_generator import LatentGenerator
from rayfed_kd.toolbox.distillation import BATCHNORM, BatchNormMode, normalising
from rayfed_kd.toolbox.generation import generate
from rayfed_kd.toolbox.local_training import Loss, Models, Phase, Tensors, own_batches, train_phases
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer, clipped


class Options(SimplexOptions, AlignmentOptions):
    """FedKTL's options; the defaults are those of the released script for StyleGAN-XL."""

    generator: LatentGenerator = LatentGenerator()
    mu: float = Field(50.0, ge=0, description="weight of what clients learn from the images they receive")
    clip: float | None = Field(100.0, gt=0, description="largest gradient, unless local.clip; null: any")
    batchnorm: BatchNormMode = Field("keep", description=BATCHNORM)


@dataclass(frozen=True)
class ServerState:
    """G, None before it is trained; Fs; by name x~, [n, c, h, w], w~, [n, d_w], and their classes, [n]."""

    generator: Tensor | None
    transformer: Tensor
    pairs: Mapping[str, Tensor]


class FedKTL(SimplexClients[ServerState]):
    """Knowledge transfer from a server's generator; a client's state is its model."""

    options: Options
    summary = "clients of any architecture learn an image and a latent of each class of a server's generator"
    paper = "Zhang et al. 2024, arXiv 2403.15760"
    group_training = "all local training"
    server_keeps = "the generator, the transformer, the last images and latents"
    down = {"images": "images", "latents": "features"}

    @property
    def public(self) -> Literal["none", "samples"]:
        return "samples" if self.options.generator.file is None else "none"

    def architectures(self) -> Mapping[str, Architecture]:
        latent = self.options.generator.latent
        return {
            "generator": self.options.generator.architecture(),
            "projector": Architecture("head", "linear", {}, space="features", classes=latent),
            "transformer": Architecture("head", "transformer", {"outputs": latent}, space="logits"),
        }

    def check(self, ctx: ServerContext) -> None:
        super().check(ctx)
        self.options.generator.given(ctx)

    def init_server(self, ctx: ServerContext) -> ServerState:
        return ServerState(self.options.generator.given(ctx), ctx.initial_vector("transformer"), {})

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        return Message(**{name: server.pairs[name] for name in self.down if server.pairs})

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Train the client's model, and g with it, on L; send q of its classes."""
        g = ctx.model(ctx.initial_vector("projector"), "projector")
        models = {"student": ctx.model(client), "projector": g}

        def pairs(drawn: Drawn) -> Tensors:
            if not ("images" in message and self.options.mu):
                return {}
            x, w, stream = message["images"], message["latents"], ctx.stream("pairs")
            chosen = torch.randperm(len(w), generator=stream, device=w.device)[: ctx.local.batch_size]
            return {"x": x[chosen], "w": w[chosen]}

        recipe = clipped(ctx.local.optimizer, self.options.clip)
        optimizers = [Optimizer(recipe, model) for model in models.values()]
        batches = own_batches(ctx, range(ctx.local.epochs), pairs)
        given = {"etf": simplex(ctx.classes, self.options.etf_seed).to(ctx.device)}
        train_phases(models, [Phase(self.loss, optimizers)], batches, ctx, given=given)
        return (own := models["student"].vector()), self.uploaded(own, ctx)

    def loss(self, models: Models, batch: Tensors, given: Tensors) -> Loss:
        """L, without its second term where nothing was received."""
        student, labels = models["student"], batch["labels"]
        logits = angular_logits(
            student(batch["images"]), labels, given["etf"], self.options.margin, self.options.scale
        )
        hard = cross_entropy(logits, labels)
        if "x" not in batch:
            return Loss(hard, {"arcface": hard})
        with normalising(student, self.options.batchnorm):
            features = student.features(batch["x"])
        transfer = F.mse_loss(models["projector"](features), batch["w"])
        return Loss(hard + self.options.mu * transfer, {"arcface": hard, "transfer": transfer})

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        theta = self.options.generator.trained(ctx) if server.generator is None else server.generator
        sent, classes = (torch.cat(list(replies.vectors(name))).to(ctx.device) for name in self.up)
        transformer = ctx.model(server.transformer, "transformer")
        latents = aligned(transformer, sent, classes.long(), self.options, ctx)
        with torch.no_grad():
            images = generate(ctx.frozen_model(theta, "generator"), latents.values, None, ctx)
        pairs = {"images": images.cpu(), "latents": latents.values.cpu(), "classes": latents.classes.cpu()}
        return ServerState(theta, transformer.vector().cpu(), pairs)

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        images = ctx.pixels(server.pairs["images"].to(ctx.device)).cpu()
        return {"samples": Samples(images, server.pairs["classes"].long())}
