"""The one class that does clients' work. It runs in the calling process or inside an actor.

A host owns modules (built once, reused), the mapped data set and, for as many clients as it is
told, their latest states. Nothing that it computes depends on which host it is.
"""

from __future__ import annotations

import platform
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from cluster.engine.calls import (
    EvaluationCall,
    EvaluationResult,
    PersonalCall,
    SharedPart,
    StepCall,
    StepError,
    StepFacts,
    decode_state,
    encode_state,
)
from rayfed_kd.batching.group_training import GroupTraining
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import (
    Array,
    ClientContext,
    ClientData,
    DispatchFacts,
    Evaluated,
    Handle,
    Message,
    Reply,
    to_array,
    to_tensor,
)
from rayfed_kd.setting.setting import Setting

EVALUATION_BATCH = 256
_Done = tuple[Any, Reply, dict[str, Array]]
_How = tuple[float, str | None, tuple[float, float]]  # seconds, why alone, MiB of the process and the GPU


class Host:
    """Runs steps and evaluations of one setting on one device.

    Args:
        setting: method, data, partition.
        host: this host's number, for the tables.
        device: what it computes on.
        keep_states: of how many clients it keeps the latest state, so that it need not travel.
    """

    def __init__(
        self, setting: Setting, host: int = 0, device: torch.device | str = "cpu", keep_states: int = 1
    ) -> None:
        self._setting, self._host, self._device = setting, host, torch.device(device)
        self._workshop = setting.workshop(device)
        self._data = setting.device_data(device)
        self._kept: OrderedDict[int, tuple[int, Any]] = OrderedDict()
        self._keep_states = keep_states
        self._message: tuple[Any, dict[str, Tensor]] = (None, {})
        self._pools: dict[str, Tensor] = {}
        self._groups = GroupTraining()
        self._process, self._node = psutil.Process(), platform.node()

    def step(self, call: StepCall) -> tuple[StepFacts, dict[str, Array], Any]:
        """Runs a client's step; gives its facts, the reply's parts and the new state, ready to travel."""
        started = time.perf_counter()
        ctx = self._context(call.facts)
        try:
            done = self._stepped(call, ctx)
        finally:
            self._workshop.take_back()
        return self._packed(call, ctx, done, (time.perf_counter() - started, None, self._memory()))

    def steps(self, calls: Sequence[StepCall]) -> tuple[list[StepFacts], list[dict[str, Array]], list[Any]]:
        """Runs a group of clients' steps, their local epochs together; the same of each, in order."""
        started = time.perf_counter()
        contexts = [self._context(call.facts) for call in calls]
        steps = [(ctx, partial(self._stepped, call, ctx)) for call, ctx in zip(calls, contexts, strict=True)]
        try:
            outcomes = self._groups.run(steps, getattr(self._setting.method, calls[0].step))
        finally:
            self._workshop.take_back()
        seconds, memory = (time.perf_counter() - started) / len(calls), self._memory()
        packed = [
            self._packed(call, ctx, outcome.value, (seconds, outcome.alone, memory))
            for call, ctx, outcome in zip(calls, contexts, outcomes, strict=True)
        ]
        facts, parts, states = zip(*packed, strict=True)
        return list(facts), list(parts), list(states)

    def _stepped(self, call: StepCall, ctx: ClientContext) -> _Done:
        try:
            message = Message.of(self._parts(call), call.metadata)
            state = self._state(call.state, call.state_version, ctx)
            state, reply = getattr(self._setting.method, call.step)(state, message, ctx)
            if not isinstance(reply, Reply):
                raise TypeError(f"{call.step} returned a {type(reply).__name__}, expected (state, Reply)")
            return state, reply, {name: to_array(part) for name, part in reply.parts.items()}
        except Exception as error:
            raise StepError(f"{call} failed:\n{traceback.format_exc()}") from error

    def _packed(
        self, call: StepCall, ctx: ClientContext, done: _Done, how: _How
    ) -> tuple[StepFacts, dict[str, Array], Any]:
        state, reply, arrays = done
        if not call.observing:
            self._keep(call, state)
        facts = self._facts(ctx, reply, arrays, how, keeps_state=state is not None)
        return facts, arrays, {"state": encode_state(state)}

    def evaluate(self, call: EvaluationCall) -> EvaluationResult:
        """Counts right predictions of a shared model, sample by sample."""
        vector = to_tensor(call.vectors.resolve()[call.model], self._device)
        indices = self._pool(call.split)[call.start : call.stop]
        return self._tested(self._frozen(Evaluated(vector, call.architecture)), call.split, indices)

    def personal(self, call: PersonalCall) -> Evaluated:
        """A client's own model, from its state."""
        state, asked = self._asked(call)
        model = self._setting.method.personal(state, asked)
        found = model if isinstance(model, Evaluated) else Evaluated(model, "model")
        return replace(found, architecture=asked.architecture(found.architecture))

    def evaluate_personal(self, call: PersonalCall) -> int:
        """Counts right predictions of a client's own model."""
        if call.split == "official":
            indices = self._pool(call.split)
        else:
            indices = torch.from_numpy(self._setting.partition.test[call.client]).to(self._device)
        try:
            if call.part is None:
                model: Callable[[Tensor], Tensor] = self._frozen(self.personal(call))
            else:
                model = self._completed(call, call.part)
            return int(self._tested(model, call.split, indices).correct.sum())
        except Exception as error:
            raise StepError(f"{call} failed:\n{traceback.format_exc()}") from error
        finally:
            self._workshop.take_back()

    def _asked(self, call: PersonalCall) -> tuple[Any, ClientContext]:
        """A client's state, and the context in which its method is asked about it."""
        # Participations count from 1, so this shares no random stream with a client's steps. A state
        # that is not there yet is made as the client's first step will make it.
        asked, first = (self._context(DispatchFacts(call.client, 0, time)) for time in (0, 1))
        return self._state(call.state, call.state_version, first), asked

    def _completed(self, call: PersonalCall, part: SharedPart) -> Callable[[Tensor], Tensor]:
        """A client's first layers with the server's part behind them."""
        state, asked = self._asked(call)
        vector = to_tensor(part.vectors.resolve()[part.name], self._device)
        frozen = self._frozen(Evaluated(vector, part.architecture))
        return self._setting.method.completed(state, frozen, asked)

    def _frozen(self, evaluated: Evaluated) -> FlatModule:
        return self._workshop.lend(evaluated.architecture, evaluated.vector).freeze()

    def _tested(self, model: Callable[[Tensor], Tensor], split: str, indices: Tensor) -> EvaluationResult:
        correct, loss_sum = [], torch.zeros((), dtype=torch.float64, device=self._device)
        try:
            with torch.inference_mode():
                for chosen in torch.split(indices, EVALUATION_BATCH):
                    images, labels = self._data.gather(chosen, "train" if split == "local" else "test")
                    logits = model(self._data.normalise(images))
                    correct.append(logits.argmax(dim=1) == labels)
                    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
                    loss_sum += losses.to(torch.float64).sum()
        finally:
            self._workshop.take_back()
        return EvaluationResult(to_array(torch.cat(correct)), float(loss_sum))

    def _context(self, facts: DispatchFacts) -> ClientContext:
        setting = self._setting
        indices = setting.partition.train[facts.client]
        model = setting.model_of(facts.client)
        share = ClientData(indices, setting.recipe.data.augment, setting.recipe.local, model)
        return ClientContext(self._workshop, self._data, share, facts, setting.recipe.seed)

    def _parts(self, call: StepCall) -> Mapping[str, Tensor]:
        """The message's parts; a broadcast is copied to the device once, not once a client."""
        if self._message[0] != call.message:
            arrays = call.message.resolve()
            self._message = (call.message, {n: to_tensor(a, self._device) for n, a in arrays.items()})
        return self._message[1]

    def _state(self, handle: Handle | None, wanted: int, ctx: ClientContext) -> Any:
        """The client's state of version `wanted`: made, kept here, or fetched."""
        if handle is None:
            return self._setting.method.init_client(ctx)
        version, state = self._kept.get(ctx.client, (-1, None))
        if version == wanted:
            return state
        return decode_state(handle.resolve()["state"], self._device)

    def _keep(self, call: StepCall, state: Any) -> None:
        self._kept[call.facts.client] = (call.number, state)
        self._kept.move_to_end(call.facts.client)
        while len(self._kept) > self._keep_states:
            self._kept.popitem(last=False)

    def _facts(
        self,
        ctx: ClientContext,
        reply: Reply,
        arrays: Mapping[str, Array],
        how: _How,
        *,
        keeps_state: bool,
    ) -> StepFacts:
        seconds, alone, memory = how
        return StepFacts(
            metadata=reply.metadata,
            shapes={name: (array.size, array.itemsize) for name, array in arrays.items()},
            non_finite=tuple(name for name, array in arrays.items() if not _finite(array)),
            logged=ctx.logged(),
            samples=ctx.samples_drawn,
            host=self._host,
            node=self._node,
            seconds=seconds,
            alone=alone,
            keeps_state=keeps_state,
            rss_mb=memory[0],
            gpu_mb=memory[1],
        )

    def _memory(self) -> tuple[float, float]:
        gpu = torch.cuda.memory_reserved(self._device) / 2**20 if self._device.type == "cuda" else 0.0
        return self._process.memory_info().rss / 2**20, gpu

    def _pool(self, split: str) -> Tensor:
        if split not in self._pools:
            if split == "local":
                pooled = np.concatenate(self._setting.partition.test)
            else:
                test = self._setting.dataset.test
                pooled = np.arange(0 if test is None else len(test.labels))
            self._pools[split] = torch.from_numpy(pooled).to(self._device)
        return self._pools[split]


def _finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
