"""FedCache: the server keeps the latest logits of every sample, and each is taught by those nearest to it.

Wu, Sun, Wang, Liu, Xu, Wang, Jiang 2024, FedCache: A Knowledge Cache-driven Federated Learning Architecture
for Personalized Edge Intelligence, IEEE TMC, arXiv 2308.07816; released code of the same name.

    once      h_i = e(x_i), by a public encoder e, and y_i of each own sample       4 n_k (d + 1) bytes up
    server    N(i): the R samples nearest to h_i by cosine, of label y_i, of any client, without i itself
              t_i = mean of cache[j] over j in N(i)
    down      t_i of each sample of the client                                      4 n_k C bytes
    client    z_i: its model's logits in training. Per batch CE(z_i, y_i) + alpha T^2 KL(s_T(t_i), s_T(z_i))
    up        z_i as training last met the sample                                   4 n_k C bytes
    server    cache[i] <- z_i

A client keeps its model, of any architecture. There are no weights for staleness: a late reply's logits are
newer than the cache's all the same, under every schedule. Readings: h_i and y_i come with a client's first
reply, before which it trains on labels alone; a sample without a neighbour that has logits has no term;
where that is so, or training did not meet all samples, the rows of the others travel with their places. The
encoder is a classifier's features: with a file of weights as published, else random, and equal for all.
alpha = 0: Stand-Alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    RECIPE_MODEL,
    Architecture,
    ClientContext,
    Cohort,
    Message,
    MethodOptions,
    OneExchange,
    Package,
    Replies,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.by_class.means import sample_features
from rayfed_kd.toolbox.layers import feature_length
from rayfed_kd.toolbox.local_training import label_options
from rayfed_kd.toolbox.losses import cross_entropy, distillation
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.own_models import OwnModels

ENCODER = "encoder"


class Encoder(BaseModel):
    """The public encoder: a registered classifier and its options; its features are the hashes."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field(description="a registered classifier or package.module:Object")

    def architecture(self) -> Architecture:
        """What contexts make as "encoder"."""
        return Architecture("classifier", self.name, dict(self.model_extra or {}))


class Options(MethodOptions):
    """FedCache's options; the defaults are those of the released code."""

    neighbours: int = Field(16, ge=1, description="R")
    temperature: float = Field(3.0, gt=0, description="T; the term is times T^2")
    alpha: float = Field(1.5, ge=0, description="weight of the distillation term")
    encoder: Encoder | None = Field(
        None, description="of hashes; null: the recipe's model, in values of its own"
    )


@dataclass(frozen=True)
class Cached:
    """What the server has of a client: hashes [n, d], of length 1; labels [n]; logits [n, C] if known [n]."""

    hashes: Tensor
    labels: Tensor
    logits: Tensor
    known: Tensor


Cache = Mapping[int, Cached]


