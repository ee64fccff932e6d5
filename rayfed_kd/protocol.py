"""The seam: what a federated method is, and what crosses between server and clients.

A method is a frozen object that holds only its options. All that changes lives in explicit states.
A client step is a pure function (client state, message, context) -> (new client state, reply): it
reads data and randomness only from its context, and changes neither its state nor its message in
place. That purity is what lets the same file run in one process, on any cluster, and again after a
crash, with the same bits.

    class Counting(OneExchange):                     # a whole method: clients count, the server adds
        down = {"total": "counts"}
        up = {"seen": "counts"}

        def init_server(self, ctx):
            return torch.zeros(())

        def dispatch(self, server, ctx):
            return Message(total=server)

        def client_update(self, client, message, ctx):
            return None, Reply(seen=torch.tensor(float(ctx.num_samples)))

        def absorb(self, server, replies, ctx):
            return server + sum(reply["seen"] for reply in replies)

A step runs the server part as plain synchronous Python; how messages move is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args, get_type_hints

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from rayfed_kd.staleness import Lateness, UpdateRule

if TYPE_CHECKING:
    from rayfed_kd.config import LocalRecipe
    from rayfed_kd.contexts import ClientContext, ServerContext
    from rayfed_kd.vectors import FlatModule

Kind = Literal[
    "weights", "generator", "discriminator", "logits", "features", "labels", "ids", "counts", "scalars"
]
KINDS: tuple[str, ...] = get_args(Kind)
Number = int | float
Array = np.ndarray[Any, Any]

ServerState = TypeVar("ServerState")
ClientState = TypeVar("ClientState")


@dataclass(frozen=True)
class Simulated:
    """A part that helps the simulation and would not travel in a real deployment; counted apart."""

    kind: Kind


Declaration = Mapping[str, Kind | Simulated]


class Package:
    """Named parts (tensors) and metadata (plain numbers). Parts are counted by kind, metadata apart.

    `package["name"]` gives either; `"name" in package` asks. Frozen, like everything that crosses.
    """

    def __init__(self, **values: Tensor | Number) -> None:
        self.parts: Mapping[str, Tensor] = {k: v for k, v in values.items() if isinstance(v, Tensor)}
        self.metadata: Mapping[str, Number] = {k: v for k, v in values.items() if not isinstance(v, Tensor)}
        for name, number in self.metadata.items():
            if not isinstance(number, int | float):
                raise TypeError(f"{name} is {type(number).__name__}; a part is a tensor, metadata a number")

    @classmethod
    def of(cls, parts: Mapping[str, Tensor], metadata: Mapping[str, Number]) -> Any:
        """A package of `parts` as they are, also if the mapping fetches them only when asked."""
        package = cls(**metadata)
        package.parts = parts
        return package

    def __getitem__(self, name: str) -> Any:
        if name in self.metadata:
            return self.metadata[name]
        if name in self.parts:
            return self.parts[name]
        raise KeyError(f"no {name!r} here; there are {sorted([*self.parts, *self.metadata])}")

    def __contains__(self, name: str) -> bool:
        return name in self.parts or name in self.metadata


class Message(Package):
    """What the server sends to a client."""


class Handle(Protocol):
    """A reference to arrays that may lie in another process; resolved where they are used."""

    def resolve(self) -> Mapping[str, Array]:
        """The arrays by name; read-only, possibly shared memory: copy before computing."""
        ...

    def own(self) -> Handle:
        """A handle on these arrays that may be kept: it holds no other client's."""
        ...


@dataclass(frozen=True)
class PartRef:
    """One part of a reply, by reference: what a cache slot holds."""

    handle: Handle
    name: str

    def load(self) -> Tensor:
        """The part as a tensor in torch's own memory."""
        return to_tensor(self.handle.resolve()[self.name])


