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

        def evaluated(self, server):
            return {}                                # no model

A round's server code is plain synchronous Python; the engine moves the messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from rayfed_kd.errors import FrozenError
from rayfed_kd.protocol.declaration import Declaration
from rayfed_kd.protocol.evaluated import Evaluable, Evaluated, Shown
from rayfed_kd.protocol.messages import Message, Replies, Reply
from rayfed_kd.recipe.registry import annotated_options

if TYPE_CHECKING:
    from rayfed_kd.models.flat_module import FlatModule
    from rayfed_kd.protocol.contexts import ClientContext, ServerContext
    from rayfed_kd.recipe.sections.local_training import LocalRecipe


ServerState = TypeVar("ServerState")
ClientState = TypeVar("ClientState")


Control = Literal["labels alone", "teacher at chance", "no labels"]


class MethodOptions(BaseModel):
    """Base of every method's options: strict, frozen, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @property
    def controls(self) -> Mapping[Control, Sequence[str]]:
        """Runs that tell what labels of the public set do without the exchange: name -> recipe changes.

        A method that trains on such labels gives at least `labels alone`, the same steps without a teacher.
        At `teacher at chance` every teacher's logits are uniform; `no labels` is the exchange without a loss
        on public labels. `rayfed-kd compare` adds these rows, as a gain over clients alone may be the labels'
        (Aiersilan 2026, arXiv 2607.01272).
        """
        return {}


Step = Callable[[Any, Message, "ClientContext"], tuple[Any, Reply]]
Later = Callable[[int], Message] | None
Predictor = Callable[[Tensor], Tensor]


class Method(ABC, Generic[ServerState, ClientState]):
    """The general form: a round with any number of exchanges.

    Facts of a method are class attributes, as `up = {"student": "weights"}`, or properties if they depend on
    the options.

    Class attributes:
        options: annotated with the method's own options model.
        heterogeneous: whether clients may have architectures of their own (`client_models`).
        group_training: which of its clients' work `local.vectorise` batches over clients, in a few words;
            empty: none. It is not inherited: a derived class, whose work may be another, says it itself.
        label_options: whether `local.label_smoothing` and `local.class_weights` reach its clients' loss on
            labels, by `cross_entropy(logits, labels, given)`. Not inherited either.
            `class FedProx(..., plain_training=True)` says both of all local training.
        summary, paper: one line each, for `rayfed-kd methods`.
        server_keeps, client_keeps: what lies there between rounds, one line each; "nothing" if nothing does.
    """

    options: Any

    @property
    def down(self) -> Declaration:
        """Every part of messages, with its kind. Parts that are not declared are refused."""
        return {}

    @property
    def up(self) -> Declaration:
        """Every part of replies, with its kind and how the server reads it, as `Averaged("weights")`."""
        return {}

    @abstractmethod
    def init_server(self, ctx: ServerContext) -> ServerState:
        """The server's first state."""

    @abstractmethod
    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """One round: exchanges with the cohort, then the new server state."""

    @property
    def evaluates(self) -> Sequence[str]:
        """Names that `evaluated` may give, by which a study is checked before it runs; empty: not said."""
        return ()

    @abstractmethod
    def evaluated(self, server: ServerState) -> Mapping[str, Evaluable]:
        """What to evaluate, by name.

        A vector is a shared model; `Evaluated` one of another architecture; PERSONAL all K clients' own
        models, each on its client's test part (with `partition.test: official` on the official test set);
        `Completing` likewise, every client's first layers with the server's part behind them. Of several
        models that predict together, as an ensemble, `Evaluated` has the vectors one after the other, and the
        method is `Composing`.
        """

    def init_client(self, ctx: ClientContext) -> ClientState:
        """A client's first state, made when it first takes part.

        A step is given this, or what the client's last step returned. Methods whose clients keep nothing
        leave it out: their ClientState is None.
        """
        return None  # type: ignore[return-value]

    def personal(self, client: ClientState, ctx: ClientContext) -> Tensor | Evaluated:
        """A client's own model. Asked for under PERSONAL and `Completing`, between rounds: `ctx.round` is 0.

        A function of the state alone, which it leaves as it is: the result is kept until a step changes
        the state. A client that never took part is asked with what `init_client` makes.
        """
        raise missing(self, "personal")

    def architectures(self) -> Mapping[str, Architecture]:
        """Modules beside "model" that contexts can make, by the name used there."""
        return {}

    heterogeneous: ClassVar[bool] = False

    @property
    def public(self) -> Literal["none", "samples", "labels"]:
        """What it needs of `partition.public`: nothing, its samples, or their labels as well."""
        return "none"

    def check(self, ctx: ServerContext) -> str | None:
        """Raises RecipeError if the method cannot run with this model and data; before any round.

        Returns: what the user should know of it, a note in the run's header; None or "": nothing.
        """
        return None

    @property
    def asynchronous(self) -> bool:
        """Whether it runs under schedules that have no rounds: only with one exchange, down and up."""
        return False

    def least_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """Training samples, counted in each epoch, that a step of a client with `num_samples` draws at least.

        The simulated clock charges what was drawn; a step that draws fewer is an error. The closer it is to
        the truth, the more steps run at the same time under an asynchronous schedule.
        """
        return 0

    def trained_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """How many of a client's `num_samples` its local training passes over; others are held out."""
        return num_samples

    @property
    def whole_epochs(self) -> bool:
        """Whether it divides local training by numbers of epochs: `local.steps` and parts of one are refused.

        Otherwise a client trains by the toolbox's functions, or on `ClientContext.local_batches`.
        """
        return False

    @property
    def generates(self) -> Literal["", "images", "feature maps of images", "crops of images"]:
        """What it makes that only data of images have, by a generator; a method without one says it itself.

        Such a method is refused before the first round for text, tables and numbers.
        """
        spaces = {model.space for model in self.architectures().values() if model.kind == "generator"}
        if "images" in spaces:
            return "images"
        return "feature maps of images" if "maps" in spaces else ""

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        """What to draw after an evaluated round, by name. Its traffic is no part of the method."""
        return {}

    group_training: ClassVar[str] = ""
    label_options: ClassVar[bool] = False
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    server_keeps: ClassVar[str] = ""
    client_keeps: ClassVar[str] = ""

    def __init_subclass__(cls, *, plain_training: bool = False, **others: Any) -> None:
        super().__init_subclass__(**others)
        said = "all local training" if plain_training else ""
        cls.group_training = vars(cls).get("group_training", said)
        cls.label_options = vars(cls).get("label_options", plain_training)

    def __init__(self, options: Any = None) -> None:
        self.options = self.options_model()() if options is None else options

    def __setattr__(self, name: str, value: Any) -> None:
        # `options` can be set once, which `__init__` does.
        if name != "options" or "options" in self.__dict__:
            raise FrozenError(
                f"{type(self).__name__} sets self.{name}: a method is frozen, and what changes is state"
            )
        object.__setattr__(self, name, value)

    @classmethod
    def options_model(cls) -> type[BaseModel]:
        """The model that `options` is annotated with; without an annotation the method has none."""
        return annotated_options(cls, MethodOptions)


