"""KDIA: a teacher of all clients, weighed by three frequencies, and a conditional generator of features.

Ma et al. 2025, "Tackling Data Heterogeneity in Federated Learning through Knowledge Distillation with
Inequitable Aggregation", Algorithms 1 and 2.

    student    theta_g   sum over the cohort of p_k theta_k, p_k = N_k / sum N_k     (eq. 1, 10)
    teacher    theta_T   sum over all clients of F_k theta_k, their latest models        (eq. 10)
    F_k        triFreqs: rayfed_kd/toolbox/participation.py                                  (eq. 5 to 9)
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    Architecture,
    ClassValues,
    ClientContext,
    Cohort,
    Context,
    Distribution,
    FlatModule,
    Message,
    MethodOptions,
    OneExchange,
    PixelScale,
    Replies,
    Reply,
    ServerContext,
    Shown,
    Simulated,
    last_maps,
    read_vector,
)
from rayfed_kd.toolbox.distillation import GeneratorTraining, train_generator_on_labels
from rayfed_kd.toolbox.ensembles import Ensemble
from rayfed_kd.toolbox.generation import GeneratorOptions, LabelPool, generate, noise
from rayfed_kd.toolbox.local_training import Loss, Models, OwnBatch, Phase, Tensors, train_phases
from rayfed_kd.toolbox.losses import cross_entropy, kl_divergence
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.participation import (
    DECAYS,
    Frequencies,
    Mean,
    combined,
    frequencies,
    participations,
    running_weight,
    unseen_weight,
)
from rayfed_kd.toolbox.slots import Slots

COMPARED = 64


class FeatureGenerator(GeneratorOptions):
    """FedCG's generator and how the server trains it."""

    name: str = Field("fedcg_feature", description="a registered conditional generator of feature maps")
    weight_decay: float = Field(1e-5, ge=0, description="Adam's weight decay")
    epochs: int = Field(10, ge=0, description="server epochs a round; 0 leaves it untrained")
    batches: int = Field(200, ge=1, description="batches an epoch")
    batch_size: int = Field(64, ge=2, description="generated samples a batch")
    diversity: float = Field(1.0, ge=0, description="weight of the diversity loss (eq. 4)")

    @property
    def training(self) -> GeneratorTraining:
        """For rayfed_kd.toolbox.local_training."""
        return GeneratorTraining(self.epochs, self.batches, self.batch_size, self.optimizer, self.diversity)


