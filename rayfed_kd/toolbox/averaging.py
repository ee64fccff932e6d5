"""The cohort's mean, and FedAvg's server around it: what most methods keep while clients train differently.

McMahan et al. 2017, arXiv 1602.05629, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    RECIPE_MODEL,
    Architecture,
    Averaged,
    ClientContext,
    Declaration,
    FlatModule,
    Kind,
    Message,
    MethodOptions,
    OneExchange,
    Replies,
    Reply,
    ServerContext,
)
from rayfed_kd.protocol.method import missing
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.robust import AggregationOptions, aggregate

Weighting = Literal["samples", "uniform"]

ClientState = TypeVar("ClientState")


class AveragingOptions(AggregationOptions):
    """Options of a method whose server averages."""

    weighting: Weighting = Field("samples", description="a client's weight in the mean")

    def model(self) -> Kind | Averaged:
        """How a reply's model is declared: Averaged by `weighting`; a robust mean reads each by itself."""
        return Averaged("weights", self.weighting) if self.aggregation == "mean" else "weights"


@dataclass(frozen=True)
class GlobalModel:
    """What FedAvg's server keeps.

    Attributes:
        weights: [P], the global model w^t.
        version: how many updates made it; 0 before the first.
    """

    weights: Tensor
    version: int = 0


class Weights(Protocol):
    """A server's state that has a global model, `weights`, [P]."""

    @property
    def weights(self) -> Tensor: ...


State = TypeVar("State", bound=Weights)


class SharedModel(OneExchange[State, ClientState]):
    """One global model: it goes down as the part `student`, and is what is evaluated."""

    server_keeps: ClassVar[str] = "the global model"
    client_keeps: ClassVar[str] = "nothing"
    down: ClassVar[Declaration] = {"student": "weights"}
    evaluates: ClassVar[Sequence[str]] = ("global",)

    def dispatch(self, server: State, ctx: ServerContext) -> Message:
        """Send the global model w^t, [P], as the part `student`."""
        return Message(student=server.weights)

    def client_update(
        self, client: ClientState, message: Message, ctx: ClientContext
    ) -> tuple[ClientState, Reply]:
        """Train w^t for E epochs of cross entropy; send w_k and n_k."""
        student = ctx.model(message["student"])
        train_on_labels(student, ctx)
        return client, Reply(student=student.vector(), samples=ctx.num_samples)

    def evaluated(self, server: State) -> Mapping[str, Tensor]:
        """The global model w^t, as `global`."""
        return {"global": server.weights}


class Telling(SharedModel[State, ClientState]):
    """`SharedModel` whose clients send what `told` gives beside the model; `up` declares it."""

    def client_update(
        self, client: ClientState, message: Message, ctx: ClientContext
    ) -> tuple[ClientState, Reply]:
        """Train the received model; send it with n_k, and what is told."""
        student = ctx.model(message["student"])
        self.train_locally(student, ctx)
        return client, Reply(student=student.vector(), **self.told(client, ctx), samples=ctx.num_samples)

    def train_locally(self, student: FlatModule, ctx: ClientContext) -> None:
        """E epochs of cross entropy, as FedAvg."""
        train_on_labels(student, ctx)

    def told(self, client: ClientState, ctx: ClientContext) -> Mapping[str, Tensor]:
        """The parts beside the model."""
        raise missing(self, "told", "toolbox/averaging.py")


@dataclass(frozen=True)
class Told:
    """What a client keeps: whether the server knows what it tells once."""

    told: bool


class TellingOnce(Telling[State, Told]):
    """`Telling`, with a client's first reply alone: `told` asks `client.told`."""

    def init_client(self, ctx: ClientContext) -> Told:
        """Nothing is told yet."""
        return Told(told=False)

    def client_update(self, client: Told, message: Message, ctx: ClientContext) -> tuple[Told, Reply]:
        """As `Telling`; remember that it was told."""
        _, reply = super().client_update(client, message, ctx)
        return Told(told=True), reply


class Averages:
    """The first base of a method whose server averages the part `student`."""

    options: AveragingOptions

    @property
    def up(self) -> Declaration:
        """The trained model, averaged by `weighting` unless `aggregation` is robust."""
        return {"student": self.options.model()}


class Averaging(Averages, SharedModel[GlobalModel, ClientState]):
    """FedAvg's server: the model goes down, trained models come up, their mean is the next one.

    A method on it may define `client_update`, whose reply has the part `student` and the number `samples`.
    """

    def init_server(self, ctx: ServerContext) -> GlobalModel:
        """w^0, the initial model, with version 0."""
        return GlobalModel(ctx.initial_vector())

    def absorb(self, server: GlobalModel, replies: Replies, ctx: ServerContext) -> GlobalModel:
        """Make w^{t+1} from the replies' `student`, by `weighting` or a robust mean."""
        mean = new_model(replies, self.options, server.weights)
        return GlobalModel(mean, server.version + 1)


class SharedSmallOptions(MethodOptions):
    """Options of a method on `SharedSmall`."""

    weighting: Weighting = Field("samples", description="a client's weight in the mean")


class SharedSmall(OneExchange[Tensor, ClientState]):
    """A small model that all share, the recipe's `model`, beside each client's own, of any architecture.

    The server's state is the small model, [P_g].

    Class attributes:
        small: name of the part, both ways, and of the architecture.
    """

    options: Any  # with those of SharedSmallOptions
    small: ClassVar[str]
    heterogeneous: ClassVar[bool] = True

    @property
    def up(self) -> Declaration:
        """The small model, averaged by `weighting`."""
        return {self.small: Averaged("weights", by=self.options.weighting)}

    def architectures(self) -> Mapping[str, Architecture]:
        """The small model: the recipe's, whatever the client's own is."""
        return {self.small: Architecture("classifier", RECIPE_MODEL, {})}

    def init_server(self, ctx: ServerContext) -> Tensor:
        """The initial small model."""
        return ctx.initial_vector()

    def dispatch(self, server: Tensor, ctx: ServerContext) -> Message:
        """Send the small model."""
        return Message(**{self.small: server})

    def absorb(self, server: Tensor, replies: Replies, ctx: ServerContext) -> Tensor:
        """Average the small models."""
        return cohort_mean(replies, self.options.weighting, server, self.small)


def new_model(replies: Replies, options: AveragingOptions, into: Tensor) -> Tensor:
    """The server's next model, [P], from the replies' part `student`: their mean, or a robust one.

    Args:
        into: [P], the server's model now.
    """
    if options.aggregation == "mean":
        return cohort_mean(replies, options.weighting, into)
    return aggregate(replies.vectors("student"), [1.0] * len(replies), options)


def cohort_mean(replies: Replies, weighting: Weighting, into: Tensor, part: str = "student") -> Tensor:
    """sum_k p_k v_k of a part of the replies, [P]: p_k by the replies' number `samples`, or all equal.

    Late replies weigh what the schedule says.

    Args:
        into: [P], the server's vector now, which went down as `part`.
    """
    return replies.aggregated(part, cohort_weights(replies, weighting), into)


def cohort_weights(replies: Replies, weighting: Weighting) -> list[float]:
    """Each reply's weight: its number `samples`, or 1."""
    samples = replies.numbers("samples")
    return samples if weighting == "samples" else [1.0] * len(samples)
