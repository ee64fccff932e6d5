"""DaFKD: an ensemble whose members weigh, sample by sample, what their domain discriminators say.

Wang et al. 2023, "DaFKD: Domain-aware Federated Knowledge Distillation", CVPR, Algorithm 1.

    classifier     w        trunk and class head
    discriminator  theta^d  a second head on the same trunk, each client's own, kept between rounds
    generator      theta^g  shared: noise and a class to images

    client, per batch    CE(w) + L_adv(theta^d) over trunk and both heads          (eq. 2, 9)
                         then the generator, to be taken for real                  (eq. 3)
    server               w^ and theta^g: means over the K_t clients                (eq. 4, 6)
                         alpha_{k,i} = f(theta^d_k; x_i) / sum_k f(theta^d_k; x_i) (eq. 7)
                         w minimises KL(sum_k alpha_{k,i} s(w_k; x_i), s(w; x_i))  (eq. 8)
                         over images x_i of the new theta^g

    down  w, theta^g
    up    w_k, theta^g_k, theta^d_k
          `protocol: local` (Appendix B) sends no discriminator; a second exchange brings theta^g and a
          seed down, and f and f s on the distillation samples up

Readings: theta^g is the mean (the released code keeps the last client's), and draws the images with batch
statistics, as at the clients, because averaged running ones do not fit it; generated batches pass the trunk
with their own statistics and leave its running ones alone, at the clients and in distillation, as real
images alone are classified; a step of the joint loss moves class head, discriminator head and trunk with
the recipe's optimiser; teachers are in eval mode. In Appendix A (`generated: features`) samples are the
trunk's features: the generator, the discriminator and the distillation see features, and distillation
moves the class head alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.algorithms.dafkd.adversarial import AdversarialOptions
from rayfed_kd.algorithms.dafkd.mixtures import MixtureOptions, in_chunks, log_importance, members_say
from rayfed_kd.protocol import (
    Architecture,
    ClientContext,
    Cohort,
    Distribution,
    Message,
    Replies,
    Reply,
    ServerContext,
    Shown,
)
from rayfed_kd.toolbox.averaging import SharedModel, Weighting, cohort_mean
from rayfed_kd.toolbox.generation import class_samples
from rayfed_kd.toolbox.public_data import drawn_seed


class Options(AdversarialOptions, MixtureOptions):
    """DaFKD's options; the defaults are the paper's."""

    correlation: bool = Field(True, description="weigh by the discriminators; false: equally (Table 3)")
    weighting: Weighting = Field(
        "uniform", description="means over the cohort: uniform (eq. 4, 6), by samples as released"
    )
    protocol: Literal["upload", "local"] = Field(
        "upload", description="who computes importance: the server, or the clients (Appendix B)"
    )


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        weights: [P], w.
        generator: [G], theta^g.
        alpha: [n, K_t], the last round's normalised importance, to be looked at; None without distillation.
    """

    weights: Tensor
    generator: Tensor
    alpha: Tensor | None


@dataclass(frozen=True)
class ClientState:
    """What a client keeps.

    Attributes:
        discriminator: [D], theta^d_k.
        model: [P], w_k between the two exchanges of `protocol: local`; otherwise [0].
    """

    discriminator: Tensor
    model: Tensor