class Options(MethodOptions):
    """KDIA's options; the defaults are the paper's for beta 0.1 and 5."""

    lambda_kd: float = Field(0.5, ge=0, description="weight of the teacher's term (eq. 11)")
    lambda_gen: float = Field(0.01, ge=0, description="weight of the generator's term (eq. 12)")
    tau: float = Field(2.0, gt=0, description="temperature of the teacher's term")
    kl_direction: Literal["teacher_student", "student_teacher"] = Field(
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

    def of_batch(self, models: Models, batch: Tensors, given: Tensors) -> Loss:
        """L (eq. 13)."""
        options, student = self.method.options, models["student"]
        logits = student(batch["images"])
        loss = cross_entropy(logits, batch["labels"])  # eq. 2
        logged = {"ce": loss}
        if options.lambda_kd:
            with torch.no_grad():
                taught = models["teacher"](batch["images"])
            logged["kd"] = self._distillation(taught, logits)  # eq. 11
            loss = loss + options.lambda_kd * logged["kd"]
        if self.stage is not None:
            with torch.no_grad():
                maps = generate(models["generator"], batch["noise"], batch["wanted"], PixelScale(**given))
            logged["gen"] = cross_entropy(student.from_(self.stage, maps), batch["wanted"])  # eq. 12
            loss = loss + options.lambda_gen * logged["gen"]
        return Loss(loss, logged)

    def _distillation(self, taught: Tensor, logits: Tensor) -> Tensor:
        """KL at temperature tau; gradient reaches the student alone, `taught` has none."""
        options = self.method.options
        teacher, student = taught / options.tau, logits / options.tau
        if options.kl_direction == "teacher_student":
            return kl_divergence(teacher, student)
        return kl_divergence(student, teacher)


class KDIA(OneExchange[ServerState, None]):
    """Knowledge distillation with inequitable aggregation."""

    options: Options
    summary = "distillation from a frequency-weighted teacher of all clients, and a generator of features"
    paper = "Ma et al. 2025, inequitable aggregation (KDIA)"
    server_keeps = "student, teacher, generator, all clients' latest models and participations"
    client_keeps = "nothing"
    down = {"student": "weights", "teacher": "weights", "generator": "generator"}
    up = {
        "student": "weights",
        "real": Simulated("features"),
        "samples_of_class": Simulated("counts"),
    }

    def architectures(self) -> Mapping[str, Architecture]:
        return {"generator": self.options.generator.architecture("maps", conditional=True)}

    def check(self, ctx: ServerContext) -> None:
        _reference(self.options.reference, ctx)

    def init_server(self, ctx: ServerContext) -> ServerState:
        initial = ctx.initial_vector()
        return ServerState(
            student=initial,
            teacher=initial,
            generator=ctx.initial_vector("generator"),
            initial=initial,
            slots=Slots.empty(initial.numel()),
            last={},
            counts={},
        )

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        return Message(student=server.student, teacher=server.teacher, generator=server.generator)

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        options = self.options
        student, teacher = ctx.model(message["student"]), ctx.frozen_model(message["teacher"])
        generator = ctx.frozen_model(message["generator"], "generator")
        generating = options.lambda_gen > 0 and ctx.round >= options.generator_from_round
        pool = LabelPool(ctx.num_samples, ctx.local.batch_size, ctx.local.epochs, ctx)

        def batches() -> Iterator[OwnBatch]:
            for epoch in range(ctx.local.epochs):
                for drawn, wanted in zip(ctx.batches(epoch), pool.epoch(epoch), strict=True):
                    size = len(wanted)
                    if options.drop_last and size < ctx.local.batch_size <= ctx.num_samples:
                        ctx.count_drawn(size)
                    elif generating:
                        yield drawn, {"wanted": wanted, "noise": noise(size, generator, ctx)}
                    else:
                        yield drawn, {}

        models = {"student": student, "teacher": teacher, "generator": generator}
        loss = LocalLoss(self, _stage(student, ctx) if generating else None)
        phase = Phase(loss.of_batch, [Optimizer(ctx.local.optimizer, student)])
        train_phases(models, [phase], batches, ctx, given=ctx.scale._asdict())
        return None, Reply(student=student.vector(), samples=ctx.num_samples)

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        now = ctx.round - 1  # Algorithm 1, lines 9 and 10: who took part when, how often, with what
        last = {**server.last, **dict.fromkeys(replies.clients, now)}
        counts = dict(Counter(server.counts) + Counter(replies.clients))
        slots = self._slots(server, replies, counts, now)
        seen = replace(server, slots=slots, last=last, counts=counts)
        three = known_frequencies(seen, ctx)
        ctx.log(**{f"variance_{name}": torch.tensor(value.var()) for name, value in three._asdict().items()})
        return replace(
            seen,
            student=replies.aggregated("student", replies.numbers("samples"), server.student),  # eq. 10
            teacher=self._teacher(seen, three, ctx),  # eq. 10
            generator=self._trained_generator(server, replies, ctx),  # eq. 3, 4
        )

    def evaluated(self, server: ServerState) -> Mapping[str, Tensor]:
        return {"student": server.student, "teacher": server.teacher}

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        three = known_frequencies(server, ctx)
        weights = {"single (samples)": three.samples, "triple": combined(three, self.options.mean)}
        shown: dict[str, Shown] = {
            "teacher_weights": Distribution(
                {series: torch.from_numpy(value) for series, value in weights.items()},
                "a client's weight in the teacher",
            )
        }
        reference = _reference(self.options.reference, ctx)
        compared = server.teacher if reference is None else reference
        replies = cohort.broadcast(self.class_features, Message(teacher=compared))
        counts = torch.stack(list(replies.vectors("samples_of_class"))).sum(0)
        real = torch.stack(list(replies.vectors("real"))).sum(0) / counts.clamp(min=1)[:, None]
        similar = (real * self._mean_directions(server, ctx)).sum(1)
        similar[counts == 0] = torch.nan
        quantity = "mean cosine of generated and real features"
        return {**shown, "feature_similarity": ClassValues({"same class": similar}, quantity)}

    def class_features(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Sums of unit feature vectors of a client's own images by class, [C, F], and their number."""
        teacher = ctx.frozen_model(message["teacher"])
        stage = _stage(teacher, ctx)
        sums = torch.zeros(ctx.classes, 0, device=ctx.device)
        counts = torch.zeros(ctx.classes, dtype=torch.float32, device=ctx.device)
        with torch.no_grad():
            for images, labels in ctx.epoch(0):
                units = F.normalize(teacher.up_to(stage, images).flatten(1), dim=1)
                if not sums.numel():
                    sums = units.new_zeros(ctx.classes, units.shape[1])
                sums.index_add_(0, labels, units)
                counts += torch.bincount(labels, minlength=ctx.classes)
        return None, Reply(real=sums, samples_of_class=counts)

    def _slots(self, server: ServerState, replies: Replies, counts: Mapping[int, int], now: int) -> Slots:
        """Everybody's latest vector; weights of the running form where there is one."""
        mean = self.options.mean
        if mean not in DECAYS:
            return server.slots.replaced({r.client: (r.ref("student"), 1.0) for r in replies})
        before = max(server.last.values(), default=now)
        updates = {
            r.client: (r.ref("student"), running_weight(mean, counts[r.client], r["samples"]))
            for r in replies
        }
        return server.slots.scaled(DECAYS[mean] ** (now - before)).replaced(updates)

    def _teacher(self, seen: ServerState, three: Frequencies, ctx: ServerContext) -> Tensor:
        """sum_k F_k theta_k (eq. 10): running where F_k allows, else over all slots; unseen: theta_g^0."""
        mean = self.options.mean
        if mean in DECAYS:
            rest = ctx.num_clients - len(seen.last)
            rest_samples = sum(ctx.sizes) - sum(ctx.sizes[k] for k in seen.last)
            return seen.slots.mean(seen.initial, unseen_weight(mean, rest, rest_samples, ctx.round - 1))
        weights = combined(three, mean)
        slots = seen.slots.reweighted({k: float(weights[k]) for k in seen.last})
        return slots.mean(seen.initial, 1.0 - slots.weight if len(seen.last) < ctx.num_clients else 0.0)

    def _trained_generator(self, server: ServerState, replies: Replies, ctx: ServerContext) -> Tensor:
        """Algorithm 1, lines 13 to 20: last round's generator against the cohort's heads."""
        generator = ctx.model(server.generator, "generator")
        model = ctx.frozen_model(server.student)
        stage = _stage(model, ctx)
        heads = Ensemble(
            model, list(replies.vectors("student")), lambda m, maps: m.from_(stage, maps), batched=True
        )
        samples = torch.tensor(replies.numbers("samples"), device=ctx.device)
        shares = samples / samples.sum() / (len(heads) if self.options.ensemble_scale == "k" else 1)

        def ensemble(maps: Tensor) -> Tensor:
            return torch.einsum("k,kbc->bc", shares, heads(maps))

        train_generator_on_labels(generator, ensemble, self.options.generator.training, ctx)
        return generator.vector().cpu()

    def _mean_directions(self, server: ServerState, ctx: ServerContext) -> Tensor:
        """[C, F] on the CPU: the mean unit vector of generated maps of each class."""
        generator = ctx.frozen_model(server.generator, "generator")
        labels = torch.arange(ctx.classes, device=ctx.device).repeat_interleave(COMPARED)
        with torch.no_grad():
            maps = generate(generator, noise(len(labels), generator, ctx), labels, ctx)
        units = F.normalize(maps.flatten(1), dim=1)
        return units.view(ctx.classes, COMPARED, -1).mean(1).cpu()


def known_frequencies(server: ServerState, ctx: ServerContext) -> Frequencies:
    """The three frequencies of all N clients, seen or not."""
    return frequencies(*participations(server.last, server.counts, ctx.sizes), ctx.round - 1)


def _stage(model: FlatModule, ctx: Context) -> int:
    """After how many stages the model's last feature maps come out: where the generator's take over."""
    return last_maps(model.module, ctx.shape)[0]  # type: ignore[arg-type]


def _reference(path: str | None, ctx: ServerContext) -> Tensor | None:
    """The vector that Fig. 7 is drawn against.

    Raises: RecipeError if the file is no vector of this model.
    """
    return None if path is None else read_vector(path, ctx.initial_vector().numel(), "method.reference")
