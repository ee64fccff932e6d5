"""FedGen: a server-trained generator of features shows clients what the others' predictors know.

Zhu, Hong, Zhou 2021, arXiv 2105.10056, Algorithm 1.

    generator  z = G(eps, y), a feature: what the predictor h, a model's last layer, takes
    server     G minimises sum_k mean_i a_{k,y_i} CE(h_k(z_i), y_i) + eta D, a_{k,y} = n_k^y / sum_j n_j^y
               D = exp(-mean_{ij} ||eps_i - eps_j||^2 |z_i - z_j|)
               `teacher: paper`: CE(softmax(mean_k h_k(z)), y) + eta D
               w^{t+1} as FedAvg
    client     CE(f(x), y) + alpha_t r CE(h(G(eps', y')), y')
                           + beta_t KL(softmax(h(G(eps, y))), softmax(f(x)))
               alpha_t, beta_t = alpha, beta times 0.98^t; r = generated / real batch size; y' uniform
    down       w^t and G                                         4 (P + G) bytes a client
    up         w_k, the count n_k and the label counts           4 (P + C) bytes a client

The server keeps G's Adam and its rate, which shrinks by 0.98 an update. Readings: weights per sample;
Gaussian noise; counts are of the local training set; labels at the server are uniform over the cohort's
classes, as released, and for `teacher: paper` drawn from the pooled counts (the paper's formula has eta = 0);
before the first update clients train on cross entropy alone. Gradient of the alpha term reaches the predictor
only, of the beta term f(x) only. alpha = beta = 0 is FedAvg.
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
    FlatModule,
    Message,
    PixelScale,
    Replies,
    Reply,
    ServerContext,
)
from rayfed_kd.toolbox.averaging import AveragingOptions, SharedModel, new_model
from rayfed_kd.toolbox.by_class.means import ClassWeights, class_shares, drawn_labels, weighted_by_class
from rayfed_kd.toolbox.ensembles import Ensemble, classify
from rayfed_kd.toolbox.generation import GeneratorOptions, generate, noise, uniform_labels
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, train_batches, train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy, distillation, pairwise_diversity_loss
from rayfed_kd.toolbox.optimizers import Optimizer, faded


class FeatureGenerator(GeneratorOptions):
    """The generator of features and how the server trains it."""

    name: str = Field("dense_feature", description="a registered conditional generator of features")
    lr: float = Field(3e-4, gt=0, description="Adam's learning rate before the first update")
    lr_decay: float = Field(0.98, gt=0, le=1, description="factor of that rate an update")
    weight_decay: float = Field(1e-2, ge=0, description="Adam's weight decay")
    steps: int = Field(50, ge=0, description="generator steps an update")
    batch_size: int = Field(32, ge=2, description="generated samples a step")


class Options(AveragingOptions):
    """FedGen's options; the defaults are the released code's for MNIST."""

    generator: FeatureGenerator = FeatureGenerator()
    alpha: float = Field(10.0, ge=0, description="weight of the generated samples' cross entropy")
    beta: float = Field(10.0, ge=0, description="weight of KL to the prediction on a generated sample")
    decay: float = Field(0.98, gt=0, le=1, description="factor of alpha and beta an update")
    generated_epochs: int = Field(20, ge=0, description="first local epochs that use the generator")
    generated_batch: int | None = Field(None, ge=1, description="samples y' a step; null: the batch size")
    eta: float = Field(1.0, ge=0, description="weight of the diversity loss D")
    teacher: Literal["weighted_ce", "paper"] = Field(
        "weighted_ce", description="weighted cross entropies, or that of the mean logits as in the paper"
    )
    class_weights: ClassWeights = Field(
        "per_sample", description="a_{k,y} a sample, or cancelled by broadcasting as released"
    )


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        weights: [P], w^t.
        generator: [G].
        moments: the generator's Adam's state; empty before its first step.
        version: how many updates made them, t.
    """

    weights: Tensor
    generator: Tensor
    moments: Mapping[str, Tensor]
    version: int = 0


