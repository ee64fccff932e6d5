"""The host: it runs clients' steps, in the calling process or inside an actor.

A host has modules (built once, reused), the memory-mapped data set, and the latest states of a given number
of clients. No result depends on which host computes it. One on a GPU measures what each step takes of it.
"""

from __future__ import annotations

import platform
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import psutil
import torch
from torch import Tensor

from rayfed_kd.cluster.engine.calls import KeptState, LiveState, StepCall, StepError, StepFacts
from rayfed_kd.cluster.engine.device import check_precision, placed_data, tf32_products
from rayfed_kd.cluster.engine.evaluating import ModelEvaluation
from rayfed_kd.cluster.engine.exchanged import LastMessage, checked_outcome, non_finite_parts, one_line
from rayfed_kd.cluster.engine.gpu_use import GpuWatch
from rayfed_kd.data.transfers import Transfers
from rayfed_kd.protocol import Array, ClientContext, ClientData, DispatchFacts, Handle, Message, to_array
from rayfed_kd.protocol.crossing import check_package
from rayfed_kd.protocol.state_packing import check_storable, copied
from rayfed_kd.protocol.state_unpacking import unpack
from rayfed_kd.protocol.wire import UNCODED, OutgoingReply, Sending
from rayfed_kd.recipe.seeds import global_stream
from rayfed_kd.setting.setting import Setting

# What a method's code may raise: also what would end the process in which it runs. Ctrl-C is the user's.
CAUGHT = (Exception, SystemExit, GeneratorExit)
# A step's facts, its reply's parts and its client's state. Only the facts travel to the server at once.
HostResult = tuple[StepFacts, Mapping[str, Array], LiveState]


