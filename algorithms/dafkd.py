"""DaFKD: an ensemble whose members weigh, sample by sample, what their domain discriminators say.

Wang et al., CVPR 2023, "DaFKD: Domain-aware Federated Knowledge Distillation", Algorithm 1.

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

Readings: theta^g is the mean (the released code keeps the last client's); generated batches pass the trunk
with their own statistics and leave its running ones alone, as real images alone are classified; a step of
the joint loss moves class head, discriminator head and trunk with the recipe's optimiser; teachers are in
eval mode. In Appendix A (`generated: features`) samples are the trunk's features: the generator, the
discriminator and the distillation see features, and distillation moves the class head alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    RECIPE_MODEL,
    Architecture,
    ClientContext,
    Cohort,
    Context,
    Distribution,
    FlatModule,
    Message,
    MethodOptions,
    OneExchange,
    OptimizerRecipe,
    Replies,
    Reply,
    ServerContext,
    Shown,
)
from rayfed_kd.toolbox.averaging import Weighting, cohort_mean
from rayfed_kd.toolbox.distillation import Distillation, distil
from rayfed_kd.toolbox.ensembles import Ensemble
from rayfed_kd.toolbox.generation import GeneratorOptions, class_samples, generate, noise, uniform_labels
from rayfed_kd.toolbox.losses import adversarial_loss, cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer

CHUNK = 32  # larger ones leave the cache: twice as slow (tests/benchmarks/server.py)


class AdversarialGenerator(GeneratorOptions):
    """The shared generator; by default the image generator, for `generated: features` the dense one."""

    name: str = Field("conditional_image", description="a registered conditional generator")
    weight_decay: float = Field(1e-3, ge=0, description="Adam's weight decay")


class Options(MethodOptions):
    """DaFKD's options; the defaults are the paper's."""

    generator: AdversarialGenerator = AdversarialGenerator()
    generated: Literal["images", "features"] = Field(
        "images", description="what the generator makes: images, or the trunk's features (Appendix A)"
    )
    generator_loss: Literal["non_saturating", "minmax"] = Field(
        "non_saturating", description="-log f(g(z)), or log(1 - f(g(z))) as eq. 3"
    )
    adversarial: bool = Field(True, description="train generator and discriminators at all")
    sharing: bool = Field(True, description="the discriminator shares the classifier's trunk (Table 3)")
    correlation: bool = Field(True, description="weigh by the discriminators; false: equally (Table 3)")
    weighting: Weighting = Field(
        "uniform", description="means over the cohort: uniform (eq. 4, 6), by samples as released"
    )
    protocol: Literal["upload", "local"] = Field(
        "upload", description="who computes importance: the server, or the clients (Appendix B)"
    )
    target: Literal["probabilities", "logits"] = Field(
        "probabilities", description="what is mixed: probabilities (eq. 8), or logits as released"
    )
    temperature: float = Field(1.0, gt=0, description="T of the distillation; the loss is times T^2")
    distill_batches: int = Field(40, ge=1, description="batches of generated samples a round")
    distill_epochs: int = Field(1, ge=0, description="passes over them; 0: w is w^. Released: 40")
    distill_lr: float = Field(0.01, gt=0, description="Adam's learning rate in distillation")

    @model_validator(mode="before")
    @classmethod
    def _dense_generator(cls, raw: Any) -> Any:
        """`generated: features` alone names the generator that makes them."""
        if isinstance(raw, Mapping) and raw.get("generated") == "features":
            given = raw.get("generator", {})
            if isinstance(given, Mapping):
                return {**raw, "generator": {"name": "dense_feature", **given}}
        return raw

    @model_validator(mode="after")
    def _fitting(self) -> Options:
        if self.generated == "features" and not self.sharing:
            raise ValueError("generated: features are the shared trunk's: sharing: false has none to judge")
        return self


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
        model: [P], w_k between the two exchanges of `protocol: local`; otherwise None.
    """

    discriminator: Tensor
    model: Tensor | None