class FedGen(SharedModel[ServerState, None], plain_training=True):
    """Data-free distillation through a generator of features."""

    options: Options
    summary = "a server-trained generator of features regularises local training"
    paper = "Zhu, Hong, Zhou 2021, arXiv 2105.10056"
    whole_epochs = True
    server_keeps = "the global model, the generator and its Adam"
    down = {"student": "weights", "generator": "generator"}
    up = {"student": "weights", "label_counts": "counts"}

    def architectures(self) -> Mapping[str, Architecture]:
        """G, a conditional generator of what the model's last layer takes."""
        return {"generator": self.options.generator.architecture("features", conditional=True)}

    def init_server(self, ctx: ServerContext) -> ServerState:
        """w^0 and G before its first step, without Adam moments."""
        return ServerState(ctx.initial_vector(), ctx.initial_vector("generator"), {})

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        """Send w^t, G and t, by which alpha and beta fade."""
        return Message(student=server.weights, generator=server.generator, version=server.version)

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train the first `generated_epochs` on all three terms, the others on CE; before t = 1 all on CE."""
        options, version = self.options, int(message["version"])
        student = ctx.model(message["student"])
        generator = ctx.frozen_model(message["generator"], "generator")
        optimizer = Optimizer(ctx.local.optimizer, student)
        generating = min(options.generated_epochs, ctx.passes) if version else 0
        generated = options.generated_batch or ctx.local.batch_size
        # As tensors: what may differ between clients of a group reaches a batched loss in `extras` alone.
        numbers = {"faded": options.decay**version, "share": options.alpha * generated / ctx.local.batch_size}
        extras = {name: torch.tensor(value, device=ctx.device) for name, value in numbers.items()}
        train_batches(
            {"student": student, "generator": generator},
            self.loss,
            ctx,
            extras={**extras, **ctx.scale._asdict()},
            epochs=range(generating),
            optimizer=optimizer,
            further=lambda drawn: self._drawn(len(drawn.indices), generator, ctx),
        )
        train_on_labels(student, ctx, range(generating, ctx.passes), optimizer)
        parts = {"student": student.vector(), "label_counts": ctx.label_counts()}
        return None, Reply(**parts, samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """CE and the two terms on generated features; a term of weight 0 is not computed."""
        logits = models["student"](batch["images"])
        loss = cross_entropy(logits, batch["labels"], extras)
        logged = {"ce": loss}
        if self.options.beta:
            logged["latent"] = self.latent_term(logits, models, batch, extras)
            loss = loss + extras["faded"] * (self.options.beta * logged["latent"])
        if self.options.alpha:
            logged["generated"] = self.generated_term(models, batch, extras)
            loss = loss + extras["faded"] * (extras["share"] * logged["generated"])
        return Loss(loss, logged)

    def latent_term(self, logits: Tensor, models: Models, batch: Tensors, extras: Tensors) -> Tensor:
        """KL to what the predictor says of a generated feature of the same label; gradient reaches f(x)."""
        with torch.no_grad():
            z = generate(models["generator"], batch["latent"], batch["labels"], PixelScale.of(extras))
            taught = models["student"].classify(z)
        return distillation(taught, logits)

    def generated_term(self, models: Models, batch: Tensors, extras: Tensors) -> Tensor:
        """The predictor's CE on generated features of the labels y'; gradient reaches the predictor."""
        with torch.no_grad():
            z = generate(models["generator"], batch["generated"], batch["wanted"], PixelScale.of(extras))
        return cross_entropy(models["student"].classify(z), batch["wanted"])

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Train G against the cohort's predictors, then average the models."""
        generator, moments = self._trained_generator(server, replies, ctx)
        mean = new_model(replies, self.options, server.weights)
        return ServerState(mean, generator, moments, server.version + 1)

    def _drawn(self, size: int, generator: FlatModule, ctx: ClientContext) -> Tensors:
        """The noise and the labels of a batch's generated features, from the client's streams."""
        drawn = {}
        if self.options.beta:
            drawn["latent"] = noise(size, generator, ctx)
        if self.options.alpha:
            drawn["wanted"] = uniform_labels(self.options.generated_batch or ctx.local.batch_size, ctx)
            drawn["generated"] = noise(len(drawn["wanted"]), generator, ctx)
        return drawn

    def _trained_generator(
        self, server: ServerState, replies: Replies, ctx: ServerContext
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The generator after its steps against the cohort's own predictors, and its Adam's state."""
        options, recipe = self.options, self.options.generator
        counts = torch.stack(list(replies.vectors("label_counts"))).to(ctx.device)
        shares = class_shares(counts)
        pooled = counts.sum(0)
        drawn_from = pooled if options.teacher == "paper" else (pooled > 0).to(pooled.dtype)
        generator = ctx.model(server.generator, "generator")
        model = ctx.frozen_model(server.weights)
        heads = Ensemble(model, list(replies.vectors("student")), classify, batched=True)
        rates = faded(recipe.optimizer, recipe.lr_decay**server.version)
        optimizer = Optimizer(rates, generator, server.moments)
        for _ in range(recipe.steps):
            labels = drawn_labels(drawn_from, recipe.batch_size, ctx)
            epsilon = noise(len(labels), generator, ctx)
            z = generate(generator, epsilon, labels, ctx)
            fit = self._fit(heads(z), labels, shares)
            ctx.log(generator_ce=fit)
            loss = fit
            if options.eta:
                diversity = pairwise_diversity_loss(epsilon, z)
                ctx.log(diversity=diversity)
                loss = loss + options.eta * diversity
            optimizer.minimise(loss)
        return generator.vector().cpu(), {name: value.cpu() for name, value in optimizer.state().items()}

    def _fit(self, logits: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        """How badly the ensemble, [K, batch, C], takes features for their labels; shares are a, [K, C]."""
        if self.options.teacher == "paper":
            return cross_entropy(logits.mean(0), labels)
        losses = [F.cross_entropy(member, labels, reduction="none") for member in logits]
        return weighted_by_class(torch.stack(losses), shares[:, labels], self.options.class_weights)
