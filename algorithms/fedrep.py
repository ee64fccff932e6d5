"""FedRep: a shared representation and each client's own head, trained one after the other. And FedRep+.

Collins, Hassani, Mokhtari, Shakkottai 2021, arXiv 2102.07078, Algorithm 1.

    down  the representation phi, layers 1 to l         4 P_phi bytes a client
    up    the trained phi and the count n_k             4 P_phi bytes a client
    client: E_h epochs on its head, phi fixed; then E - E_h epochs on phi, the head fixed
    phi = sum over the cohort of n_k phi_k / sum of n_k

FedRep+ (Atapour et al. 2024, arXiv 2402.10846, section IV-A) starts with all layers shared and drops them
as toolbox/layers.py says. The exchange and its readings are in toolbox/own_models.py.
Readings: an optimiser each for head and representation, and what is fixed is in eval mode, so neither
decay, momentum nor running statistics move it; sample-weighted (the paper's clients have equal n_k); where
there is no head, all E epochs are the representation's. FedD2S gives E = 4 and no split: 3 and 1 here. (Its
own words, outputs of the representation "transmitted to the server and averaged", are not Collins'
algorithm.)
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import ClientContext, FlatModule, Method, MethodOptions, RecipeError, ServerContext
from rayfed_kd.toolbox.layers import DroppingOptions, Layers
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.own_models import DroppedLayers, PersonalLayers, PersonalOptions, Trained


class TurnOptions(MethodOptions):
    """How a client's epochs are divided."""

    head_epochs: int = Field(
        3, ge=0, description="of local.epochs, those on the head, E_h; the rest is the representation's"
    )


class TrainedInTurn(Trained, Method[Any, Tensor]):
    """A client's head and its representation, trained one after the other: of both methods."""

    whole_epochs = True

    def check(self, ctx: ServerContext) -> str | None:
        """Raise RecipeError if the layers that stay are not the last ones, or E_h is above E."""
        note = super().check(ctx)
        if self.options.head_epochs > (ctx.local.epochs or 0):
            fault = f"{self.options.head_epochs} is more than local.epochs = {ctx.local.epochs}"
            raise RecipeError(f"{fault}; lower it, or raise local.epochs", "method.head_epochs")
        return note

    def train(self, student: FlatModule, layers: Layers, shared: int, ctx: ClientContext) -> None:
        """E_h epochs on the head above layer `shared`, phi fixed; then E - E_h on phi, the head fixed."""
        # Without a head all E epochs are the representation's.
        turn = self.options.head_epochs if shared < len(layers) else 0
        phases = ((shared, len(layers), range(turn)), (0, shared, range(turn, ctx.passes)))
        steps = 0  # of the whole local training: what its learning rate goes by
        for first, last, epochs in phases:
            part = layers.parameters(first, last)
            if part.start < part.stop:
                layers.train_only(first, last, student)
                optimizer = Optimizer(ctx.local.optimizer, student, part=part)
                optimizer.steps = steps
                train_on_labels(student, ctx, epochs, optimizer)
                steps = optimizer.steps


class Options(PersonalOptions, TurnOptions):
    """FedRep's options."""


class FedRep(TrainedInTurn, PersonalLayers, plain_training=True):
    """A fixed border."""

    options: Options
    summary = "a shared representation, trained after the client's own head, one fixed while the other learns"
    paper = "Collins et al. 2021, arXiv 2102.07078"


class PlusOptions(DroppingOptions, TurnOptions):
    """FedRep+'s options."""


class FedRepPlus(TrainedInTurn, DroppedLayers, plain_training=True):
    """A border that falls, client by client; while all layers are shared, all epochs are phi's."""

    options: PlusOptions
    summary = "FedRep whose clients drop shared layers, the deepest first, as they take part"
    paper = "Atapour et al. 2024, arXiv 2402.10846, section IV-A"