class DaFKD(OneExchange[ServerState, ClientState]):
    """Domain-aware federated distillation."""

    options: Options
    summary = "server-side distillation from an ensemble weighed per sample by domain discriminators"
    paper = "Wang et al., CVPR 2023"
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
        generator = self.options.generator.architecture(self.options.generated, conditional=True)
        head = Architecture("head", "linear", {}, space="features", classes=1)
        whole = Architecture("classifier", RECIPE_MODEL, {}, classes=1)
        return {"generator": generator, "discriminator": head if self.options.sharing else whole}

    def init_server(self, ctx: ServerContext) -> ServerState:
        return ServerState(ctx.initial_vector(), ctx.initial_vector("generator"), None)

    def init_client(self, ctx: ClientContext) -> ClientState:
        return ClientState(ctx.initial_vector("discriminator"), None)  # equal for all clients

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        return Message(student=server.weights, generator=server.generator)

    def client_update(
        self, client: ClientState | None, message: Message, ctx: ClientContext
    ) -> tuple[ClientState, Reply]:
        assert client is not None
        options = self.options
        student = ctx.model(message["student"])
        generator = ctx.model(message["generator"], "generator")
        discriminator = ctx.model(client.discriminator, "discriminator")
        classifying = Optimizer(ctx.local.optimizer, student)
        judging = Optimizer(ctx.local.optimizer, discriminator)
        generating = Optimizer(options.generator.optimizer, generator)
        for epoch in range(ctx.local.epochs):
            for images, labels in ctx.epoch(epoch):
                features = student.features(images)
                loss = cross_entropy(student.classify(features), labels)
                ctx.log(ce=loss)
                if not options.adversarial:
                    classifying.minimise(loss)
                    continue
                wanted = uniform_labels(len(labels), ctx)
                made = generate(generator, noise(len(wanted), generator, ctx), wanted, ctx)
                real = self._judge(discriminator, student, images, features)
                fake = self._judge(discriminator, student, made.detach())
                adversarial = adversarial_loss(real, fake)  # eq. 2
                ctx.log(
                    adversarial=adversarial,
                    real_right=(real > 0).float().mean(),
                    fake_right=(fake < 0).float().mean(),
                )
                discriminator.zero_gradients()
                classifying.minimise(loss + adversarial)  # eq. 9
                judging.step()
                doubt = self._judge(discriminator, student, made)
                deceit = F.softplus(-doubt).mean()  # eq. 3
                if options.generator_loss == "minmax":
                    deceit = -F.softplus(doubt).mean()
                ctx.log(deceit=deceit)
                generating.minimise(deceit, alone=True)
        kept = student.vector() if options.protocol == "local" else None
        parts = {"student": student.vector()}
        if options.adversarial:
            parts["generator"] = generator.vector()
        if options.adversarial and options.protocol == "upload":
            parts["discriminator"] = discriminator.vector()
        return ClientState(discriminator.vector(), kept), Reply(**parts, samples=ctx.num_samples)

    @property
    def asynchronous(self) -> bool:
        return self.options.protocol == "upload" or not self.options.distill_epochs

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """`protocol: local` asks the clients a second time; otherwise one exchange."""
        if self.asynchronous:
            return super().run_round(server, cohort, ctx)
        replies = cohort.broadcast(self.client_update, self.dispatch(server, ctx))
        weights, theta = self._means(server, replies)
        seed = _drawn_seed(ctx)
        answers = cohort.broadcast(self.predict, Message(generator=theta, seed=seed))
        importance = torch.stack(list(answers.vectors("importance")), dim=1).to(ctx.device)
        weighted = torch.stack(list(answers.vectors("weighted"))).sum(0).to(ctx.device)
        # Where every f underflows the target is zero, and the sample teaches nothing.
        total = importance.sum(1, keepdim=True).clamp(min=torch.finfo(importance.dtype).tiny)
        mixed = self._softened(weighted / total)
        samples = self._samples(theta, seed, ctx)
        return self._distilled((weights, theta), samples, mixed, (importance / total).cpu(), ctx)

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        weights, theta = self._means(server, replies)
        if not self.options.distill_epochs:
            return ServerState(weights, theta, None)
        seed = _drawn_seed(ctx)
        samples = self._samples(theta, seed, ctx)
        predicted, log_importance = self._ensemble(replies, weights, samples, ctx)
        alpha = log_importance.softmax(dim=0)  # eq. 7: f / sum f, also where every f underflows
        mixed = torch.einsum("kn,knc->nc", alpha, predicted)  # eq. 8's target
        return self._distilled((weights, theta), samples, self._softened(mixed), alpha.t().cpu(), ctx)

    def predict(
        self, client: ClientState | None, message: Message, ctx: ClientContext
    ) -> tuple[ClientState | None, Reply]:
        """Appendix B: importance f, [n], and f times the prediction, [n, C], on the common samples."""
        assert client is not None and client.model is not None
        samples = self._samples(message["generator"], int(message["seed"]), ctx)
        student = ctx.frozen_model(client.model)
        discriminator = ctx.frozen_model(client.discriminator, "discriminator")
        with torch.no_grad():
            features = _in_chunks(lambda x: self._features(student, x), samples)
            predicted = self._prediction(student.classify(features))
            importance = torch.ones(len(samples), device=ctx.device)
            if self.options.correlation and self.options.adversarial:
                judged = _in_chunks(discriminator, features if self.options.sharing else samples)
                importance = torch.sigmoid(judged.squeeze(1))
        weighted = importance[:, None] * predicted
        return ClientState(client.discriminator, None), Reply(importance=importance, weighted=weighted)

    def evaluated(self, server: ServerState) -> Mapping[str, Tensor]:
        return {"global": server.weights}

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        shown: dict[str, Shown] = {}
        if server.alpha is not None:
            quantity = f"normalised importance among {server.alpha.shape[1]} clients"
            shown["importance"] = Distribution({"alpha": server.alpha.flatten()}, quantity)
        if self.options.generated == "images" and self.options.adversarial:
            generator = ctx.frozen_model(server.generator, "generator")
            shown["samples"] = class_samples(generator, ctx.frozen_model(server.weights), ctx)
        return shown

    def _judge(
        self, discriminator: FlatModule, student: FlatModule, samples: Tensor, features: Tensor | None = None
    ) -> Tensor:
        """The discriminator's logits, [batch]: log f / (1 - f). With `features`: those of real images."""
        if not self.options.sharing:
            if features is not None:
                return discriminator(samples).squeeze(1)
            with discriminator.keeping_statistics():
                return discriminator(samples).squeeze(1)
        if features is None:
            with student.keeping_statistics():
                features = self._features(student, samples)
        return discriminator(features).squeeze(1)

    def _features(self, student: FlatModule, samples: Tensor) -> Tensor:
        return samples if self.options.generated == "features" else student.features(samples)

    def _means(self, server: ServerState, replies: Replies) -> tuple[Tensor, Tensor]:
        """w^ and theta^g (eq. 4, 6)."""
        weights = cohort_mean(replies, self.options.weighting, server.weights)
        if not self.options.adversarial:
            return weights, server.generator
        return weights, cohort_mean(replies, self.options.weighting, server.generator, "generator")

    def _samples(self, theta: Tensor, seed: int, ctx: Context) -> Tensor:
        """The round's distillation samples: the same wherever they are computed."""
        generator = ctx.frozen_model(theta, "generator")
        stream = torch.Generator().manual_seed(seed)
        count = self.options.distill_batches * ctx.local.batch_size
        z = torch.randn(count, generator.latent, generator=stream).to(ctx.device)
        labels = torch.randint(ctx.classes, (count,), generator=stream).to(ctx.device)
        with torch.no_grad():
            made = [
                generate(generator, *part, ctx)
                for part in zip(torch.split(z, CHUNK), torch.split(labels, CHUNK), strict=True)
            ]
        return torch.cat(made)

    def _ensemble(
        self, replies: Replies, weights: Tensor, samples: Tensor, ctx: ServerContext
    ) -> tuple[Tensor, Tensor]:
        """The cohort's predictions, [K, n, C], and log f, [K, n], equal where importance is off."""
        options = self.options
        model = ctx.frozen_model(weights)
        on_features = options.generated == "features"

        def both(module: Any, x: Tensor) -> Tensor:
            features = x if on_features else module.features(x)
            return torch.cat([module.classify(features), features], dim=1)

        members = Ensemble(model, list(replies.vectors("student")), both, batched=on_features)
        found = _in_chunks(members, samples, dim=1)
        predicted, features = self._prediction(found[..., : ctx.classes]), found[..., ctx.classes :]
        if not (options.correlation and options.adversarial):
            return predicted, predicted.new_zeros(predicted.shape[:2])
        frozen = ctx.frozen_model(ctx.initial_vector("discriminator"), "discriminator")
        judges = Ensemble(frozen, list(replies.vectors("discriminator")), batched=options.sharing)
        judged = judges.each(features) if options.sharing else _in_chunks(judges, samples, dim=1)
        return predicted, F.logsigmoid(judged.squeeze(2))

    def _prediction(self, logits: Tensor) -> Tensor:
        """What is mixed: probabilities, or logits, at temperature T."""
        softened = logits / self.options.temperature
        return softened if self.options.target == "logits" else softened.softmax(dim=-1)

    def _softened(self, mixed: Tensor) -> Tensor:
        return mixed.softmax(dim=-1) if self.options.target == "logits" else mixed

    def _distilled(
        self,
        means: tuple[Tensor, Tensor],
        samples: Tensor,
        mixed: Tensor,
        alpha: Tensor,
        ctx: ServerContext,
    ) -> ServerState:
        """Eq. 8: w^ learns what the ensemble says of the samples."""
        options, (weights, theta) = self.options, means
        student = ctx.model(weights)
        predict = student.classify if options.generated == "features" else student
        recipe = OptimizerRecipe(name="adam", lr=options.distill_lr)
        plan = Distillation(options.distill_epochs, ctx.local.batch_size, recipe, options.temperature)
        distil(student, predict, samples, mixed, plan, ctx)
        return ServerState(student.vector().cpu(), theta, alpha)


def _in_chunks(function: Any, inputs: Tensor, dim: int = 0) -> Tensor:
    """`function` over stretches of inputs, without gradient: memory stays that of a stretch."""
    with torch.no_grad():
        return torch.cat([function(part) for part in torch.split(inputs, CHUNK)], dim=dim)


def _drawn_seed(ctx: ServerContext) -> int:
    stream = ctx.stream("samples")
    return int(torch.randint(2**31, (), generator=stream, device=stream.device))
