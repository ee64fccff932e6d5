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
in it; pairs are drawn anew for each batch, at most as many as a full one has samples; BatchNorm's running
statistics are of real images (`batchnorm`). mu = 0: clients use nothing of what they receive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.algorithms.fedktl.alignment import AlignmentOptions, LatentGenerator, aligned
from rayfed_kd.protocol import (
    Architecture,
    ClientContext,
    Cohort,
    Drawn,
    FlatModule,
    Message,
    OneExchange,
    Replies,
    Reply,
    Samples,
    ServerContext,
    Shown,
    Unaligned,
)
from rayfed_kd.toolbox.by_class.means import mean_rows
from rayfed_kd.toolbox.distillation import BATCHNORM, BatchNormMode, normalising
from rayfed_kd.toolbox.generation import generate
from rayfed_kd.toolbox.layers import check_equal_features, head_place
from rayfed_kd.toolbox.local_training import Loss, Models, Phase, Tensors, own_batches, train_phases
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer, clipped
from rayfed_kd.toolbox.own_models import OwnModels

SMALL = 1e-7  # arccos has an infinite slope at 1 and -1


class Options(AlignmentOptions):
    """FedKTL's options; the defaults are those of the released script for StyleGAN-XL."""

    generator: LatentGenerator = LatentGenerator()
    mu: float = Field(50.0, ge=0, description="weight of what clients learn from the images they receive")
    clip: float | None = Field(100.0, gt=0, description="largest gradient, unless local.clip; null: any")
    batchnorm: BatchNormMode = Field("keep", description=BATCHNORM)
    etf_seed: int = Field(0, ge=0, description="what the directions of the classes are drawn from")
    margin: float = Field(0.5, ge=0, lt=math.pi, description="added to the own class's angle, radians")
    scale: float = Field(64.0, gt=0, description="what cosines are multiplied by")


@dataclass(frozen=True)
class ServerState:
    """G, None before it is trained; Fs; by name x~, [n, c, h, w], w~, [n, d_w], and their classes, [n]."""

    generator: Tensor | None
    transformer: Tensor
    pairs: Mapping[str, Tensor]


class FedKTL(OwnModels, OneExchange[ServerState, Tensor], plain_training=True):
    """Knowledge transfer from a server's generator; a client's state is its model."""

    options: Options
    summary = "clients of any architecture learn an image and a latent of each class of a server's generator"
    paper = "Zhang et al. 2024, arXiv 2403.15760"
    server_keeps = "the generator, the transformer, the last images and latents"
    down = {"images": "images", "latents": "features"}
    up = {"outputs": Unaligned("prototypes"), "classes": "labels"}
    heterogeneous = True

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
        """Raise RecipeError unless all models end in a linear layer, with features of one length."""
        check_equal_features(ctx)
        for name in ctx.client_architectures:
            head_place(ctx.frozen_model(ctx.initial_vector(name), name))
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
        batches = own_batches(ctx, further=pairs)
        extras = {"etf": simplex(ctx.classes, self.options.etf_seed).to(ctx.device)}
        train_phases(models, [Phase(self.loss, optimizers)], batches, ctx, extras=extras)
        vector = models["student"].vector()
        means = mean_rows(ctx.frozen_model(vector), unit_outputs, ctx)
        return vector, Reply(outputs=F.normalize(means.values, dim=1), classes=means.classes)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L, without its second term where nothing was received."""
        student, labels = models["student"], batch["labels"]
        logits = angular_logits(
            student(batch["images"]), labels, extras["etf"], self.options.margin, self.options.scale
        )
        hard = cross_entropy(logits, labels, extras)
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

    def personal(self, client: Tensor, ctx: ClientContext) -> Tensor:
        """The client's model, [P_k], its last layer turned: the largest output is the largest cosine."""
        place, vector = head_place(ctx.frozen_model(client)), client.clone()
        vector[place] = turned(client[place], simplex(ctx.classes, self.options.etf_seed).to(client))
        return vector


def simplex(num_classes: int, seed: int) -> Tensor:
    """sqrt(C / (C - 1)) P (I - 11' / C), [C, C], with P orthonormal; column c is the direction of class c.

    The columns have length 1 and cosines -1 / (C - 1) with one another.

    Args:
        num_classes: C, 2 or more.
        seed: of P, drawn on the CPU in float64, so that all parties have the same.
    """
    normal = torch.randn(num_classes, num_classes, generator=torch.Generator().manual_seed(seed))
    rotation, _ = torch.linalg.qr(normal.double())
    return frame(rotation).float()


def frame(rotation: Tensor) -> Tensor:
    """The frame of an orthonormal P, [C, C]."""
    count = len(rotation)
    centring = torch.eye(count).to(rotation) - 1 / count
    return math.sqrt(count / (count - 1)) * rotation @ centring


def angular_logits(
    outputs: Tensor, labels: Tensor, directions: Tensor, margin: float, scale: float
) -> Tensor:
    """scale cos(angle), with the margin added to the angle of a sample's own class: ArcFace.

    Deng, Guo, Xue, Zafeiriou 2019, arXiv 1801.07698, eq. 3.

    Args:
        outputs: [batch, C]; gradient passes.
        labels: [batch] int64.
        directions: [C, C], of length 1, one a column.
        margin: radians.
    Returns: [batch, C], for cross entropy.
    """
    cosines = (F.normalize(outputs, dim=1) @ directions).clamp(-1 + SMALL, 1 - SMALL)
    mask = F.one_hot(labels, outputs.shape[1]).bool()
    return scale * torch.where(mask, torch.cos(torch.acos(cosines) + margin), cosines)


def turned(head: Tensor, directions: Tensor) -> Tensor:
    """The linear layer whose largest output is the class of the nearest direction of another one's output.

    Args:
        head: [C K_f + C], the layer: weights row by row, then biases.
        directions: [C, C], one a column.
    Returns: the same shape: E' W and E' b.
    """
    count = len(directions)
    weights, biases = head[:-count].view(count, -1), head[-count:]
    return torch.cat([(directions.T @ weights).flatten(), directions.T @ biases])


def unit_outputs(model: FlatModule, images: Tensor) -> Tensor:
    """A model's outputs of length 1, [batch, C]."""
    return F.normalize(model(images), dim=1)
