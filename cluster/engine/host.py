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
    NO_STATE,
    EvaluationCall,
    EvaluationResult,
    PersonalCall,
    SharedPart,
    StepCall,
    StepError,
    StepFacts,
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
from rayfed_kd.protocol.codec import UnstorableError, pack, unpack
from rayfed_kd.protocol.message_codec import Wire
from rayfed_kd.setting.setting import Setting

EVALUATION_BATCH = 256
# A step's facts, its reply's parts and its client's state: the two larger ones stay where they are made.
HostResult = tuple[StepFacts, Mapping[str, Array], Mapping[str, Any]]
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
        self._module_pool = setting.module_pool(device)
        self._data = setting.device_data(device)
        self._down, self._up = setting.wire("down"), setting.wire("up")
        self._uncoded = Wire(setting.method.up, "up")
        self._kept: OrderedDict[int, tuple[int, Any]] = OrderedDict()
        self._keep_states = keep_states
        self._message: tuple[Any, dict[str, Tensor]] = (None, {})
        self._pools: dict[str, Tensor] = {}
        self._groups = GroupTraining()
        self._process, self._node = psutil.Process(), platform.node()

    def step(self, call: StepCall) -> HostResult:
        """Runs a client's step; gives its facts, the reply's parts and the new state, ready to travel."""
        started = time.perf_counter()
        ctx = self._context(call.facts)
        try:
            done = self._run(call, ctx)
        finally:
            self._module_pool.take_back()
        return self._result(call, ctx, done, (time.perf_counter() - started, None, self._memory()))

    def steps(
        self, calls: Sequence[StepCall]
    ) -> tuple[list[StepFacts], list[Mapping[str, Array]], list[Mapping[str, Any]]]:
        """Runs a group of clients' steps, their local epochs together; the same of each, in order."""
        started = time.perf_counter()
        contexts = [self._context(call.facts) for call in calls]
        steps = [(ctx, partial(self._run, call, ctx)) for call, ctx in zip(calls, contexts, strict=True)]
        try:
            outcomes = self._groups.run(steps, getattr(self._setting.method, calls[0].step))
        finally:
            self._module_pool.take_back()
        seconds, memory = (time.perf_counter() - started) / len(calls), self._memory()
        results = [
            self._result(call, ctx, outcome.value, (seconds, outcome.alone, memory))
            for call, ctx, outcome in zip(calls, contexts, outcomes, strict=True)
        ]
        facts, parts, states = zip(*results, strict=True)
        return list(facts), list(parts), list(states)

    def _run(self, call: StepCall, ctx: ClientContext) -> _Done:
        """The method's step: from the message's and the state's wire form to the reply's arrays."""
        try:
            # A broadcast is copied to the device once, not once a client.
            if self._message[0] != call.message:
                arrays = call.message.resolve()
                if self._down.codec is not None:
                    arrays = self._down.decoded(arrays)
                self._message = (call.message, {n: to_tensor(a, self._device) for n, a in arrays.items()})
            message = Message.of(self._message[1], call.metadata)
            state = self._state(call.state, call.state_version, ctx)
            state, reply = getattr(self._setting.method, call.step)(state, message, ctx)
            if not isinstance(reply, Reply):
                raise TypeError(f"{call.step} returned a {type(reply).__name__}, expected (state, Reply)")
            return state, reply, {name: to_array(part) for name, part in reply.parts.items()}
        except Exception as error:
            raise StepError(f"{call} failed:\n{traceback.format_exc()}") from error

    def _result(self, call: StepCall, ctx: ClientContext, done: _Done, how: _How) -> HostResult:
        """A step's outcome as it travels: counted, encoded, and its state packed."""
        state, reply, arrays = done
        seconds, alone, (rss_mb, gpu_mb) = how
        # A look at clients is no traffic: its reply travels as it is.
        parts, sizes = (self._uncoded if call.observing else self._up).encoded(arrays)
        if state is None:
            packed = NO_STATE
        else:
            try:
                packed = {"state": pack(state)}
            except UnstorableError as error:
                raise StepError(f"{call} of {type(self._setting.method).__name__}: {error}") from None
        if not call.observing:
            self._kept[call.facts.client] = (call.number, state)
            self._kept.move_to_end(call.facts.client)
            while len(self._kept) > self._keep_states:
                self._kept.popitem(last=False)
        facts = StepFacts(
            metadata=reply.metadata,
            sizes=sizes,
            non_finite=_non_finite(arrays, parts),
            logged=ctx.logged(),
            samples=ctx.samples_drawn,
            host=self._host,
            node=self._node,
            seconds=seconds,
            alone=alone,
            keeps_state=state is not None,
            rss_mb=rss_mb,
            gpu_mb=gpu_mb,
        )
        return facts, parts, packed

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
            self._module_pool.take_back()

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
        return self._module_pool.lend(evaluated.architecture, evaluated.vector).freeze()

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
            self._module_pool.take_back()
        return EvaluationResult(to_array(torch.cat(correct)), float(loss_sum))

    def _context(self, facts: DispatchFacts) -> ClientContext:
        setting = self._setting
        indices = setting.partition.train[facts.client]
        model = setting.model_of(facts.client)
        share = ClientData(indices, setting.recipe.data.augment, setting.recipe.local, model)
        return ClientContext(self._module_pool, self._data, share, facts, setting.recipe.seed)

    def _state(self, handle: Handle | None, wanted: int, ctx: ClientContext) -> Any:
        """The client's state of version `wanted`: made, kept here, or fetched."""
        if handle is None:
            return self._setting.method.init_client(ctx)
        version, state = self._kept.get(ctx.client, (-1, None))
        if version == wanted:
            return state
        return unpack(handle.resolve()["state"], self._device)

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


def _non_finite(arrays: Mapping[str, Array], wire: Mapping[str, Array]) -> tuple[str, ...]:
    """Parts with a NaN or an infinity, also if only their wire form has it: a small type overflows."""
    names = [name for name, array in arrays.items() if not _finite(array)]
    if wire is not arrays:
        names += [
            name for key in wire if (name := key.partition("/")[0]) not in names and not _finite(wire[key])
        ]
    return tuple(names)


def _finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