class Reply(Package):
    """What a client answers. On the server it knows its client, and fetches a part when asked.

    Attributes:
        client: who answered; -1 where the reply is made.
        handle: the reference behind its parts; None where the reply is made.
        sent: the reference behind the message that it answers; None where the reply is made.
        staleness: server updates between that message and the reply's use.
    """

    client: int = -1
    handle: Handle | None = None
    sent: Handle | None = None
    staleness: int = 0

    def ref(self, name: str) -> PartRef:
        """The part `name` by reference, unresolved."""
        if self.handle is None:
            raise ValueError("only a reply that reached the server has references")
        if name not in self.parts:
            raise KeyError(f"no part {name!r} here; there are {sorted(self.parts)}")
        return PartRef(self.handle.own(), name)


class Replies(Sequence[Reply]):
    """The replies of an exchange, in client order; more than one of a client in the order they came in.

    Args:
        rule: the schedule's; how `aggregated` weighs them.
    """

    def __init__(self, replies: Sequence[Reply], rule: UpdateRule | None = None) -> None:
        self._replies = sorted(replies, key=lambda reply: reply.client)
        self._rule = UpdateRule() if rule is None else rule

    def __len__(self) -> int:
        return len(self._replies)

    def __getitem__(self, index: Any) -> Any:
        return self._replies[index]

    def __iter__(self) -> Iterator[Reply]:
        return iter(self._replies)

    @property
    def clients(self) -> list[int]:
        """Who answered, ascending."""
        return [reply.client for reply in self._replies]

    def numbers(self, name: str) -> list[float]:
        """The metadata `name` of every reply."""
        return [float(reply[name]) for reply in self._replies]

    def vectors(self, name: str) -> Sequence[Tensor]:
        """The part `name` of every reply, fetched one at a time as the sequence is walked."""
        return _LazyVectors(self._replies, name)

    def aggregated(
        self, name: str, counts: Sequence[float], into: Tensor, parameters: int | None = None
    ) -> Tensor:
        """The server's new vector, [P] float32: the mean of the part `name`, weighed by `counts`.

        Where replies may be late, the schedule's rule (rayfed_kd/staleness.py) weighs them as well.

        Args:
            counts: one a reply, as n_k.
            into: [P], the server's vector now, which goes down under the same name.
            parameters: how many of its first elements are parameters, the rest buffers; None: as in the
                method's architecture of the same length.
        """
        late = [Lateness(reply.staleness, _sent(reply, name)) for reply in self._replies]
        return self._rule.applied(into, self.vectors(name), counts, late, parameters)


def _sent(reply: Reply, name: str) -> Callable[[], Tensor] | None:
    sent = reply.sent
    return None if sent is None else lambda: to_tensor(sent.resolve()[name])


class _LazyVectors(Sequence[Tensor]):
    def __init__(self, replies: Sequence[Reply], name: str) -> None:
        self._replies, self._name = replies, name

    def __len__(self) -> int:
        return len(self._replies)

    def __getitem__(self, index: Any) -> Any:
        return self._replies[index][self._name]


class MethodOptions(BaseModel):
    """Base of every method's options: strict, frozen, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Step = Callable[[Any, Message, "ClientContext"], tuple[Any, Reply]]


class Questions(Protocol):
    """What a server's loop may ask of its cohort, again and again, while the clients stay as they are."""

    def ask(self, ids: Tensor) -> Tensor:
        """All clients' answers to these ids, [K, n, ...], on the CPU, in client order; waits for them.

        Raises: RunError naming round and client if an answer is not finite.
        """
        ...


class Cohort(Protocol):
    """What a round may do to its clients."""

    @property
    def clients(self) -> Sequence[int]:
        """The cohort's ids, ascending."""
        ...

    def broadcast(self, step: Step, message: Message) -> Replies:
        """Runs `step`, a bound method of the method, on every client with one message."""
        ...

    def scatter(self, step: Step, messages: Mapping[int, Message]) -> Replies:
        """Runs `step` on the clients named, each with its own message."""
        ...

    def submit(self, client: int, step: Step, message: Message) -> Callable[[], Reply]:
        """Starts `step` on one client; the returned function waits for the reply."""
        ...

    def questions(
        self, step: Step, message: Message, *, answer: str, question: str | None = None
    ) -> Questions:
        """Starts `step` on every client, to be asked about by id; clients' states stay as they are.

        Args:
            step: gives a Reply whose part `answer` has one row per id, [N, ...].
            message: what it needs.
            answer: a part declared up; only rows asked for count as traffic.
            question: a part declared down, the ids asked about, 4 bytes each; None: clients know them.
        """
        ...


