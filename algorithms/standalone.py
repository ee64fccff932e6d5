"""Stand-alone: every client trains its own model on its own samples, and nothing travels.

The reference without federation of FedGEMS (Cheng et al. 2021, arXiv 2110.11027, "Stand-Alone") and the
floor of personalised methods. A round is E local epochs of each client of the cohort; the optimiser starts
afresh in each, as everywhere. All clients start from the same initial model.
"""

from __future__ import annotations

from torch import Tensor

from rayfed_kd.protocol import ClientContext, Message, OneExchange, Replies, Reply, ServerContext
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.own_models import OwnModels


class StandAlone(OwnModels, OneExchange[None, Tensor], plain_training=True):
    """No exchange at all."""

    summary = "every client trains its own model alone; nothing travels"
    paper = "Cheng et al. 2021, arXiv 2110.11027 (Stand-Alone)"
    server_keeps = "nothing"
    heterogeneous = True

    def init_server(self, ctx: ServerContext) -> None:
        return None

    def dispatch(self, server: None, ctx: ServerContext) -> Message:
        """Send nothing: the message only starts the step."""
        return Message()

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Train the client's own model for E epochs; the reply is empty."""
        student = ctx.model(client)
        train_on_labels(student, ctx)
        return student.vector(), Reply()

    def absorb(self, server: None, replies: Replies, ctx: ServerContext) -> None:
        return None
