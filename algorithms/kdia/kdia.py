"""KDIA: a teacher of all clients, weighed by three frequencies, and a conditional generator of features.

Ma et al. 2025, "Tackling Data Heterogeneity in Federated Learning through Knowledge Distillation with
Inequitable Aggregation", Algorithms 1 and 2.

    student    theta_g   sum over the cohort of p_k theta_k, p_k = N_k / sum N_k     (eq. 1, 10)
    teacher    theta_T   sum over all clients of F_k theta_k, their latest models        (eq. 10)
    F_k        triFreqs: algorithms/kdia/participation.py                                    (eq. 5 to 9)
    generator  G(z, y~)  feature maps, trained on the server against the cohort's heads   (eq. 3, 4)

    L = CE(b) + lambda_kd KL(softmax(teacher(b) / tau), softmax(student(b) / tau))
              + lambda_gen CE(head(student, G(z, y~)), y~)                                (eq. 2, 11 to 13)

    down  student, teacher, generator (with its BatchNorm buffers)
    up    the student and the count N_k

Clients keep nothing. Readings: no tau^2, as eq. 11 has none; at the clients the generator is frozen and in
eval mode, with fresh noise in every batch; no batch is dropped; eq. 3's 1/K beside p_k, which acts as a
temperature, is `ensemble_scale: k`. t counts from 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.algorithms.kdia.participation import (
    Frequencies,
    Mean,
    combined,
    frequencies,
    participated,
    participations,
    weighted_model,
)
from rayfed_kd.protocol import (
    Architecture,
    ClassValues,
    ClientContext,
    Cohort,
    Distribution,
    Message,
    MethodOptions,
    OneExchange,
    PixelScale,
    Replies,
    Reply,
    ServerContext,
    Shown,
    Simulated,
    read_vector,
)
from rayfed_kd.toolbox.distillation import FeatureGenerator, train_generator_on_labels
from rayfed_kd.toolbox.ensembles import mixed_heads
from rayfed_kd.toolbox.generation import (
    class_directions,
    generate,
    generated_directions,
    labelled_noise_batches,
    mean_cosines,
    stage_of_maps,
)
from rayfed_kd.toolbox.local_training import Loss, Models, Phase, Tensors, train_phases
from rayfed_kd.toolbox.losses import Direction, cross_entropy, directed_divergence
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.slots import Slots


class Options(MethodOptions):
    """KDIA's options; the defaults are the paper's for beta 0.1 and 5."""

    lambda_kd: float = Field(0.5, ge=0, description="weight of the teacher's term (eq. 11)")
    lambda_gen: float = Field(0.01, ge=0, description="weight of the generator's term (eq. 12)")
    tau: float = Field(2.0, gt=0, description="temperature of the teacher's term")
    kl_direction: Direction = Field(
        "teacher_student", description="KL(teacher, student) as eq. 11, or KL(student, teacher) as released"
    )
    mean: Mean = Field("geometric", description="F_k: a mean of three frequencies, or one (Table 3)")
    generator: FeatureGenerator = FeatureGenerator()
    generator_from_round: int = Field(1, ge=1, description="first round whose clients use the generator")
    ensemble_scale: Literal["one", "k"] = Field(
        "one", description="logits of the ensemble: sum p_k l_k, or that over K as eq. 3 prints"
    )
    drop_last: bool = Field(False, description="leave out a short last batch, as released for beta >= 0.5")
    reference: str | None = Field(
        None, description="a float32 vector (.npy) whose features Fig. 7 compares with; null: the teacher's"
    )


@dataclass(frozen=True)
class ServerState:
    """Both models, the generator, and what is known of every seen client.

    Attributes:
        student: [P], theta_g.
        teacher: [P], theta_T.
        generator: [G].
        initial: [P], theta_g^0: what a client not seen yet counts as.
        slots: latest vector and running weight per seen client.
        last: client -> t_k.
        counts: client -> n_k.
    """

    student: Tensor
    teacher: Tensor
    generator: Tensor
    initial: Tensor
    slots: Slots
    last: Mapping[int, int]
    counts: Mapping[int, int]


@dataclass(frozen=True)
class LocalLoss:
    """A client's loss.

    Attributes:
        method: whose options.
        stage: where the generator's maps enter the student; None: without the generator's term.
    """

    method: KDIA
    stage: int | None

    def of_batch(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L (eq. 13)."""
        options, student = self.method.options, models["student"]
        logits = student(batch["images"])
        loss = cross_entropy(logits, batch["labels"], extras)  # eq. 2
        logged = {"ce": loss}
        if options.lambda_kd:
            with torch.no_grad():
                target = models["teacher"](batch["images"])
            logged["kd"] = directed_divergence(target, logits, options.tau, options.kl_direction)  # eq. 11
            loss = loss + options.lambda_kd * logged["kd"]
        if self.stage is not None:
            with torch.no_grad():
                scale = PixelScale.of(extras)
                maps = generate(models["generator"], batch["noise"], batch["wanted"], scale)
            logged["gen"] = cross_entropy(student.between(self.stage, None, maps), batch["wanted"])  # eq. 12
            loss = loss + options.lambda_gen * logged["gen"]
        return Loss(loss, logged)


