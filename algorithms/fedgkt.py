"""FedGKT: small models at the clients and a large one behind their features teach each other through logits.

He, Annavaram, Avestimehr 2020, "Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge",
arXiv 2007.14513, eq. 5, 6 and Algorithm 1. Client k: an extractor and a small classifier; the server: the
large rest of a network behind any of these extractors, here ResNet-56 without its stem behind ResNet-11's.

    client  CE + alpha T^2 KL(s_T(z_s), s_T(z_k))      E epochs; in its first round CE alone
    up      features H, z_k, once labels               4 n_k |H| + 4 n_k C + 8 n_k bytes a client
    server  CE + alpha T^2 KL(s_T(z_k), s_T(z_s))      epochs over the clients' samples, its optimiser kept
    down    z_s                                        4 n_k C bytes a client

The exchange is in toolbox/server_models/split_learning.py. A client predicts with its own small model
(`personal`), or with its extractor and the server's model behind it (`server`), as the paper and FedGEMS do.
The ledger counts all that travels, where FedGEMS' Table 4 counts the features going up and nothing else:
64 KiB for a sample's 16x32x32.

Readings: alpha weighs the KL on both sides (the released code has KL + alpha CE at the server); z_s comes
from the final model in eval mode, where that code sends what each batch gave in train mode before its own
step; samples, not batch numbers, are matched; Adam is without amsgrad; epochs and learning rates stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from rayfed_kd.toolbox.local_training import Tensors
from rayfed_kd.toolbox.losses import distillation
from rayfed_kd.toolbox.server_models.split_learning import KnowledgeTransfer, Terms, TransferOptions


class Options(TransferOptions):
    """FedGKT's options; E of the recipe's `local` are the client's epochs."""

    alpha: float = Field(1.0, ge=0, description="weight of the other side's logits, on both sides")


class FedGKT(KnowledgeTransfer):
    """Group knowledge transfer."""

    options: Options
    summary = "clients' features and logits train a large server model behind them; it sends logits back"
    paper = "He, Annavaram, Avestimehr 2020, arXiv 2007.14513"
    group_training = "all local training"

    def client_terms(self, extras: Tensors) -> Terms:
        """alpha T^2 KL(s_T(z_s), s_T(z_k)): the server's logits teach the client."""
        return self._terms()

    def server_terms(self, client: int, introductions: Mapping[int, Mapping[str, Tensor]]) -> Terms:
        """alpha T^2 KL(s_T(z_k), s_T(z_s)), the same for every client."""
        return self._terms()

    def _terms(self) -> Terms:
        t = self.options.temperature
        return {"kd": (self.options.alpha, lambda teacher, student: distillation(teacher, student, t))}
