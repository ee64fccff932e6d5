"""FedRevive: late changes are blended with one that the server distils, without data, from the latest models.

Askin et al. 2025, Reviving Stale Updates, arXiv 2511.00655; code NVIDIA/NVFlare, research/fedrevive.

    client    trains w_sent; Delta_i = w_i - w_sent
    server    for each reply in the order of arrival, tau updates late, after t updates:
    q_i       mean of s_0.8(f(w_i; x)) over 64 normal x, mean over the client's first two uploads
    teachers  the last c models w_k with their clients' q_k; a_k(y) = q_k(y) / sum_j q_j(y)
    beta      1 - (1 + cos(pi tau / (2 s_max))) / 2; 1 beyond 2 s_max
    images    t >= 50, beta > 0, every 10th update: noise + 0.2 e_y, y by the mean q_k, through a copy of
              the generator; copy, noise and e take 2 Adam steps on `ByClassOptions.loss`, L_adv
              from t >= 100; the better step's images join the pool; one on theta - theta_copy (Reptile)
    Delta_KD  t > 100, beta > 0: 10 Adam steps from w^t on the mean KL(s(f(w_k)), s(f(w))), 32 images of the
              pool a teacher, their classes by q_k
    update    w <- w + eta_s mean of (1 - beta) Delta_i + beta Delta_KD, by the schedule's rule
    down, up  the model                                4 P bytes a client each way

Up go 4 C bytes more with `histograms: true`, q_i = n_i^y / n_i. With `images: public` there are no q, and
images are any public ones. Clients keep nothing. Made for the schedule `buffered` with normalisation
`count`; eta_s is its `server_lr`. Readings are on its page. With fresh replies alone it is FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import Architecture, ClientContext, RecipeError, Replies, Reply, ServerContext
from rayfed_kd.toolbox.averaging import Telling
from rayfed_kd.toolbox.by_class.means import class_shares, drawn_labels, drawn_places
from rayfed_kd.toolbox.data_free.synthesis import BETAS, ByClassOptions, GeneratorRates, LossGuard, Teachers
from rayfed_kd.toolbox.generation import generate, noise, uniform_labels
from rayfed_kd.toolbox.losses import kl_divergence
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer, minimise

UPLOADS, PROBES, SOFTNESS, EMBEDDED = 2, 64, 0.8, 0.2  # of a proxy; weight of e_y


class Options(ByClassOptions):
    """FedRevive's options; the defaults are those of the released mode that follows the paper."""

    images: Literal["pool", "public"] = Field("pool", description="to distil on: synthesised, or public ones")
    histograms: Literal["probe", True] = Field("probe", description="q_i: by probes, or true label counts")
    loss_guard: bool = Field(False, description="whether losses far above the last ones are left out")
    teachers: int = Field(8, ge=1, description="models that teach, c")
    s_max: float = Field(75.0, gt=0, description="staleness at which half of a change is the distilled one")
    synth_from: int = Field(50, ge=0, description="updates before the first synthesis")
    blend_after: int = Field(100, ge=0, description="updates after which late changes are blended")
    every: int = Field(10, ge=1, description="updates from one synthesis to the next, T_gen")
    targets: Literal["proxies", "uniform"] = Field("proxies", description="classes of synthesised images")
    synthesised: int = Field(64, ge=2, description="images of a synthesis")
    pool: int = Field(16_000, ge=1, description="images that are kept")
    distill_steps: int = Field(10, ge=1, description="steps of a distillation, K_KD")
    batch_size: int = Field(32, ge=1, description="images of each teacher in a step")
    distill_lr: float = Field(0.0001, gt=0, description="Adam's learning rate of a distillation")
    weight_decay: float = Field(0.00001, ge=0, description="Adam's weight decay there")
    augment: Literal["none", "reflect_crop_flip"] = Field("reflect_crop_flip", description="of images")


@dataclass(frozen=True)
class State:
    """What the server keeps; with `images: public` sums to labels stay 0 or empty.

    Attributes:
        weights: [P], w^t.
        teachers, clients: [k, P] and [k] int64, the last models and who sent them, newest first; k <= c.
        sums, counts: [K, C] and [K], the sum of a client's proxies and how many, or n_i^y and n_i.
        generator, moments: [G], and those of its Adam; empty before the first synthesis.
        images, labels: [n, c, h, w] uint8 and [n] int64, the pool, newest last.
        windows: last values of losses, as `LossGuard` has them; empty without it.
    """

    weights: Tensor
    teachers: Tensor
    clients: Tensor
    sums: Tensor
    counts: Tensor
    generator: Tensor
    moments: Mapping[str, Tensor]
    images: Tensor
    labels: Tensor
    windows: Mapping[str, Tensor]

    def proxies(self, ctx: ServerContext) -> Tensor:
        """The teachers' q_k, [k, C], in units of 2^-24; a second upload changes an earlier model's."""
        proxies = self.sums[self.clients] / self.counts[self.clients, None]
        return proxies.mul(2**24).round().to(ctx.device)


