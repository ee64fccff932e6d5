"""Calls and results that cross between the server and its hosts: plain, picklable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from rayfed_kd.cluster.engine.gpu_use import GpuUse
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array, DispatchFacts, Handle, Number
from rayfed_kd.protocol.state_packing import pack
from rayfed_kd.protocol.wire import Memory, PartSize

NO_STATE: Mapping[str, Any] = {"state": None}  # stands for the state of a client that keeps none


class KeptState(NamedTuple):
    """What a client keeps where its codecs remember something, which belongs to one version of its state.

    Attributes:
        state: the method's.
        memory: the codecs'.
    """

    state: Any
    memory: Memory


@dataclass(frozen=True, eq=False)
class LiveState(Handle):
    """A handle on a client's state in its host's process, where it lies on the host's device.

    It is copied and packed each time it is asked for: by a checkpoint, another process, or a host that no
    longer keeps it. A step may not change its state in place, so it is packed as the step left it.

    Attributes:
        state: what the client keeps; None: nothing.
    """

    state: Any

    def resolve(self) -> Mapping[str, Any]:
        """The packed state, as "state"."""
        return NO_STATE if self.state is None else {"state": pack(self.state)}


@dataclass(frozen=True)
class StepCall:
    """One step of one client.

    Attributes:
        step: name of the method's step.
        facts: client, round, participation and exchange. All but the round decide the step's random streams.
        message: the message's parts, by reference.
        metadata: the message's plain numbers.
        state: the client's state before the step, by reference; None at its first step.
        state_version: number of the dispatch that produced that state; a host that has it does not fetch it.
        number: number of this dispatch in the run, from 1; an observation's number is not used.
        observing: whether the step is an observation: the state after it is discarded.
        notes: what features at the server tell their counterparts at hosts, by name, as privacy its clip.
    """

    step: str
    facts: DispatchFacts
    message: Handle
    metadata: Mapping[str, Number]
    state: Handle | None
    state_version: int
    number: int = 0
    observing: bool = False
    notes: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"round {self.facts.round}, client {self.facts.client}, {self.step}"


class NewProcessError(Exception):
    """A client actor's process was restarted, and its host is not built yet."""


class StepError(RunError):
    """A step raised an error, shown with its own traceback. It is never retried: it would fail again."""


@dataclass(frozen=True)
class StepFacts:
    """The facts of a step's result that the server needs without fetching its arrays.

    Attributes:
        metadata: the reply's plain numbers.
        sizes: part -> its elements, and its bytes on the wire.
        non_finite: names of parts with a NaN or infinite value.
        logged: name -> (sum, count) of the logged values.
        samples: training samples drawn, counted in every epoch.
        host, node: number of the host that ran the step, and name of its machine.
        seconds: real seconds of the step; in a group, the group's seconds divided by its clients.
        refused: what is wrong with each part that its codec cannot encode.
        keeps_state: whether the client has a state after the step.
        rss_mb: memory of the host's process after the step, in MiB.
        weights: averaged part -> what its host multiplied it by to add it to its group's sum; None: parts are
            not summed.
        notes: what features at hosts tell their counterparts at the server, by name.
        gpu: its use of the device; of a group, whose steps interleave, all copies stand in the first step's.
            None: the host computes on the CPU.
    """

    metadata: Mapping[str, Number]
    sizes: Mapping[str, PartSize]
    non_finite: tuple[str, ...]
    logged: Mapping[str, tuple[float, int]]
    samples: int
    host: int
    node: str
    seconds: float = 0.0
    rss_mb: float = 0.0
    keeps_state: bool = True
    refused: tuple[str, ...] = ()
    notes: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] | None = None
    gpu: GpuUse | None = None


@dataclass(frozen=True)
class StepResult:
    """A step's result, as the server gets it.

    Attributes:
        facts: the facts, as values.
        parts: the reply's encoded parts by name, by reference; a `GroupSum` if its host summed them.
        state: the client's packed new state, as "state", by reference.
    """

    facts: StepFacts
    parts: Handle
    state: Handle


@dataclass(frozen=True)
class EvaluationCall:
    """Evaluation of a shared model on a stretch of test samples.

    Attributes:
        vectors: the models' vectors by name, by reference.
        model: name of the model to evaluate.
        architecture: name of its architecture.
        split: "local" (all clients' test parts, pooled in client order) or "official".
        start, stop: the stretch's first index, and the one after its last.
    """

    vectors: Handle
    model: str
    architecture: str
    split: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"evaluation of {self.model}"


@dataclass(frozen=True)
class SharedPart:
    """The server's part of models whose first layers are the clients' own.

    Attributes:
        vectors: the parts' vectors by name, by reference.
        name: name of the part.
        architecture: name of its architecture.
    """

    vectors: Handle
    name: str
    architecture: str


@dataclass(frozen=True)
class PersonalCall:
    """Evaluation of a client's own model on its own test part, or on the official test set.

    Attributes:
        client: id of the client.
        state: its latest state, by reference; None before its first reply.
        state_version: as in `StepCall`.
        split: "local" (the client's test part) or "official".
        part: the server's part behind the client's first layers; None: the whole model is the client's own.
    """

    client: int
    state: Handle | None
    state_version: int
    split: str
    part: SharedPart | None = None

    def __str__(self) -> str:
        return f"evaluation of client {self.client}'s own model"


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an `EvaluationCall`.

    Attributes:
        correct: [stop - start] bool, whether each sample's prediction is correct.
        finite: [stop - start] bool, whether each sample's logits say anything: see `ModelEvaluation.tested`.
        loss_sum: the stretch's summed cross entropy, in nats.
        logits: [stop - start, classes] float32; None if the recipe names no metrics that need them.
    """

    correct: Array
    finite: Array
    loss_sum: float
    logits: Array | None = None


@dataclass(frozen=True)
class PersonalResult:
    """The result of a `PersonalCall`.

    Attributes:
        correct: how many predictions are correct.
        finite: whether the logits of all samples say anything.
        logits: [samples, classes] float32; None if the recipe names no metrics that need them.
    """

    correct: int
    finite: bool
    logits: Array | None = None


@dataclass(frozen=True)
class Held(Handle):
    """A handle that holds its arrays. Equal only to itself and its copies: hosts cache by handle."""

    arrays: Mapping[str, Array] = field(default_factory=dict, compare=False)
    name: UUID = field(default_factory=uuid4)

    def resolve(self) -> Mapping[str, Array]:
        """The arrays themselves."""
        return self.arrays