class FedCache(OwnModels, OneExchange[Cache, Tensor]):
    """A knowledge cache: the server's state is what it has of each client, a client's is its model."""

    options: Options
    summary = "each sample is taught by the latest logits of the samples nearest to it, of any client"
    paper = "Wu et al. 2024, arXiv 2308.07816"
    label_options = True
    server_keeps = "hashes, labels and the latest logits of all samples"
    down = {"teachers": "logits", "places": "ids"}
    up = {
        "logits": Unaligned("logits"),
        "places": Unaligned("ids"),
        "hashes": Unaligned("features"),
        "labels": Unaligned("labels"),
    }
    heterogeneous = True

    def architectures(self) -> Mapping[str, Architecture]:
        """The public encoder, which all have."""
        recipe_model = Architecture("classifier", RECIPE_MODEL, {})
        return {ENCODER: self.options.encoder.architecture() if self.options.encoder else recipe_model}

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError unless the encoder has features."""
        feature_length(ctx.frozen_model(ctx.initial_vector(ENCODER), ENCODER), ctx)

    def init_server(self, ctx: ServerContext) -> Cache:
        """An empty cache."""
        return {}

    def run_round(self, server: Cache, cohort: Cohort, ctx: ServerContext) -> Cache:
        """Send every client its own message, also those that a schedule without rounds asks later."""
        message_of = partial(self.dispatch_to, server, ctx=ctx)
        replies = cohort.scatter(self.client_update, {k: message_of(k) for k in cohort.clients}, message_of)
        return self.absorb(server, replies, ctx)

    def dispatch_to(self, server: Cache, client: int, ctx: ServerContext) -> Message:
        """t_i of the client's samples; none before its hashes are known, or where nothing is distilled."""
        # The client keeps no flag for it: its first reply may have come too late to be used.
        known = client in server
        if not known or not self.options.alpha:
            return Message(known=int(known))
        return Message(known=1, **taken("teachers", *taught(server, client, self.options.neighbours)))

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Train on CE and the distillation term; send the logits, and at first hashes and labels."""
        student, options, extras = ctx.model(client), self.options, label_options(ctx)
        optimizer = Optimizer(ctx.local.optimizer, student)
        blank = torch.zeros(ctx.num_samples, ctx.classes, device=ctx.device)
        teachers, is_taught = placed(message, "teachers", blank)
        logits, met = torch.zeros_like(blank), torch.zeros_like(is_taught)
        for drawn in ctx.local_batches():
            images, labels = ctx.read(drawn)
            z, mask = student(images), is_taught[drawn.numbers]
            loss = cross_entropy(z, labels, extras)
            ctx.log(ce=loss)
            if mask.any():
                # The mean is over the batch, of which the others have no term.
                kd = (
                    distillation(teachers[drawn.numbers][mask], z[mask], options.temperature)
                    * mask.float().mean()
                )
                ctx.log(kd=kd)
                loss = loss + options.alpha * kd
            optimizer.minimise(loss)
            logits[drawn.numbers], met[drawn.numbers] = z.detach().float(), True
        once = {} if message["known"] else self.introduction(ctx)
        return student.vector(), Reply(**taken("logits", logits, met), **once)

    def introduction(self, ctx: ClientContext) -> Mapping[str, Tensor]:
        """Hashes, [n_k, d], and labels, [n_k], of the client's samples in its own order."""
        hashes, labels = sample_features(ctx.frozen_model(ctx.initial_vector(ENCODER), ENCODER), ctx)
        return {"hashes": hashes, "labels": labels.int()}

    def absorb(self, server: Cache, replies: Replies, ctx: ServerContext) -> Cache:
        """cache[i] <- z_i, reply by reply in the order of arrival."""
        cache = dict(server)
        for place in replies.arrival:
            reply = replies[place]
            if reply.client not in cache:
                hashes, labels = F.normalize(reply["hashes"], dim=1), reply["labels"].long()
                nothing = torch.zeros(len(labels), ctx.classes), torch.zeros(len(labels), dtype=torch.bool)
                cache[reply.client] = Cached(hashes, labels, *nothing)
            before = cache[reply.client]
            logits, met = placed(reply, "logits", before.logits)
            cache[reply.client] = Cached(before.hashes, before.labels, logits, before.known | met)
        return cache


def taught(cache: Cache, client: int, most: int) -> tuple[Tensor, Tensor]:
    """t_i of a client's samples, [n, C], and whether there is any, [n]; N(i) has `most` samples, or fewer."""
    entry, clients = cache[client], sorted(cache)
    hashes, labels, logits, known = (
        torch.cat([getattr(cache[k], name) for k in clients])
        for name in ("hashes", "labels", "logits", "known")
    )
    places = torch.arange(len(entry.labels))
    itself = places + sum(len(cache[k].labels) for k in clients if k < client)
    fits = (entry.labels[:, None] == labels) & known
    fits[places, itself] = False
    nearness = (entry.hashes @ hashes.T).masked_fill(~fits, -torch.inf)
    values, nearest = nearness.topk(min(most, len(labels)))
    fit = values > -torch.inf
    count = fit.sum(1, keepdim=True)
    return (logits[nearest] * fit[:, :, None]).sum(1) / count.clamp(min=1), count[:, 0] > 0


def taken(name: str, rows: Tensor, present: Tensor) -> dict[str, Tensor]:
    """The part with the rows that there are, [m, C], and their places, [m], if some are missing."""
    if present.all():
        return {name: rows}
    return {name: rows[present], "places": present.nonzero()[:, 0].int()}


def placed(package: Package, name: str, rows: Tensor) -> tuple[Tensor, Tensor]:
    """`rows`, [n, C], with those of a part in their places, and which these are, [n]."""
    present = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    if name not in package:
        return rows, present
    places = package["places"].long() if "places" in package else torch.arange(len(rows), device=rows.device)
    return rows.index_copy(0, places, package[name]), present.index_fill(0, places, True)