class Host:
    """Runs steps and evaluations of one setting on one device.

    Args:
        setting: method, data, partition.
        host: this host's number, from 0, for the tables; no result depends on it.
        device: where it computes.
        keep_states: number of clients whose latest states it keeps, so that these need not travel.
        node: the machine's name for the tables; None: as the machine calls itself.
        gpu_share: the part of a GPU's memory that it may take.
        interrupts: whether Ctrl-C may come in a step, and so is the user's; elsewhere it is the method's.
    Attributes:
        setting: as given.
        module_pool: its modules.
        evaluating: evaluates models on its data.
        caught: what an error in a method may be.
    Raises: RecipeError if the device cannot compute in the recipe's `local.precision`, or if data and models
        do not fit into the device's memory.
    """

    def __init__(
        self,
        setting: Setting,
        host: int = 0,
        device: torch.device | str = "cpu",
        keep_states: int = 1,
        node: str | None = None,
        *,
        gpu_share: float = 1.0,
        interrupts: bool = True,
    ) -> None:
        self.caught: tuple[type[BaseException], ...] = CAUGHT if interrupts else (*CAUGHT, KeyboardInterrupt)
        self.setting, self._host, self._device = setting, host, torch.device(device)
        precision = setting.recipe.local.precision
        check_precision(precision, self._device)
        self._products = tf32_products if precision == "tf32" else nullcontext
        self._data = placed_data(setting, self._device, gpu_share)
        self.module_pool = setting.module_pool(device)
        self._up = setting.wires["up"]
        self._features = setting.reply_features(self.module_pool)
        # Client -> number of the dispatch that made its state, and the state; the least recent goes first.
        self._kept: OrderedDict[int, tuple[int, Any]] = OrderedDict()
        self._keep_states = keep_states
        self._messages = LastMessage(setting.wires["down"], self._device)
        self.evaluating = ModelEvaluation(setting, self.module_pool, self._data)
        self._process, self._node = psutil.Process(), node or platform.node()

    def step(self, call: StepCall) -> HostResult:
        """Run a client's step: from the message's wire form to that of the reply.

        Returns: the step's facts, the reply's wire form, and the new state, not copied.
        Raises: StepError if the method raised or its state cannot be stored.
        """
        started = time.perf_counter()
        try:
            with self.surroundings(call):
                result = self.answer(call, self.context(call.facts))
        finally:
            self.module_pool.take_back()
        return self.measured([result], started)[0]

    def answer(self, call: StepCall, ctx: ClientContext) -> HostResult:
        """A client's step within its surroundings; the facts lack what only the whole step knows.

        Args:
            call: the step.
            ctx: the client's, whose modules the caller takes back.
        Raises: StepError if the method raised or its state cannot be stored.
        """
        try:
            opened = self._messages.opened(call.message)
            parts, message = opened.parts, Message(**opened.parts, **call.metadata)
            state, memory = self.kept_state(call.state, call.state_version, ctx)
            outcome = getattr(self.setting.method, call.step)(state, message, ctx)
            state, reply = checked_outcome(call, outcome)
            opened.check_unchanged()
            check_package(reply, self.setting.method.up, parts)
            check_storable(state)
            state = copied(state)
            outgoing = OutgoingReply({n: to_array(p).copy() for n, p in reply.parts.items()}, reply.metadata)
            # An observation is no traffic of the deployment: nothing is done to its reply.
            for feature in () if call.observing else self._features:
                outgoing = feature.outgoing(outgoing, parts, call.facts, call.notes)
        except self.caught as error:
            raise one_line(call, error) from error
        wire = UNCODED if call.observing else self._up
        received = partial(self._received, parts)
        sent = wire.encoded(outgoing.parts, Sending(("client", *call.facts.scope), received, memory))
        if both := ctx.logged().keys() & sent.logged:
            raise StepError(f"{call}: both the method and a codec log {min(both)}; expected another name")
        new_state = KeptState(state, sent.memory) if self._up.remembers else state
        facts = StepFacts(
            metadata=outgoing.metadata,
            sizes=sent.sizes,
            non_finite=non_finite_parts(outgoing.parts, sent.wire),
            logged=ctx.logged() | {name: (number, 1) for name, number in sent.logged.items()},
            samples=ctx.samples_drawn,
            host=self._host,
            node=self._node,
            keeps_state=new_state is not None,
            refused=sent.refused,
            notes=outgoing.notes,
        )
        return facts, sent.wire, self._keep(call, new_state)

    def measured(self, results: Sequence[HostResult], started: float) -> list[HostResult]:
        """The results of steps that ran together, with what they took.

        Args:
            results: one a step.
            started: second of `time.perf_counter` at which they began; each took an equal share since.
        """
        seconds = (time.perf_counter() - started) / len(results)
        rss_mb = self._process.memory_info().rss / 2**20
        return [
            (replace(facts, seconds=seconds, rss_mb=rss_mb), parts, state) for facts, parts, state in results
        ]

    @staticmethod
    def _received(parts: Mapping[str, Tensor], name: str) -> Array | None:
        """A part of the message as codecs see it: on the CPU, as the server decodes it."""
        return to_array(parts[name]) if name in parts else None

    @contextmanager
    def surroundings(self, call: StepCall) -> Iterator[None]:
        """What is global in torch, as a client's step needs it.

        What its modules draw from the global generators, as dropout does, is the client's own.
        """
        seed, scope = self.setting.recipe.seed, call.facts.scope
        with global_stream(seed, "step", call.step, *scope, device=self._device), self._products():
            yield

    def _keep(self, call: StepCall, state: Any) -> LiveState:
        """A client's new state; this host keeps it, too, unless the step was an observation."""
        # The state after an observation is discarded, so the client's kept state must stay.
        if not call.observing:
            self._kept[call.facts.client] = (call.number, state)
            self._kept.move_to_end(call.facts.client)
            while len(self._kept) > self._keep_states:
                self._kept.popitem(last=False)
        return LiveState(state)

    def context(self, facts: DispatchFacts) -> ClientContext:
        """What a client's step reads data and randomness from."""
        setting = self.setting
        indices = setting.partition.train[facts.client]
        local = setting.recipe.local.in_round(facts.round, setting.recipe.rounds)
        model = setting.models_by_client[facts.client]
        share = ClientData(indices, setting.recipe.data.augment, local, model)
        return ClientContext(self.module_pool, self._data, share, facts, setting.recipe.seed)

    def kept_state(self, handle: Handle | None, wanted: int, ctx: ClientContext) -> KeptState:
        """What the client keeps, of version `wanted`: initialised, kept on this host, or fetched."""
        if handle is None:
            with global_stream(self.setting.recipe.seed, "first state", ctx.client, device=self._device):
                first = self.setting.method.init_client(ctx)
            check_storable(first, "init_client: the state")
            return KeptState(copied(first), {})
        # Versions are compared, as the client may have run elsewhere since, or a lost host's step again.
        version, state = self._kept.get(ctx.client, (-1, None))
        # A copy, so that a step which changes its state in place has not changed the one that is kept.
        state = copied(state) if version == wanted else unpack(handle.resolve()["state"], self._device)
        return state if isinstance(state, KeptState) else KeptState(state, {})


def make_host(
    setting: Setting, host: int = 0, device: torch.device | str = "cpu", *rest: Any, **named: Any
) -> Host:
    """A host, which measures its device unless that is the CPU; arguments as those of `Host`."""
    kind = Host if torch.device(device).type == "cpu" else WatchedHost
    return kind(setting, host, device, *rest, **named)


class WatchedHost(Host):
    """A host whose steps' facts say what they took of its device; arguments as those of `Host`."""

    @cached_property
    def _watch(self) -> GpuWatch:
        return GpuWatch(self._device)

    @contextmanager
    def surroundings(self, call: StepCall) -> Iterator[None]:
        """See `Host.surroundings`; the watch begins here."""
        self._watch.begin()
        with super().surroundings(call):
            yield

    def measured(self, results: Sequence[HostResult], started: float) -> list[HostResult]:
        """See `Host.measured`. The first step's facts count the copies of all steps of the call."""
        use = self._watch.end()
        uses = [use, *[replace(use, transfers=Transfers())] * (len(results) - 1)]
        return [
            (replace(facts, gpu=gpu), parts, state)
            for (facts, parts, state), gpu in zip(super().measured(results, started), uses, strict=True)
        ]