class KDIA(OneExchange[ServerState, None], plain_training=True):
    """Knowledge distillation with inequitable aggregation."""

    options: Options
    summary = "distillation from a frequency-weighted teacher of all clients, and a generator of features"
    paper = "Ma et al. 2025, inequitable aggregation (KDIA)"
    server_keeps = "student, teacher, generator, all clients' latest models and participations"
    client_keeps = "nothing"
    down = {"student": "weights", "teacher": "weights", "generator": "generator"}
    up = {"student": "weights", "real": Simulated("features"), "samples_of_class": Simulated("counts")}
    evaluates = ("student", "teacher")

    def architectures(self) -> Mapping[str, Architecture]:
        return {"generator": self.options.generator.architecture("maps", conditional=True)}

    def check(self, ctx: ServerContext) -> None:
        self._compared(ctx.initial_vector(), ctx)  # refuses a reference of another size

    def init_server(self, ctx: ServerContext) -> ServerState:
        initial = ctx.initial_vector()
        generator, slots = ctx.initial_vector("generator"), Slots.empty(initial.numel())
        return ServerState(initial, initial, generator, initial, slots, last={}, counts={})

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        return Message(student=server.student, teacher=server.teacher, generator=server.generator)

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train the student on L (eq. 13); teacher and generator are frozen."""
        options = self.options
        student, teacher = ctx.model(message["student"]), ctx.frozen_model(message["teacher"])
        generator = ctx.frozen_model(message["generator"], "generator")
        generating = options.lambda_gen > 0 and ctx.round >= options.generator_from_round
        batches = labelled_noise_batches(generator, ctx, generating=generating, drop_last=options.drop_last)
        models = {"student": student, "teacher": teacher, "generator": generator}
        loss = LocalLoss(self, stage_of_maps(student, ctx) if generating else None)
        phase = Phase(loss.of_batch, [Optimizer(ctx.local.optimizer, student)])
        train_phases(models, [phase], batches, ctx, extras=ctx.scale._asdict())
        return None, Reply(student=student.vector(), samples=ctx.num_samples)

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Update t_k, n_k and the slots, then student, teacher (eq. 10) and generator (eq. 3, 4)."""
        now = ctx.round - 1  # Algorithm 1, lines 9 and 10: who took part when, how often, with what
        last = {**server.last, **dict.fromkeys(replies.clients, now)}
        counts = dict(Counter(server.counts) + Counter(replies.clients))
        models = {r.client: (r.ref("student"), r["samples"]) for r in replies}
        slots = participated(server.slots, models, counts, self.options.mean, server.last, now)
        seen = replace(server, slots=slots, last=last, counts=counts)
        known = known_frequencies(seen, ctx)
        ctx.log(**{f"variance_{name}": torch.tensor(value.var()) for name, value in known._asdict().items()})
        return replace(
            seen,
            student=replies.aggregated("student", replies.numbers("samples"), server.student),  # eq. 10
            teacher=weighted_model(slots, known, self.options.mean, last, ctx.sizes, server.initial, now=now),
            generator=self._trained_generator(server, replies, ctx),  # eq. 3, 4
        )

    def evaluated(self, server: ServerState) -> Mapping[str, Tensor]:
        return {"student": server.student, "teacher": server.teacher}

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        """F_k against N_k / sum N, and Fig. 7: cosines of generated and real features by class, [C]."""
        known = known_frequencies(server, ctx)
        weights = {"single (samples)": known.samples, "triple": combined(known, self.options.mean)}
        series = {name: torch.from_numpy(value) for name, value in weights.items()}
        compared = self._compared(server.teacher, ctx)
        replies = cohort.broadcast(self.class_features, Message(teacher=compared))
        sums, counts = replies.vectors("real"), replies.vectors("samples_of_class")
        generated = generated_directions(ctx.frozen_model(server.generator, "generator"), ctx)
        cosines = {"same class": mean_cosines(sums, counts, generated)}
        return {
            "teacher_weights": Distribution(series, "a client's weight in the teacher"),
            "feature_similarity": ClassValues(cosines, "mean cosine of generated and real features"),
        }

    def class_features(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Sums of unit feature vectors of a client's own images by class, [C, F], and their number."""
        sums, counts = class_directions(ctx.frozen_model(message["teacher"]), ctx)
        return None, Reply(real=sums, samples_of_class=counts)

    def _compared(self, teacher: Tensor, ctx: ServerContext) -> Tensor:
        """Fig. 7's vector: that of `reference`, or the teacher's. Raises: RecipeError if it does not fit."""
        path = self.options.reference
        return teacher if path is None else read_vector(path, teacher.numel(), "method.reference")

    def _trained_generator(self, server: ServerState, replies: Replies, ctx: ServerContext) -> Tensor:
        """Algorithm 1, lines 13 to 20: last round's generator against the cohort's heads."""
        generator = ctx.model(server.generator, "generator")
        model = ctx.frozen_model(server.student)  # for its architecture
        samples = torch.tensor(replies.numbers("samples"), device=ctx.device)
        shares = samples / samples.sum() / (len(replies) if self.options.ensemble_scale == "k" else 1)
        ensemble = mixed_heads(model, list(replies.vectors("student")), stage_of_maps(model, ctx), shares)
        train_generator_on_labels(generator, ensemble, self.options.generator, ctx)
        return generator.vector().cpu()


def known_frequencies(server: ServerState, ctx: ServerContext) -> Frequencies:
    """The three frequencies of all N clients, seen or not."""
    return frequencies(*participations(server.last, server.counts, ctx.sizes), ctx.round - 1)
