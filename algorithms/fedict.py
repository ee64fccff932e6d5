"""FedICT: FedGKT whose two sides know how often each client sees each class.

Wu et al. 2024, "FedICT: Federated Multi-task Distillation for Multi-access Edge Computing", arXiv 2301.00389.
d^k are the shares of the classes among client k's samples, d^S those among all clients'.

    client  CE + beta KD(z_s, z_k) + lambda FPKD     KD = T^2 KL(s_T(teacher), s_T(own))
            FPKD = T^2 sum_c w_c q_c log(q_c / p_c),  q = s_T(z_s), p = s_T(z_k), w = softmax(d^k / T_w)
    server  CE + beta KD(z_k, z_s) + mu LKA, on each client's samples
            sim      LKA = cos(d^S, d^k) KD(z_k, z_s)
            balance  LKA = FPKD with q = s_T(z_k), p = s_T(z_s), w = softmax((d^S - d^k) / U)
    up      features, logits, once labels            as FedGKT
            once counts, n_k d^k                     4 C bytes a client
    down    z_s                                      4 n_k C bytes a client

The exchange is in toolbox/server_models/split_learning.py; FedD2S reports the clients' models (`personal`).

Readings: d^S is of the clients that have taken part so far. `weights: raw` are the released code's d^k / T_w
and (d^S - d^k) / U, with T_w 3 and U 7; those of U sum to 0, hence softmax instead, of d itself (T_w = U = 1)
unless told otherwise. The code weighs both of a side's terms by one alpha of 1.5, hence beta = lambda = mu =
1.5, though at its server alpha is CE's weight. It also hands softened values to a KL that softens again, so
that its KD is all but 0: not followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import ClientContext
from rayfed_kd.toolbox.local_training import Tensors
from rayfed_kd.toolbox.losses import distillation, weighted_distillation
from rayfed_kd.toolbox.server_models.split_learning import KnowledgeTransfer, Term, Terms, TransferOptions


class Options(TransferOptions):
    """FedICT's options; E of the recipe's `local` are the client's epochs."""

    beta: float = Field(1.5, ge=0, description="weight of the other side's logits, on both sides")
    lambda_fpkd: float = Field(1.5, ge=0, description="weight of FPKD at the clients, lambda")
    mu_lka: float = Field(1.5, ge=0, description="weight of LKA at the server, mu")
    lka: Literal["sim", "balance"] = Field("sim", description="KD times a cosine, or with classes weighed")
    weights: Literal["softmax", "raw"] = Field("softmax", description="class weights, or the code's own")
    fpkd_t: float = Field(1.0, gt=0, description="what d^k is divided by in FPKD's class weights, T_w")
    lka_u: float = Field(1.0, gt=0, description="what d^S - d^k is divided by in LKA's class weights, U")
    server_epochs: int = Field(1, ge=1, description="passes over the round's samples at the server")


class FedICT(KnowledgeTransfer):
    """Federated multi-task distillation."""

    options: Options
    summary = "FedGKT with distillation that weighs classes, or clients, by how often they see which class"
    paper = "Wu et al. 2024, arXiv 2301.00389"
    group_training = "all local training"
    up = {**KnowledgeTransfer.up, "counts": "counts"}

    def introduction(self, ctx: ClientContext) -> Mapping[str, Tensor]:
        """The label counts n_k d^k, [C], which go up once."""
        return {"counts": ctx.label_counts()}

    def client_extras(self, ctx: ClientContext) -> Tensors:
        """d^k, [C] float64: what differs between clients reaches a batched loss as a tensor."""
        return {"shares": shares(ctx.label_counts())}

    def client_terms(self, extras: Tensors) -> Terms:
        """beta KD and lambda FPKD, with classes weighed by d^k / T_w."""
        fpkd = self._weighted(extras["shares"] / self.options.fpkd_t)
        return {"kd": (self.options.beta, self._kd), "fpkd": (self.options.lambda_fpkd, fpkd)}

    def server_terms(self, client: int, introductions: Mapping[int, Mapping[str, Tensor]]) -> Terms:
        """beta KD and mu LKA, with d^S of all clients in `introductions` and d^k of this one."""
        everyone = shares(torch.stack([introductions[k]["counts"] for k in sorted(introductions)]).sum(dim=0))
        client_shares = shares(introductions[client]["counts"])
        lka = self._scaled(float(F.cosine_similarity(everyone, client_shares, dim=0)))
        if self.options.lka == "balance":
            lka = self._weighted((everyone - client_shares) / self.options.lka_u)
        return {"kd": (self.options.beta, self._kd), "lka": (self.options.mu_lka, lka)}

    def _kd(self, teacher: Tensor, student: Tensor) -> Tensor:
        return distillation(teacher, student, self.options.temperature)

    def _scaled(self, factor: float) -> Term:
        return lambda teacher, student: factor * self._kd(teacher, student)

    def _weighted(self, scores: Tensor) -> Term:
        """KD with classes weighed by `scores`, [C], or by their softmax."""
        weights = scores.softmax(dim=0) if self.options.weights == "softmax" else scores
        return lambda teacher, student: weighted_distillation(
            teacher, student, weights.to(student), self.options.temperature
        )


def shares(counts: Tensor) -> Tensor:
    """d: [C] float64 of counts, summing to 1."""
    exact = counts.to(torch.float64)
    return exact / exact.sum()