class FedRevive(Telling[State, None], plain_training=True):
    """Late changes revived by data-free distillation."""

    options: Options
    summary = "late changes are blended with one distilled from the latest models on synthesised images"
    paper = "Askin et al. 2025, arXiv 2511.00655"
    server_keeps = "the global model, the latest models; for a pool clients' classes, a generator, its images"

    @property
    def up(self) -> Mapping[str, Literal["weights", "counts"]]:
        if self.options.histograms == "probe":
            return {"student": "weights"}
        return {"student": "weights", "label_counts": "counts"}

    @property
    def public(self) -> Literal["none", "samples"]:
        return "none" if self.options.images == "pool" else "samples"

    def architectures(self) -> Mapping[str, Architecture]:
        """The generator of images, which never leaves the server; none with `images: public`."""
        return {"generator": self.options.generator.architecture()} if self.public == "none" else {}

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError if the images cannot take `augment`, or nothing would read the label counts."""
        ctx.augmented(torch.zeros(1, *ctx.shape), self.options.augment)
        if self.options.images == "public" and self.options.histograms != "probe":
            raise RecipeError("method.histograms: images: public reads no classes; expected probe, not true")

    def init_server(self, ctx: ServerContext) -> State:
        """w^0 and the generator, without models, proxies and images."""
        weights, nobody = ctx.initial_vector(), torch.zeros(0, dtype=torch.int64)
        counts, images = torch.zeros(ctx.num_clients), torch.zeros(0, *ctx.shape, dtype=torch.uint8)
        teachers, sums = weights.new_empty(0, len(weights)), torch.zeros(ctx.num_clients, ctx.classes)
        generator = ctx.initial_vector("generator") if self.public == "none" else torch.zeros(0)
        return State(weights, teachers, nobody, sums, counts, generator, {}, images, nobody, {})

    def told(self, client: None, ctx: ClientContext) -> Mapping[str, Tensor]:
        """With `histograms: true` a client sends its label counts n_i^y, [C], with each reply."""
        return {} if self.options.histograms == "probe" else {"label_counts": ctx.label_counts()}

    def absorb(self, server: State, replies: Replies, ctx: ServerContext) -> State:
        """Hear each reply in the order of arrival and blend it if it is late; then the schedule's update."""
        options, updates, blended, state = self.options, ctx.round - 1, dict[int, Tensor](), server
        public, guard = options.images == "public", LossGuard(server.windows, on=options.loss_guard)
        for place in replies.arrival:
            reply = replies[place]
            state, beta = heard(state, reply, options, ctx), blending(reply.staleness, options.s_max)
            if not beta or (updates < options.synth_from and not public):
                continue
            teachers = Teachers([ctx.frozen_model(vector) for vector in state.teachers])
            if updates % options.every == 0 and not public:
                state = self.synthesis(state, teachers, guard, ctx)
            if updates > options.blend_after and (public or len(state.labels)):
                ctx.log(beta=beta)
                assert reply.sent is not None  # as it is late
                sent, vector = torch.tensor(reply.sent.resolve()["student"]), reply["student"]
                blended[place] = blend(vector, sent, self.distillation(state, teachers, guard, ctx), beta)
        weights = replies.numbers("samples")
        mean = replies.changed("student", blended).aggregated("student", weights, server.weights)
        model = ctx.frozen_model(mean)
        if any(getattr(layer, "tracks_only", False) for layer in model.submodules):
            mean[model.num_parameters :] = ctx.initial_vector()[model.num_parameters :]
        return replace(state, weights=mean, windows=guard.windows)

    def synthesis(self, server: State, teachers: Teachers, guard: LossGuard, ctx: ServerContext) -> State:
        """Images of a copy of the generator join the pool, and the generator moves towards the copy."""
        options, proxies, count = self.options, server.proxies(ctx), self.options.synthesised
        uniform = options.targets == "uniform"
        labels = uniform_labels(count, ctx) if uniform else drawn_labels(proxies.sum(0), count, ctx)
        fast, slow = (ctx.model(server.generator, "generator") for _ in range(2))
        start = torch.randn(ctx.classes, fast.latent, generator=ctx.stream("embeddings"), device=ctx.device)
        z, e, rates = FreeTensor(noise(count, fast, ctx)), FreeTensor(start), options.generator.optimizer
        latent = rates.model_copy(update={"lr": options.latent_lr})
        adams = [Optimizer(rate, var, betas=BETAS) for rate, var in ((rates, fast), (latent, z), (latent, e))]
        chosen, shares = F.one_hot(labels, ctx.classes).float(), class_shares(proxies)[:, labels]
        student, steps = ctx.frozen_model(server.weights), list[tuple[float, Tensor]]()
        for _ in range(options.generator_steps):
            # By a product: the gradient of an index adds in no fixed order on a GPU.
            images = generate(fast, z.value + EMBEDDED * (chosen @ e.value), None, ctx)
            seen = ctx.augmented(images, options.augment)
            answers = [Teachers([teacher]).with_gap(seen) for teacher in teachers]
            logits, gaps = torch.cat([row for row, _ in answers]), torch.stack([gap for _, gap in answers])
            against = student(seen) if options.lambda_adv and ctx.round > options.blend_after else None
            loss = options.loss(logits, gaps, labels, shares, against, LossGuard({}, on=False))
            ctx.log(synthesis=loss)
            steps.append((loss.item(), images.detach()))
            guarded_loss = options.loss(logits, gaps, labels, shares, against, guard) if guard.on else loss
            if guarded_loss.requires_grad:  # otherwise all is left out, and Adam would step on its moments
                minimise(guarded_loss, *adams)
        _, best = min(steps, key=lambda step: step[0])
        adam = Optimizer(rates, slow, server.moments, betas=BETAS)
        pairs = zip(slow.leaves, fast.leaves, strict=True)  # of which the gradient is theta - theta_copy
        adam.minimise(torch.stack([(leaf * (leaf - other).detach()).sum() for leaf, other in pairs]).sum())
        pixels = ctx.pixels(best).mul(255).round().to(torch.uint8).cpu()
        images, labels = torch.cat([server.images, pixels]), torch.cat([server.labels, labels.cpu()])
        pooled = replace(server, images=images[-options.pool :], labels=labels[-options.pool :])
        return replace(pooled, generator=slow.vector().cpu(), moments=adam.state())

    def distillation(self, server: State, teachers: Teachers, guard: LossGuard, ctx: ServerContext) -> Tensor:
        """Delta_KD, [parameters], on the CPU."""
        student, options = ctx.model(server.weights), self.options
        adam = GeneratorRates(lr=options.distill_lr, weight_decay=options.weight_decay).optimizer
        optimizer = Optimizer(adam, student)
        for _ in range(options.distill_steps):
            batches = [ctx.augmented(images, options.augment) for images in self.drawn(server, ctx)]
            with torch.no_grad():
                targets = [teacher(images) for teacher, images in zip(teachers, batches, strict=True)]
            loss = kl_divergence(torch.cat(targets), student(torch.cat(batches)))
            ctx.log(distillation=loss)
            if guard.keeps("distillation", loss):
                optimizer.minimise(loss)
        return (student.vector().cpu() - server.weights)[: student.num_parameters]

    def drawn(self, server: State, ctx: ServerContext) -> list[Tensor]:
        """Images for each teacher, as models see them: of the pool by its classes, or any public ones."""
        n, stream = self.options.batch_size, ctx.stream("places")
        if self.options.images == "public":
            ids = torch.randint(
                len(ctx.public), (len(server.clients), n), generator=stream, device=ctx.device
            )
            return [ctx.public.images(row) for row in ids]
        chosen = [drawn_places(server.labels, proxy, n, ctx) for proxy in server.proxies(ctx)]
        return [ctx.normalise(server.images[places].to(ctx.device).float() / 255) for places in chosen]


