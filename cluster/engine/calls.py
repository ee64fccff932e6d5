"""What crosses between the server and its hosts: calls and results, plain and picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Array, DispatchFacts, Handle, Number
from rayfed_kd.protocol.message_codec import PartSize

NO_STATE: Mapping[str, Any] = {"state": None}  # what a client without a state has for one


@dataclass(frozen=True)
class StepCall:
    """One step of one client.

    Attributes:
        step: name of the method's step.
        facts: who, in which round, for which time.
        message: the message's parts, by reference.
        metadata: the message's numbers.
        state: the client's state before the step, by reference; None at its first step.
        state_version: the dispatch that made that state, so that a host that has it need not fetch it.
        number: which dispatch of the run this is, from 1.
        observing: a look for people: the state after it is thrown away.
    """

    step: str
    facts: DispatchFacts
    message: Handle
    metadata: Mapping[str, Number]
    state: Handle | None
    state_version: int
    number: int = 0
    observing: bool = False

    def __str__(self) -> str:
        return f"round {self.facts.round}, client {self.facts.client}, {self.step}"


class NewProcessError(Exception):
    """A client actor was restarted and must be built first."""


class StepError(RunError):
    """A step raised: a bug in the method, told with its own traceback; never tried again."""


@dataclass(frozen=True)
class StepFacts:
    """What the server needs to know of a step's result without fetching it.

    Attributes:
        metadata: the reply's numbers.
        sizes: part -> its elements, and its bytes on the wire.
        non_finite: parts with a NaN or an infinity.
        logged: name -> (sum, count).
        samples: training samples drawn, counted in each epoch.
        host, node: which host ran it, and on which machine.
        seconds: how long the step took there; of clients that were run together, the mean.
        alone: why local epochs ran by themselves that should have run with others': empty if none did, None
            if none should.
        keeps_state: whether the client has a state after it.
        rss_mb, gpu_mb: the host's memory after it.
    """

    metadata: Mapping[str, Number]
    sizes: Mapping[str, PartSize]
    non_finite: tuple[str, ...]
    logged: Mapping[str, tuple[float, int]]
    samples: int
    host: int
    node: str
    seconds: float
    rss_mb: float
    gpu_mb: float
    alone: str | None = None
    keeps_state: bool = True


@dataclass(frozen=True)
class StepResult:
    """A step's facts, and its reply's parts and the client's new state by reference."""

    facts: StepFacts
    parts: Handle
    state: Handle


@dataclass(frozen=True)
class EvaluationCall:
    """A shared model on a stretch of test samples.

    Attributes:
        vectors: the models, by reference.
        model: which of them.
        architecture: of that model.
        split: "local" (all clients' test parts, pooled in client order) or "official".
        start, stop: the stretch.
    """

    vectors: Handle
    model: str
    architecture: str
    split: str
    start: int
    stop: int


@dataclass(frozen=True)
class SharedPart:
    """A server's part of models whose first layers are clients' own: by reference, and its architecture."""

    vectors: Handle
    name: str
    architecture: str


@dataclass(frozen=True)
class PersonalCall:
    """A client's own model on its own test part, or on the official test set.

    Attributes:
        client: whose.
        state: its latest state, by reference; None if no step of it has ended yet.
        state_version: as of `StepCall`.
        split: "local" or "official".
        part: what completes the client's first layers; None: the model is its own alone.
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
    """correct [stop - start] bool, one per sample, and the stretch's summed cross entropy."""

    correct: Array
    loss_sum: float


@dataclass(frozen=True, eq=False)
class Held:
    """A handle on arrays of this process."""

    arrays: Mapping[str, Array] = field(default_factory=dict)

    def resolve(self) -> Mapping[str, Array]:
        """The arrays themselves."""
        return self.arrays

    def own(self) -> Held:
        """Itself."""
        return self