class DaFKD(SharedModel[ServerState, ClientState], plain_training=True):
    """Domain-aware federated distillation."""

    options: Options
    summary = "server-side distillation from an ensemble weighed per sample by domain discriminators"
    paper = "Wang et al. 2023, CVPR"
    server_keeps = "the global model, the generator"
    client_keeps = "its discriminator"
    down = {"student": "weights", "generator": "generator"}
    up = {
        "student": "weights",
        "generator": "generator",
        "discriminator": "discriminator",
        "importance": "scalars",
        "weighted": "logits",
    }

    def architectures(self) -> Mapping[str, Architecture]:
        """theta^g, and theta^d: a linear head on the trunk, or a whole model without `sharing`."""
        return self.options.architectures()

    @property
    def whole_epochs(self) -> bool:
        return self.options.adversarial_epochs is not None

    def init_server(self, ctx: ServerContext) -> ServerState:
        """The initial w and theta^g; no alpha before the first distillation."""
        return ServerState(ctx.initial_vector(), ctx.initial_vector("generator"), None)

    def init_client(self, ctx: ClientContext) -> ClientState:
        """The initial theta^d; `protocol: local` fills the model between its two exchanges."""
        return ClientState(ctx.initial_vector("discriminator"), torch.empty(0))  # equal for all clients

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        """Send w and theta^g; a client's theta^d is at the client already."""
        return Message(student=server.weights, generator=server.generator)

    def client_update(
        self, client: ClientState, message: Message, ctx: ClientContext
    ) -> tuple[ClientState, Reply]:
        """Train w, theta^d and theta^g on each batch (eq. 2, 3, 9), or w on CE without `adversarial`."""
        options, student = self.options, ctx.model(message["student"])
        generator = ctx.model(message["generator"], "generator")
        discriminator = ctx.model(client.discriminator, "discriminator")
        adversaries = {"discriminator": discriminator, "generator": generator}
        options.train(student, adversaries, ctx)  # eq. 2, 3, 9
        weights = student.vector() if options.protocol == "local" else torch.empty(0)
        parts = {"student": student.vector()}
        if options.adversarial:
            parts["generator"] = generator.vector()
        if options.adversarial and options.protocol == "upload":
            parts["discriminator"] = discriminator.vector()
        return ClientState(discriminator.vector(), weights), Reply(**parts, samples=ctx.num_samples)

    @property
    def asynchronous(self) -> bool:
        """Whether a round is one exchange: distillation with `protocol: local` takes two."""
        return self.options.protocol == "upload" or not self.options.distill_epochs

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """`protocol: local` asks the clients a second time; otherwise one exchange."""
        if self.asynchronous or ctx.round < self.options.distill_from_round:
            return super().run_round(server, cohort, ctx)
        replies = cohort.broadcast(self.client_update, self.dispatch(server, ctx))
        weights, theta = self._means(server, replies)
        seed = drawn_seed(ctx, "samples")
        answers = cohort.broadcast(self.predict, Message(generator=theta, seed=seed))
        importance = torch.stack(list(answers.vectors("importance")), dim=1).to(ctx.device)
        # sum_k f s; over sum_k f it is eq. 8's target.
        weighted = torch.stack(list(answers.vectors("weighted"))).sum(0).to(ctx.device)
        # Where every f underflows the target is zero, and the sample teaches nothing.
        total = importance.sum(1, keepdim=True).clamp(min=torch.finfo(importance.dtype).tiny)
        mixed = self.options.softened(weighted / total)
        samples = self.options.samples(ctx.frozen_model(theta, "generator"), seed, ctx)
        return self._distilled((weights, theta), samples, mixed, (importance / total).cpu(), ctx)

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Average w and theta^g (eq. 4, 6), then distil the alpha-weighted ensemble into w^ (eq. 7, 8)."""
        weights, theta = self._means(server, replies)
        if not self.options.distill_epochs or ctx.round < self.options.distill_from_round:
            return ServerState(weights, theta, None)
        seed = drawn_seed(ctx, "samples")
        samples = self.options.samples(ctx.frozen_model(theta, "generator"), seed, ctx)
        predicted, log_f = self.ensemble(replies, weights, samples, ctx)
        alpha = log_f.softmax(dim=0)  # eq. 7: f / sum f, also where every f underflows
        mixed = torch.einsum("kn,knc->nc", alpha, predicted)  # eq. 8's target
        return self._distilled((weights, theta), samples, self.options.softened(mixed), alpha.t().cpu(), ctx)

    def predict(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """Appendix B: importance f, [n], and f times the prediction, [n, C], on the common samples."""
        generator = ctx.frozen_model(message["generator"], "generator")
        samples = self.options.samples(generator, int(message["seed"]), ctx)
        student = ctx.frozen_model(client.model)
        discriminator = ctx.frozen_model(client.discriminator, "discriminator")
        with torch.no_grad():
            on_features = self.options.generated == "features"
            features = samples if on_features else in_chunks(student.features, samples)
            predicted = self.options.prediction(student.classify(features))
            importance = torch.ones(len(samples), device=ctx.device)
            if self.options.correlation and self.options.adversarial:
                judged = in_chunks(discriminator, features if self.options.sharing else samples)
                importance = torch.sigmoid(judged.squeeze(1))
        reply = Reply(importance=importance, weighted=importance[:, None] * predicted)
        return ClientState(client.discriminator, torch.empty(0)), reply

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        """The last alpha, [n, K_t], as a distribution, and images of theta^g by class."""
        pictures: dict[str, Shown] = {}
        if server.alpha is not None:
            quantity = f"normalised importance among {server.alpha.shape[1]} clients"
            pictures["importance"] = Distribution({"alpha": server.alpha.flatten()}, quantity)
        if self.options.generated == "images" and self.options.adversarial:
            generator = ctx.frozen_model(server.generator, "generator")
            with self.options.drawing(generator):
                pictures["samples"] = class_samples(generator, ctx.frozen_model(server.weights), ctx)
        return pictures

    def _means(self, server: ServerState, replies: Replies) -> tuple[Tensor, Tensor]:
        """w^ and theta^g (eq. 4, 6)."""
        weights = cohort_mean(replies, self.options.weighting, server.weights)
        if not self.options.adversarial:
            return weights, server.generator
        return weights, cohort_mean(replies, self.options.weighting, server.generator, "generator")

    def ensemble(
        self, replies: Replies, weights: Tensor, samples: Tensor, ctx: ServerContext
    ) -> tuple[Tensor, Tensor]:
        """The cohort's predictions, [K, n, C], and log f, [K, n], equal where importance is off."""
        options, model = self.options, ctx.frozen_model(weights)
        on_features = options.generated == "features"
        logits, features = members_say(replies, model, samples, ctx.classes, on_features=on_features)
        predicted = options.prediction(logits)
        if not (options.correlation and options.adversarial):
            return predicted, predicted.new_zeros(predicted.shape[:2])
        frozen = ctx.frozen_model(ctx.initial_vector("discriminator"), "discriminator")  # architecture only
        return predicted, log_importance(replies, frozen, samples, features, sharing=options.sharing)

    def _distilled(
        self, means: tuple[Tensor, Tensor], samples: Tensor, mixed: Tensor, alpha: Tensor, ctx: ServerContext
    ) -> ServerState:
        """Eq. 8: w^ learns what the ensemble says of the samples."""
        weights, theta = means
        student = ctx.model(weights)
        predict = student.classify if self.options.generated == "features" else student
        self.options.teach(student, predict, samples, mixed, ctx)
        return ServerState(student.vector().cpu(), theta, alpha)
