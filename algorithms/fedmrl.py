"""FedMRL: a shared small model and a client's own are trained as one, on a representation that both share.

Yi, Yu, Ren, Wang, Liu, Li 2024, Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS,
arXiv 2406.00488; released code LipingYi/FedMRL, also in HtFLlib.

    r_g, r_k  features of the small model, [K_g], and of the client's own, [K_k], K_k >= K_g
    r         W [r_g, r_k] + b, [K_k]: the projector
    L         CE(head_k(r)) + m CE(head_g(the first K_g numbers of r)), for both models and the projector
    predicts  head_k(r)
    server    the mean of the small models
    down      the small model                        4 P_g bytes a client
    up        the trained small model and n_k        4 P_g bytes a client

The recipe's `model` is the small one, and `client_models`, if there are any, are the clients' own. A client
keeps its own model, its projector, and the small model as it left it; it is evaluated with these. A client
that was not drawn yet has only initial values, of which the small model's are not the server's. Readings:
own models and projectors start from values of their own; the mean is by n_k, as officially (HtFLlib's is
`weighting: uniform`). With m = 0, W = (0 | I), b = 0 and a projector that stays a client trains alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    PERSONAL,
    RECIPE_MODEL,
    ClientContext,
    Evaluable,
    Evaluated,
    FlatModule,
    Message,
    Predictor,
    RecipeError,
    Reply,
    ServerContext,
    composite,
)
from rayfed_kd.toolbox.averaging import SharedSmall, SharedSmallOptions
from rayfed_kd.toolbox.layers import check_features, feature_length, linear_map
from rayfed_kd.toolbox.local_training import Loss, Models, Phase, Tensors, own_batches, train_phases
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer

SMALL, OWN, PROJECTOR = "small", "own", "projector"


class Options(SharedSmallOptions):
    """FedMRL's options; the defaults are those of the released code."""

    small_weight: float = Field(1.0, ge=0, description="m, of the small model's loss")


@dataclass(frozen=True)
class ClientState:
    """The own model, [P_k], the small one, [P_g], and the projector (W | b), [K_k, K_g + K_k + 1]."""

    own: Tensor
    small: Tensor
    projector: Tensor


class FedMRL(SharedSmall[ClientState], plain_training=True):
    """Matryoshka representation learning; the server's state is the small model."""

    options: Options
    summary = "a shared small model and a client's own, of any architecture, train on one representation"
    paper = "Yi et al. 2024, arXiv 2406.00488"
    server_keeps = "the small model"
    client_keeps = "its own model, its projector, the small model as it left it"
    small = SMALL
    down = {SMALL: "weights"}
    evaluates = ("personal",)

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError unless all models have features, no client's fewer than the small one's."""
        check_features(ctx)
        small = feature_length(ctx.frozen_model(ctx.initial_vector()), ctx)
        for name in ctx.client_architectures:
            length = feature_length(ctx.frozen_model(ctx.initial_vector(name), name), ctx)
            if length < small:
                raise RecipeError(
                    f"a client's model has {length} features; expected at least the {small} of `model`, the "
                    "small one, whose head takes the first of them",
                    path="client_models",
                )

    def init_client(self, ctx: ClientContext) -> ClientState:
        """A model and a projector of the client's own, the latter as torch draws linear layers."""
        vector, small = ctx.own_initial_vector(), ctx.initial_vector(SMALL)
        length = feature_length(ctx.frozen_model(vector), ctx)
        inputs = length + feature_length(ctx.frozen_model(small, SMALL), ctx)
        drawn = torch.rand(length, inputs + 1, generator=ctx.stream(PROJECTOR), device=ctx.device)
        return ClientState(vector, small, (2 * drawn - 1) / inputs**0.5)

    def client_update(
        self, client: ClientState, message: Message, ctx: ClientContext
    ) -> tuple[ClientState, Reply]:
        """Train both models and the projector; the small model is sent."""
        small, client_model = ctx.model(message["small"], SMALL), ctx.model(client.own)
        models = {SMALL: small, OWN: client_model, PROJECTOR: linear_map(client.projector)}
        optimizers = [Optimizer(ctx.local.optimizer, model) for model in models.values()]
        train_phases(models, [Phase(self.loss, optimizers)], own_batches(ctx), ctx)
        sent, projector = small.vector(), models[PROJECTOR].vector().view(client.projector.shape)
        return ClientState(client_model.vector(), sent, projector), Reply(small=sent, samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """CE(head_k(r)) + m CE(head_g(the first K_g numbers of r))."""
        of_small, of_own = (models[name].features(batch["images"]) for name in (SMALL, OWN))
        shared = models[PROJECTOR](joined(of_small, of_own))
        logits = models[OWN].classify(shared)
        parts = {"ce": cross_entropy(logits, batch["labels"], extras)}
        value = parts["ce"]
        if self.options.small_weight:
            logits = models[SMALL].classify(shared[:, : of_small.shape[1]])
            parts["small_ce"] = cross_entropy(logits, batch["labels"], extras)
            value = value + self.options.small_weight * parts["small_ce"]
        return Loss(value, parts)

    def evaluated(self, server: Tensor) -> Mapping[str, Evaluable]:
        """Every client's own model with what it keeps beside it."""
        return {"personal": PERSONAL}

    def personal(self, client: ClientState, ctx: ClientContext) -> Evaluated:
        """The client's own model and the small one, with the projector behind them."""
        vector = torch.cat([client.own, client.small, client.projector.flatten()])
        return Evaluated(vector, composite([RECIPE_MODEL, SMALL]))

    def composed(self, parts: Sequence[FlatModule], numbers: Tensor) -> Predictor:
        """head_k(r)."""
        client_model, small = parts

        def predict(images: Tensor) -> Tensor:
            features = joined(small.features(images), client_model.features(images))
            return client_model.classify(F.linear(features, numbers.view(-1, features.shape[1])))

        return predict


def joined(of_small: Tensor, of_own: Tensor) -> Tensor:
    """[batch, K_g + K_k + 1]: both models' features, and a 1 for the projector's biases."""
    return torch.cat([of_small, of_own, of_own.new_ones(len(of_own), 1)], 1)