RECIPE_MODEL = "model"


@dataclass(frozen=True)
class Architecture:
    """A module that a method uses beside the recipe's model: a registered name and its options.

    Attributes:
        kind: what it is.
        name, options: as registered; RECIPE_MODEL is the recipe's model with its options.
        space: what a generator makes and a head takes: images, the model's last feature maps, or its
            features.
        cut: the method's option `cut`: a classifier takes not images but the output of this layer of the
            recipe's model.
        classes: outputs, if not one per class of the data.
        conditional: whether the method tells a generator the class.
    """

    kind: Literal["classifier", "generator", "head"]
    name: str
    options: Mapping[str, Any]
    space: Literal["images", "maps", "features"] = "images"
    cut: str | None = None
    classes: int | None = None
    conditional: bool = False


@dataclass(frozen=True)
class Samples:
    """Generated samples for people to look at.

    Attributes:
        images: [n, c, h, w] float32 in [0, 1].
        labels: [n] int64, the class that the teacher predicts.
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Distribution:
    """Values whose spread is to be seen.

    Attributes:
        values: series -> [n], any n.
        quantity: what they are, with the unit.
    """

    values: Mapping[str, Tensor]
    quantity: str


@dataclass(frozen=True)
class ClassValues:
    """One value per class.

    Attributes:
        values: series -> [classes].
        quantity: what they are, with the unit.
    """

    values: Mapping[str, Tensor]
    quantity: str


Shown = Samples | Distribution | ClassValues


@dataclass(frozen=True)
class Evaluated:
    """A model to evaluate that is not of the recipe's architecture.

    Attributes:
        vector: the model.
        architecture: its name among the method's `architectures()`.
    """

    vector: Tensor
    architecture: str


@dataclass(frozen=True)
class Completing(Evaluated):
    """The server's part of a model whose first layers are each client's own: evaluated behind all of them.

    `Method.completed` puts the two together.
    """


@dataclass(frozen=True)
class Personal:
    """Stands for every client's own model, which `Method.personal` gives."""


PERSONAL = Personal()
Evaluable = Tensor | Evaluated | Personal


def shared_vectors(models: Mapping[str, Evaluable]) -> dict[str, Tensor]:
    """The vectors of those models that the server has."""
    vectors = {}
    for name, model in models.items():
        if isinstance(model, Tensor):
            vectors[name] = model
        elif isinstance(model, Evaluated):
            vectors[name] = model.vector
    return vectors