def heard(server: State, reply: Reply, options: Options, ctx: ServerContext) -> State:
    """The state with the reply's model as the newest teacher, and its client's classes."""
    client, sums, counts = reply.client, server.sums.clone(), server.counts.clone()
    if "label_counts" in reply:
        label_counts = reply["label_counts"]
        label_counts = label_counts if label_counts.any() else torch.ones_like(label_counts)  # of no samples
        sums[client], counts[client] = label_counts, label_counts.sum()
    elif options.images == "pool" and counts[client] < UPLOADS:
        probes = torch.randn(PROBES, *ctx.shape, generator=ctx.stream("probes"), device=ctx.device)
        logits = ctx.frozen_model(reply["student"]).predict(probes)
        sums[client] += (logits / SOFTNESS).softmax(1).mean(0).cpu()
        counts[client] += 1
    teachers = torch.cat([reply["student"][None], server.teachers])[: options.teachers]
    clients = torch.cat([torch.tensor([client]), server.clients])[: options.teachers]
    return replace(server, teachers=teachers, clients=clients, sums=sums, counts=counts)


def blending(tau: int, s_max: float) -> float:
    """beta(tau)."""
    return 1.0 if tau > 2 * s_max else (1 - math.cos(math.pi * tau / (2 * s_max))) / 2


def blend(trained: Tensor, sent: Tensor, distilled: Tensor, beta: float) -> Tensor:
    """w_i whose change from w_sent is the blended one; of buffers, which Delta_KD lacks, it stays."""
    border = len(distilled)
    changed = trained[:border] + beta * (distilled - (trained[:border] - sent[:border]))
    return torch.cat([changed, trained[border:]])
