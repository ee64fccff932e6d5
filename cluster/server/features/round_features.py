"""The features that a recipe asks for, at the server: sums of replies, an attack, privacy.

Under `local.sum_replies` hosts send sums.

An attack replaces attackers' replies on the server's side, where all replies of an exchange are together.
An attacker's client trains honestly. Its reply is replaced before the method sees it, and the ledger counts
the honest reply's bytes. Observations for `Method.shown` get honest replies.

With `privacy` the clip goes down, releases are counted, and the server's rule adds its noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rayfed_kd.cluster.engine.calls import StepCall, StepFacts, StepResult
from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.features import RoundFeature
from rayfed_kd.cluster.server.replies import ReceivedParts, ReceivedReply
from rayfed_kd.features.privacy.account import PrivacyAccount
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.protocol import Array, Handle, Method, Replies, to_array
from rayfed_kd.protocol.declaration import means_suffice
from rayfed_kd.protocol.summed import GroupSum, SummedReply
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.setting.attacks import attacked_parts, attackers, poisoned
from rayfed_kd.setting.setting import Setting


class SummedReplies(RoundFeature):
    """The server's side of `local.sum_replies`."""

    def incoming(self, reply: ReceivedReply, result: StepResult) -> ReceivedReply:
        """The reply, whose parts are in its group's sums."""
        assert isinstance(result.parts, GroupSum)
        assert result.facts.weights is not None
        reply.in_sum, reply.handle = SummedReply(result.parts, result.facts.weights), None
        return reply


Publish = Callable[[Mapping[str, Array]], Handle]


class Poisoning(RoundFeature):
    """A run's model poisoning attack.

    Args:
        recipe: the run's recipe; its `attack` is not None.
        method: the method whose replies are poisoned.
        publish: makes arrays readable by every host.
    """

    def __init__(self, recipe: Recipe, method: Method[Any, Any], publish: Publish) -> None:
        assert recipe.attack is not None
        self._attack, self._seed, self._publish = recipe.attack, recipe.seed, publish
        self._liars = attackers(recipe.attack, recipe.partition.clients, recipe.seed)
        self._parts = attacked_parts(recipe.attack, method.up, recipe.method.name)

    def replies(self, replies: Sequence[ReceivedReply]) -> list[ReceivedReply]:
        """The replies of an exchange, with the attackers' replies replaced."""
        changed: dict[int, dict[str, Array]] = {}
        for part in self._parts:
            subset = Replies([reply for reply in replies if part in reply.parts])
            for client, payload in self._poisoned(subset.clients, subset.vectors(part)).items():
                changed.setdefault(client, {})[part] = to_array(payload)
        return [self._replaced(reply, changed.get(reply.client)) for reply in replies]

    def answers(self, part: str, clients: Sequence[int], rows: Tensor) -> Tensor:
        """Replace the attackers' answers to a question.

        Args:
            part: name of the answers' part; parts that are not attacked stay.
            clients: K ids, one for each row of `rows`.
            rows: [K, n, ...] answers.
        Returns: [K, n, ...].
        """
        # Attacks act on every coordinate alone, so poisoning some rows equals rows of a poisoned whole.
        if part not in self._parts:
            return rows
        payloads = self._poisoned(clients, list(rows))
        return torch.stack([payloads.get(client, row) for client, row in zip(clients, rows, strict=True)])

    def _poisoned(self, clients: Sequence[int], sent: Sequence[Tensor]) -> dict[int, Tensor]:
        return poisoned(self._attack, self._liars, clients, sent, self._seed)

    def _replaced(self, reply: ReceivedReply, changed: Mapping[str, Array] | None) -> ReceivedReply:
        if changed is None:
            return reply
        assert reply.handle is not None
        # Published again: a method may pass on the reply by reference, and must pass on the poisoned one.
        parts = ReceivedParts(self._publish({**reply.handle.resolve(), **changed}), list(reply.parts))
        # Shallow: client, metadata, staleness and the message that it answers are the honest reply's.
        poisoned_reply = copy(reply)
        poisoned_reply.parts = poisoned_reply.handle = parts
        return poisoned_reply


class Privacy(PrivacyAccount, RoundFeature):
    """The server's side of `privacy`: what the account does, and what passes between server and clients."""

    def outgoing(self, call: StepCall) -> StepCall:
        """The call with the round's clip, if there is one."""
        return call if self.clip is None else replace(call, notes={"clip": self.clip})

    def arrived(self, client: int, facts: StepFacts) -> None:
        """Count a reply's releases."""
        self.note(client, int(facts.notes["releases"]), facts.notes.get("within_clip"))


def features_of(
    setting: Setting, engine: Engine, module_pool: ModulePool, spent: Mapping[str, Any] | None
) -> tuple[RoundFeature, ...]:
    """A recipe's features, in the order in which they are applied; a plain recipe has none.

    Args:
        setting: of the run.
        engine: publishes the replies of attackers.
        module_pool: of all architectures.
        spent: what `PrivacyAccount.stored` gave at the checkpoint that the run continues from; None: nothing.
    """
    recipe, features = setting.recipe, list[RoundFeature]()
    if recipe.local.sum_replies != "off":
        features.append(SummedReplies())
    if recipe.attack is not None:
        features.append(Poisoning(recipe, setting.method, engine.publish))
    if recipe.privacy is not None:
        privacy = Privacy(recipe, means_suffice(setting.method.up), module_pool, setting.builders)
        if spent is not None:
            privacy.restore(spent)
        features.append(privacy)
    return tuple(features)