class Method(Generic[ServerState, ClientState]):
    """The general form: a round with any number of exchanges.

    Class attributes:
        options: annotated with the method's own options model.
        summary, paper: one line each, for `rayfed-kd methods`.
        down, up: every part that may cross, with its kind; others are refused.
        server_keeps, client_keeps: what lies there between rounds, one line each; "nothing" if nothing does.
        heterogeneous: whether clients may have architectures of their own (`client_models`).
        public: what the method needs of `partition.public` whatever its options: nothing, its samples, or
            their labels as well.
        aligned: whether what clients send is about the same things in the same places, as attacks need it.
    """

    options: Any
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    server_keeps: ClassVar[str] = ""
    client_keeps: ClassVar[str] = ""
    down: ClassVar[Declaration] = {}
    up: ClassVar[Declaration] = {}
    heterogeneous: ClassVar[bool] = False
    public: ClassVar[Literal["none", "samples", "labels"]] = "none"
    aligned: ClassVar[bool] = True

    def __init__(self, options: Any = None) -> None:
        self.options = self.options_model()() if options is None else options

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "options" or "options" in self.__dict__:
            raise AttributeError(f"a method is frozen: {name} belongs into a state")
        object.__setattr__(self, name, value)

    @classmethod
    def options_model(cls) -> type[BaseModel]:
        """The model that `options` is annotated with; without an annotation the method has none."""
        annotated = get_type_hints(cls)["options"]
        return MethodOptions if annotated is Any else annotated

    def architectures(self) -> Mapping[str, Architecture]:
        """Modules beside "model" that contexts can make, by the name used there."""
        return {}

    def check(self, ctx: ServerContext) -> None:
        """Raises RecipeError if the method cannot run with this model and data; before any round."""

    @property
    def public_needed(self) -> Literal["none", "samples", "labels"]:
        """What it needs of `partition.public` with its options: `public`, or more."""
        return self.public

    @property
    def asynchronous(self) -> bool:
        """Whether it runs under schedules that have no rounds: only with one exchange, down and up."""
        return False

    def least_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """Training samples, counted in each epoch, that a step of a client with `num_samples` draws at least.

        The simulated clock charges what was drawn, or this if it is more; the closer it is to the truth, the
        more steps run at the same time under an asynchronous schedule.
        """
        return 0

    def init_server(self, ctx: ServerContext) -> ServerState:
        """The server's first state."""
        raise _missing(self, "init_server")

    def init_client(self, ctx: ClientContext) -> ClientState | None:
        """A client's first state, made when it first takes part; None for stateless clients."""
        return None

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """One round: exchanges with the cohort, then the new server state."""
        raise _missing(self, "run_round")

    def evaluated(self, server: ServerState) -> Mapping[str, Evaluable]:
        """What to evaluate, by name.

        A vector is a shared model; `Evaluated` one of another architecture; PERSONAL all K clients' own
        models, each on its client's test part (with `partition.test: official` on the official test set);
        `Completing` likewise, every client's first layers with the server's part behind them.
        """
        raise _missing(self, "evaluated")

    def personal(self, client: ClientState, ctx: ClientContext) -> Tensor | Evaluated:
        """A client's own model. Asked for under PERSONAL, between rounds: `ctx.round` is 0.

        A function of the state alone, which it leaves as it is: the result is kept until a step changes
        the state. A client that never took part is asked with what `init_client` makes.
        """
        raise _missing(self, "personal")

    def completed(
        self, client: ClientState, part: FlatModule, ctx: ClientContext
    ) -> Callable[[Tensor], Tensor]:
        """Images to logits, by a client's own first layers and the server's part, both in eval mode.

        Asked for under `Completing`, between rounds, as `personal` is.
        """
        raise _missing(self, "completed")

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        """What to draw after an evaluated round, by name. Its traffic is no part of the method."""
        return {}


class OneExchange(Method[ServerState, ClientState]):
    """The common form: one message down, one reply up. Runs under every schedule."""

    @property
    def asynchronous(self) -> bool:
        return True

    def least_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """Local epochs over all samples; a method that draws less overrides it."""
        return local.epochs * num_samples

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        """What every client of the cohort receives."""
        raise _missing(self, "dispatch")

    def client_update(
        self, client: ClientState | None, message: Message, ctx: ClientContext
    ) -> tuple[ClientState | None, Reply]:
        """One client's work."""
        raise _missing(self, "client_update")

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """The new server state from the replies."""
        raise _missing(self, "absorb")

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """Dispatch, update everywhere, absorb."""
        replies = cohort.broadcast(self.client_update, self.dispatch(server, ctx))
        return self.absorb(server, replies, ctx)


def _missing(method: Any, name: str) -> TypeError:
    return TypeError(f"{type(method).__name__} must define {name}(): see rayfed_kd/protocol.py")


def to_array(tensor: Tensor) -> Array:
    """A tensor for the wire: a contiguous numpy array, on the CPU."""
    array: Array = tensor.detach().cpu().contiguous().numpy()
    return array


def to_tensor(array: Array, device: torch.device | str = "cpu") -> Tensor:
    """An array from the wire, copied into memory that torch allocated.

    Kernels choose their code by alignment, so computing on received memory could change bits.
    """
    tensor = torch.empty(array.shape, dtype=_torch_dtype(array.dtype))
    np.copyto(tensor.numpy(), array)
    return tensor.to(device)


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