class OneExchange(Method[ServerState, ClientState]):
    """The common form: one message down, one reply up. Runs under every schedule."""

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        """What every client of the cohort receives."""
        raise missing(self, "dispatch")

    def client_update(
        self, client: ClientState, message: Message, ctx: ClientContext
    ) -> tuple[ClientState, Reply]:
        """One client's work: from its state, which `init_client` made, to its next one and its reply."""
        raise missing(self, "client_update")

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """The new server state from the replies."""
        raise missing(self, "absorb")

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """Dispatch, update everywhere, absorb."""
        replies = cohort.broadcast(self.client_update, self.dispatch(server, ctx))
        return self.absorb(server, replies, ctx)

    @property
    def asynchronous(self) -> bool:
        """True: a reply answers one message, so it can be used in any update."""
        return True

    def least_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """The local training that the recipe says; a method that draws less overrides it."""
        return local.samples_of(num_samples)


class Composing(Protocol):
    """A method that evaluates composites, or `Completing`."""

    def composed(self, parts: Sequence[FlatModule], numbers: Tensor) -> Predictor:
        """Images to logits, by several models in eval mode that predict together.

        Args:
            parts: of a composite, in the order of `Evaluated.architecture`; under `Completing` a client's own
                model and the server's part.
            numbers: [n], those of a composite behind its parts', on the models' device.
        """


class Questions(Protocol):
    """What a server's loop may ask of its cohort, again and again, while the clients stay as they are."""

    def ask(self, ids: Tensor) -> Tensor:
        """All clients' answers to these ids, [K, n, ...], on the CPU, in client order; waits for them.

        Raises: RunError naming round and client if an answer is not finite.
        """


class Cohort(Protocol):
    """What a round may do to its clients."""

    @property
    def clients(self) -> Sequence[int]:
        """The cohort's ids, ascending."""

    def broadcast(self, step: Step, message: Message) -> Replies:
        """Runs `step`, a bound method of the method, on every client with one message."""

    def scatter(self, step: Step, messages: Mapping[int, Message], later: Later = None) -> Replies:
        """Runs `step` on the clients named, each with its own message.

        `later` gives the message of a client that the schedule asks in place of one that replied, as those
        without rounds do.
        """

    def questions(
        self, step: Step, message: Message, *, answer: str, question: str | None = None
    ) -> Questions:
        """Starts `step` on every client, to be asked about by id; clients' states stay as they are.

        Args:
            step: gives a Reply whose part `answer` has one row per id, [N, ...].
            message: what it needs.
            answer: a part declared up as `Answers`; only rows asked for count as traffic.
            question: a part declared down, the ids asked about, 4 bytes each; None: clients know them.
        """


RECIPE_MODEL = "model"


@dataclass(frozen=True)
class Architecture:
    """A module that a method uses beside the recipe's model: a registered name and its options.

    Attributes:
        kind: what it is.
        name, options: as registered; RECIPE_MODEL is the recipe's model with its options.
        space: what a generator makes and a head takes: images, the model's last feature maps, its features,
            or its logits.
        cut: the method's option `cut`: a classifier takes not images but the output of this layer of the
            recipe's model.
        classes: outputs, if not one per class of the data.
        conditional: whether the method tells a generator the class.
    """

    kind: Literal["classifier", "generator", "head"]
    name: str
    options: Mapping[str, Any]
    space: Literal["images", "maps", "features", "logits"] = "images"
    cut: str | None = None
    classes: int | None = None
    conditional: bool = False


def missing(method: Any, name: str, place: str = "rayfed_kd/protocol/method.py") -> TypeError:
    """What to raise in place of a method's function; `place` has the form that it should have."""
    return TypeError(f"{type(method).__name__} must define {name}(): see {place}")
