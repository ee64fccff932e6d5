"""DKDR: clients distil from the means of groups of clients, in both directions of KL, weighed by differences.

DKDR 2025, "Dynamic Knowledge Distillation for Reliability in Federated Learning", NeurIPS; released code
YueyangYuan/DKDR.

    teachers  v_1 ... v_S, the means of the last round's groups; before the first update w^t alone
    g1, g2    shares of sum_c |p_c(v) - p_c(w)|, p at temperature 1, on the head and on the tail, batch means;
              head: the teacher's first class, and each further one while they sum to at most mu
    L         CE + beta / S sum_s T^2 [g1 KL(s_T(v_s), s_T(w)) + g2 KL(s_T(w), s_T(v_s))]
    server    w^{t+1} = sum_k p_k w_k; groups: FINCH's first partition of rows w_k - w^t, each of length 1,
              then of rank max(1, floor(rank K_t)); v_s = a group's mean by n_k
    down      w^t and v_1 ... v_S                      4 P (1 + S) bytes a client, 4 P before the first update
    up        the trained model w_k and the count n_k  4 P bytes a client

Clients keep nothing. Readings: the released code's numbers, in which each client distils from all groups (the
abstract speaks of the client's own domain); rows hold parameters alone, as BatchNorm's counters would decide
their lengths; teachers are in eval mode; a sample without any difference counts half on either side, where
the released batch is NaN. beta = 0 is FedAvg. With fewer than ten clients the rank is 1, and cosines are 1 or
-1. FINCH: Sarfraz, Sharma, Stiefelhagen 2019, arXiv 1902.11266, eq. 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    ClientContext,
    Message,
    MethodOptions,
    Replies,
    Reply,
    ServerContext,
    weighted_mean,
)
from rayfed_kd.toolbox.averaging import SharedModel, Weighting, cohort_weights
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, train_batches, train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy, directed_divergence


class Options(MethodOptions):
    """DKDR's options; the defaults are those of the released code."""

    beta: float = Field(1.0, ge=0, description="weight of the distillation")
    temperature: float = Field(1.0, gt=0, description="T of both divergences")
    mu: float = Field(0.5, ge=0, le=1, description="probability of the teacher's head")
    rank: float = Field(0.2, gt=0, le=1, description="rank of the clients' changes, as a share of the cohort")
    weighting: Weighting = Field("samples", description="a client's weight in the means")


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        weights: [P], w^t.
        experts: [S, P], the groups' means; [0, P] before the first update.
    """

    weights: Tensor
    experts: Tensor


class DKDR(SharedModel[ServerState, None], plain_training=True):
    """Dynamic distillation from groups of clients."""

    options: Options
    summary = "local distillation from the means of groups of clients, in both directions of KL"
    paper = "DKDR, NeurIPS 2025"
    server_keeps = "the global model, the means of the last round's groups"
    down = {"student": "weights", "experts": "weights"}
    up = {"student": "weights"}

    def init_server(self, ctx: ServerContext) -> ServerState:
        """w^0, without groups."""
        initial = ctx.initial_vector()
        return ServerState(initial, initial.new_empty(0, len(initial)))

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        """Send w^t, and the groups' means where there are some and they are used."""
        if not (len(server.experts) and self.options.beta):
            return Message(student=server.weights)
        return Message(student=server.weights, experts=server.experts)

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train w^t on L; before the first update its only teacher is w^t itself."""
        student = ctx.model(message["student"])
        if self.options.beta:
            taught = message["experts"] if "experts" in message else message["student"].unsqueeze(0)
            teachers = {f"teacher {place}": ctx.frozen_model(vector) for place, vector in enumerate(taught)}
            train_batches({"student": student, **teachers}, self.loss, ctx)
        else:
            train_on_labels(student, ctx)
        return None, Reply(student=student.vector(), samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L."""
        logits = models["student"](batch["images"])
        hard = cross_entropy(logits, batch["labels"], extras)
        with torch.no_grad():
            taught = [model(batch["images"]) for name, model in models.items() if name != "student"]
        soft = torch.stack([self.distillation(target, logits) for target in taught]).mean()
        return Loss(hard + self.options.beta * soft, {"ce": hard, "kd": soft})

    def distillation(self, taught: Tensor, logits: Tensor) -> Tensor:
        """T^2 [g1 KL(teacher, student) + g2 KL(student, teacher)], mean over the batch.

        Args:
            taught, logits: [batch, C], teacher's and student's; gradient reaches the student's.
        """
        head = head_share(taught.softmax(1), logits.detach().softmax(1), self.options.mu)
        temperature = self.options.temperature
        forward = directed_divergence(taught, logits, temperature, "teacher_student")
        reverse = directed_divergence(taught, logits, temperature, "student_teacher")
        return temperature**2 * (head * forward + (1 - head) * reverse)

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Average all models, and those of each group of clients that changed w^t alike."""
        weights = cohort_weights(replies, self.options.weighting)
        trained = torch.stack(list(replies.vectors("student")))
        parameters = ctx.frozen_model(server.weights).num_parameters
        starts = [
            torch.tensor(reply.sent.resolve()["student"])
            if reply.staleness and reply.sent
            else server.weights
            for reply in replies
        ]
        groups = finch((trained - torch.stack(starts))[:, :parameters], self.options.rank)
        experts = []
        for group in range(int(groups.max()) + 1):
            members = (groups == group).nonzero().flatten().tolist()
            counts = [weights[member] for member in members]
            # Members without samples have all trained nothing.
            counts = counts if any(counts) else [1.0] * len(counts)
            experts.append(weighted_mean([trained[member] for member in members], counts))
        ctx.log(groups=float(len(experts)))
        mean = replies.aggregated("student", weights, server.weights)
        return ServerState(mean, torch.stack(experts).to(server.weights.dtype))


def head_share(teacher: Tensor, student: Tensor, mu: float) -> Tensor:
    """g1: the share of the differences of probabilities that lies on the teacher's head, mean over the batch.

    Args:
        teacher, student: [batch, C] probabilities.
        mu: the head is the teacher's first class, and each further one while their sum is at most mu.
    Returns: scalar; g2 is 1 less it. A sample without any difference counts 1 / 2.
    """
    ordered, places = teacher.sort(dim=1, descending=True, stable=True)
    first = torch.arange(teacher.shape[1], device=teacher.device) == 0
    # Sums of the first classes as a product: `cumsum` has no deterministic kernel on a GPU.
    sums = ordered @ ordered.new_ones(teacher.shape[1], teacher.shape[1]).triu()
    head = first | (sums <= mu)
    errors = (ordered - student.gather(1, places)).abs()
    total = errors.sum(1)
    shares = (errors * head).sum(1) / total.clamp(min=torch.finfo(total.dtype).tiny)
    return torch.where(total > 0, shares, 0.5).mean()


def finch(rows: Tensor, rank: float) -> Tensor:
    """FINCH's first partition of rows: each is linked with the row of the largest cosine to it.

    Args:
        rows: [K, n], float.
        rank: rows, each divided by its length, are of rank max(1, floor(rank K)) before they are compared.
    Returns: [K] int64, the number of each row's group, from 0 in the order of their first rows. No row is
        alone in its group, unless it is the only one.
    """
    count = len(rows)
    lengths = rows.to(torch.float64).norm(dim=1, keepdim=True)
    scaled = rows.to(torch.float64) / lengths.clamp(min=torch.finfo(torch.float64).tiny)
    left, values, _ = torch.linalg.svd(scaled, full_matrices=False)
    # The rows' products need no right vectors: (U S V) (U S V)' = (U S) (U S)'.
    dimension = max(1, int(rank * count + 1e-9))
    short = left[:, :dimension] * values[:dimension]
    short = short / short.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    cosines = (short @ short.T).fill_diagonal_(-torch.inf)
    groups = list(range(count))
    for row, nearest in enumerate(cosines.argmax(1).tolist() if count > 1 else []):
        first, other = sorted((groups[row], groups[nearest]))
        groups = [first if group == other else group for group in groups]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return torch.tensor([numbers[group] for group in groups])
