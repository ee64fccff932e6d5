"""FedKD: a private mentor and a shared small mentee teach one another; of the mentee factors travel.

Wu, Wu, Lyu, Huang, Xie 2022, Communication-Efficient Federated Learning via Knowledge Distillation, Nature
Communications 13, 2032, arXiv 2108.13323, eqs. 1 to 9, Algorithm 1.

    z_t, h_t  logits and features of the mentor; z_s, h_s those of the mentee; S = CE(z_t) + CE(z_s)
    L_t       CE(z_t) + KL(softmax(z_s), softmax(z_t)) / S + MSE(h_t, W h_s) / S
    L_s       CE(z_s) + KL(softmax(z_t), softmax(z_s)) / S + MSE(h_t, W h_s) / S
    up        G_k: what training changed in the mentee; of each matrix the K largest singular values, K the
              smallest whose share of the energy is above T, and their vectors
    server    the mean of the G_k, factorised by the same T; down it goes, and all add it to their mentee
    T         from T_start to T_end over the rounds

The recipe's `model` is the mentee, and `client_models`, if there are any, are the mentors. A client keeps its
mentor, the mentee and W. One that is new or missed a round receives the mentee whole, 4 P bytes. Readings:
G_k is a difference of weights, where the paper has a gradient; each loss reaches its own model, L_s also W,
and S is a number; no attention maps; the mean is uniform; T rises with the rounds before this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    PERSONAL,
    RECIPE_MODEL,
    Architecture,
    ClientContext,
    Cohort,
    Evaluable,
    Evaluated,
    Exact,
    Message,
    Method,
    MethodOptions,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.averaging import Weighting, cohort_weights
from rayfed_kd.toolbox.layers import check_features, drawn_map, linear_map
from rayfed_kd.toolbox.local_training import Loss, Models, Phase, Tensors, own_batches, train_phases
from rayfed_kd.toolbox.losses import cross_entropy, distillation
from rayfed_kd.toolbox.low_rank import LowRank, Replica, Replicated, matrix_places, to_low_rank
from rayfed_kd.toolbox.optimizers import Optimizer

MENTOR, MENTEE, MAP = "mentor", "mentee", "map"
LEAST_INTENSITY = 1e-8


class Options(MethodOptions):
    """FedKD's options; the defaults are the paper's."""

    distill: float = Field(1.0, ge=0, description="weight of the two KL terms")
    hidden: float = Field(1.0, ge=0, description="weight of the distance of the features")
    detach_intensity: bool = Field(True, description="S is a number; false: gradient passes through it")
    energy_start: float = Field(0.95, ge=0, le=1, description="share of energy that is sent, T, at first")
    energy_end: float = Field(0.98, ge=0, le=1, description="T in the end; 1: matrices travel as they are")
    energy_rounds: int | None = Field(None, ge=1, description="rounds in which T rises; null: the run's")
    weighting: Weighting = Field("uniform", description="a client's weight in the mean")


@dataclass(frozen=True)
class ClientState:
    """The mentor, [P_k], the mentee as it was received, and W, [K_t, K_s]."""

    mentor: Tensor
    mentee: Replica
    map: Tensor


class FedKD(Method[Replicated, ClientState], plain_training=True):
    """Adaptive mutual distillation with a low-rank exchange; the server's state is the mentee."""

    options: Options
    summary = "a private mentor and a shared mentee, whose updates travel as factors of low rank"
    paper = "Wu et al. 2022, arXiv 2108.13323"
    server_keeps = "the mentee, its last update, which version of it each client has"
    client_keeps = "its mentor, the mentee, the map between their features"
    down = {"whole": Exact("weights"), "mean": Exact("weights"), "mean_ranks": "counts"}
    up = {"update": Unaligned("weights"), "ranks": "counts"}
    heterogeneous = True
    evaluates = ("mentee", "personal")

    def architectures(self) -> Mapping[str, Architecture]:
        return {MENTEE: Architecture("classifier", RECIPE_MODEL, {})}

    def check(self, ctx: ServerContext) -> None:
        check_features(ctx)

    def init_server(self, ctx: ServerContext) -> Replicated:
        return Replicated(ctx.initial_vector(), 0, None, {})

    def init_client(self, ctx: ClientContext) -> ClientState:
        """A mentor that no other client has, and W as torch draws linear layers; no mentee yet."""
        mentor, mentee = ctx.own_initial_vector(), ctx.model(ctx.initial_vector(MENTEE), MENTEE)
        mapping = drawn_map(mentee.freeze(), ctx.frozen_model(mentor), ctx)
        return ClientState(mentor, Replica(torch.empty(0)), mapping)

    def run_round(self, server: Replicated, cohort: Cohort, ctx: ServerContext) -> Replicated:
        """Bring every client to the newest mentee; add the mean of what their training changed in it."""
        start, rise = self.options.energy_start, self.options.energy_end - self.options.energy_start
        rounds = self.options.energy_rounds or ctx.rounds
        energy = start + rise * min(ctx.round - 1, rounds) / rounds
        messages = {client: server.message(client, energy=energy) for client in cohort.clients}
        replies = cohort.scatter(self.update, messages)
        changes = {reply.client: LowRank(reply["update"], reply["ranks"]) for reply in replies}
        weights = cohort_weights(replies, self.options.weighting)
        return server.updated(changes, weights, matrix_places(ctx.frozen_model(server.vector)), energy)

    def update(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """Train mentor, mentee and W for E epochs; the mentor stays, the mentee's change is sent."""
        mentee = ctx.model(ctx.initial_vector(MENTEE), MENTEE)
        received = client.mentee.brought_up(message, matrix_places(mentee))
        mentee.load(received.vector)
        models = {MENTOR: ctx.model(client.mentor), MENTEE: mentee, MAP: linear_map(client.map)}
        optimizers = [Optimizer(ctx.local.optimizer, model) for model in models.values()]
        train_phases(models, [Phase(self.loss, optimizers)], own_batches(ctx), ctx)
        sent = to_low_rank(mentee.vector() - received.vector, matrix_places(mentee), message["energy"])
        fields = models[MENTOR].vector(), received, models[MAP].vector().view(client.map.shape)
        return ClientState(*fields), Reply(update=sent.numbers, ranks=sent.ranks, samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L_t + L_s, each for its own model, L_s also for W; terms without weight are left out."""
        options, labels = self.options, batch["labels"]
        h_t, h_s = (models[name].features(batch["images"]) for name in (MENTOR, MENTEE))
        z_t, z_s = models[MENTOR].classify(h_t), models[MENTEE].classify(h_s)
        parts = {"ce": cross_entropy(z_t, labels, extras), "mentee_ce": cross_entropy(z_s, labels, extras)}
        value = parts["ce"] + parts["mentee_ce"]
        # Cross entropies of certain models are exactly 0 in float32.
        intensity = (value.detach() if options.detach_intensity else value).clamp(min=LEAST_INTENSITY)
        if options.distill:
            parts |= {"kd": distillation(z_s, z_t), "mentee_kd": distillation(z_t, z_s)}
            value = value + options.distill * (parts["kd"] + parts["mentee_kd"]) / intensity
        if options.hidden:
            mapped = models[MAP](h_s)
            # Twice the same number: the mentor's term moves h_t, the mentee's W h_s.
            parts["hidden"] = F.mse_loss(h_t, mapped.detach())
            value = value + options.hidden * (parts["hidden"] + F.mse_loss(mapped, h_t.detach())) / intensity
        return Loss(value, parts)

    def evaluated(self, server: Replicated) -> Mapping[str, Evaluable]:
        """The mentee, and every client's mentor, which the paper predicts with."""
        return {MENTEE: Evaluated(server.vector, MENTEE), "personal": PERSONAL}

    def personal(self, client: ClientState, ctx: ClientContext) -> Tensor:
        return client.mentor
