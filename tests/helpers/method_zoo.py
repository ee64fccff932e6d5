"""A zoo of small methods that misbehave, or keep and send what is rare; a bug report adds a row.

method_zoo.yaml has for each what a run of it says. All are `Keeping` (broken_methods.py) with one thing of
their own, which the option `what` names: a key of the table that the method reads.
"""

import collections
import dataclasses
import enum
import sys
import types
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from broken_methods import Keeping
from torch import nn

from rayfed_kd.protocol import (
    PERSONAL,
    Answers,
    Architecture,
    Distribution,
    Evaluated,
    Message,
    Method,
    MethodOptions,
    Reply,
)


class Options(MethodOptions):
    what: str = ""


class Odd(Keeping):
    options: Options

    def __init_subclass__(cls):
        cls.group_training = "nothing: its steps train no model"  # but they may run in groups

    @property
    def what(self):
        return self.options.what


# What lies in a state. It must come back as it was, or be refused by its place and name.


class Own(dict):
    pass


class OwnList(list):
    pass


class Text(str):
    pass


class Pair(NamedTuple):
    first: int
    second: torch.Tensor


class PairWithMore(Pair):
    pass


@dataclasses.dataclass
class Fields:
    model: torch.Tensor
    seen: int = 0

    @cached_property
    def norm(self):
        return float(self.model.norm())


@dataclasses.dataclass
class FieldsInADict(dict):
    seen: int = 0


class Colour(enum.IntEnum):
    RED = 1


def numbers(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 1.5


def with_norm():
    made = Fields(numbers(3))
    assert made.norm > 0
    return made


def with_attribute(made):
    made.more = 1
    return made


def endless():
    made = []
    made.append(made)
    return made


class Subclassed(torch.Tensor):
    pass


class OwnArray(np.ndarray):
    pass


STATES = {
    "dict": lambda: {"a": 1, 2: [None, True, 0.5], (3, "b"): numbers(2)},
    "empty": lambda: {"a": {}, "b": [], "c": (), "d": ""},
    "big int": lambda: {2**70: -(2**80), 3: 2**63},
    "int64 border": lambda: {1: 2**63 - 1, 2: -(2**63)},
    "nan": lambda: [float("nan"), float("inf"), -0.0, torch.tensor([float("nan"), -0.0])],
    "namedtuple": lambda: Pair(1, numbers(2)),
    "dataclass": lambda: Fields(numbers(2), 3),
    "cached property": with_norm,
    "bf16": lambda: numbers(2, 3).to(torch.bfloat16),
    "bf16 scalar": lambda: torch.tensor(1.5, dtype=torch.bfloat16),
    "fp8": lambda: numbers(4).to(torch.float8_e4m3fn),
    "fp8 e5m2": lambda: numbers(4).to(torch.float8_e5m2),
    "half": lambda: numbers(4).half(),
    "double": lambda: numbers(4).double() / 3,
    "complex64": lambda: torch.complex(numbers(3), numbers(3) / 3),
    "complex128": lambda: torch.complex(numbers(3).double(), numbers(3).double() / 3),
    "bool": lambda: numbers(3) > 0,
    "uint16": lambda: torch.tensor([1, 65535], dtype=torch.uint16),
    "no dimensions": lambda: torch.tensor(2.5),
    "no numbers": lambda: torch.zeros(0, 3),
    "expanded": lambda: numbers(3).expand(4, 3),
    "transposed": lambda: numbers(3, 4).t(),
    "strided": lambda: numbers(9)[::2],
    "negative view": lambda: torch.complex(numbers(3), numbers(3)).conj().imag,
    "conjugated view": lambda: torch.complex(numbers(3), numbers(3)).conj(),
    "array": lambda: np.arange(6).reshape(2, 3),
    "array in Fortran's order": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "complex array": lambda: np.array([1 + 2j]),
    "numpy scalars": lambda: [
        np.float64(0.1),
        np.int64(3),
        np.float32(0.1),
        np.bool_(True),
        np.complex128(1j),
    ],
    "generator state": lambda: torch.Generator().manual_seed(3).get_state(),
    # Refused.
    "defaultdict": lambda: collections.defaultdict(list),
    "counter": lambda: collections.Counter("aab"),
    "ordered dict": lambda: collections.OrderedDict(a=1),
    "proxy": lambda: types.MappingProxyType({}),
    "own dict": lambda: Own(a=1),
    "own list": lambda: OwnList([1]),
    "own text": lambda: Text("a"),
    "deque": lambda: collections.deque([1]),
    "set": lambda: {1},
    "bytes": lambda: b"a",
    "complex": lambda: 1j,
    "enum": lambda: Colour.RED,
    "numpy text": lambda: np.str_("a"),
    "huge int": lambda: 1 << 20_000,
    "size": lambda: torch.zeros(2).shape,
    "lambda": lambda: lambda: 0,
    "generator": lambda: (one for one in ()),
    "class": lambda: Fields,
    "module": lambda: nn.Linear(1, 1),
    "parameter": lambda: nn.Parameter(numbers(2)),
    "subclass": lambda: numbers(2).as_subclass(Subclassed),
    "takes a gradient": lambda: numbers(2).requires_grad_(),
    "has a graph": lambda: numbers(2).requires_grad_() * 2,
    "sparse": lambda: numbers(2, 2).to_sparse(),
    "sparse rows": lambda: numbers(2, 2).to_sparse_csr(),
    "meta": lambda: torch.zeros(2, device="meta"),
    "quantised": lambda: torch.quantize_per_tensor(numbers(2), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([numbers(1), numbers(2)]),
    "masked array": lambda: np.ma.array([1.0]),
    "own array": lambda: np.zeros(1).view(OwnArray),
    "object array": lambda: np.array([None]),
    "text array": lambda: np.array(["a"]),
    "long double": lambda: np.zeros(1, np.longdouble),
    "other byte order": lambda: np.zeros(1, ">f4"),
    "tensor as a key": lambda: {numbers(1): 1},
    "attribute of a dataclass": lambda: with_attribute(Fields(numbers(1))),
    "attribute of a named tuple": lambda: with_attribute(PairWithMore(1, numbers(1))),
    "dataclass of a dict": lambda: FieldsInADict(1),
    "holds itself": endless,
    "reply": lambda: Reply(a=1),
}


def same(one, other):
    """Whether two values are of the same classes, types and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor | np.ndarray):
        # Of equal text: that compares NaN, every type and the sign of zero.
        return (one.dtype, one.shape, str(one.tolist())) == (other.dtype, other.shape, str(other.tolist()))
    parts = {dict: lambda made: [*made, *made.values()], Fields: lambda made: [made.model, made.seen]}
    if (of := parts.get(type(one))) is not None:
        one, other = of(one), of(other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return str(one) == str(other)


def expect(found, what):
    made = STATES[what]()
    assert same(found, made), f"{what}: {found!r} came back, not {made!r}"


class ClientState(Odd):
    """A client keeps it from its first step on, and finds it at the next ones."""

    def init_client(self, ctx):
        return 0

    def client_update(self, client, message, ctx):
        if client:
            expect(client[1], self.what)
        return [1, STATES[self.what]()], self.reply(message, ctx)


class FirstState(ClientState):
    """It is made by `init_client`."""

    def init_client(self, ctx):
        return [0, STATES[self.what]()]


class ServerState(Odd):
    def init_server(self, ctx):
        return {"weights": ctx.initial_vector(), "more": 0}

    def dispatch(self, server, ctx):
        if ctx.round > 1:
            expect(server["more"], self.what)
        return Message(student=server["weights"])

    def absorb(self, server, replies, ctx):
        return {"weights": super().absorb(server["weights"], replies, ctx), "more": STATES[self.what]()}

    def evaluated(self, server):
        return {"global": server["weights"]}


# What crosses.

PARTS = {
    "bf16": lambda vector: vector.to(torch.bfloat16),
    "fp8": lambda vector: vector.to(torch.float8_e4m3fn),
    "half": lambda vector: vector.half(),
    "double": lambda vector: vector.double(),
    "complex": lambda vector: torch.complex(vector, vector),
    "bool": lambda vector: vector > 0,
    "int": lambda vector: vector.long(),
    "sparse": lambda vector: vector.to_sparse(),
    "meta": lambda vector: vector.to("meta"),
    "quantised": lambda vector: torch.quantize_per_tensor(vector, 0.1, 0, torch.qint8),
    "takes a gradient": lambda vector: vector.clone().requires_grad_(),
    "parameter": lambda vector: nn.Parameter(vector.clone()),
    "subclass": lambda vector: vector.as_subclass(Subclassed),
    "negative view": lambda vector: torch.complex(vector, -vector).conj().imag,
    "strided": lambda vector: torch.stack([vector, vector], 1)[:, 0],
    "array": lambda vector: vector.numpy(),
    "list": lambda vector: vector.tolist(),
    "none": lambda vector: None,
    "number": lambda vector: 1.0,
    "text": lambda vector: "a",
    "column": lambda vector: vector[:, None],
    "one number": lambda vector: vector[0],
    "short": lambda vector: vector[:5],
    "nan": lambda vector: vector * float("nan"),
}


class ReplyPart(Odd):
    def client_update(self, client, message, ctx):
        part = PARTS[self.what](message["student"])
        return client, Reply(student=part, samples=ctx.num_samples)


class MessagePart(Odd):
    """Its clients ask for a model with what they got."""

    def client_update(self, client, message, ctx):
        return super().client_update(client, Message(student=ctx.model(message["student"]).vector()), ctx)

    def dispatch(self, server, ctx):
        return Message(student=PARTS[self.what](server))


NUMBERS = {
    "big int": 2**64,
    "int": 3,
    "bool": True,
    "numpy float": np.float64(3.0),
    "numpy int": np.int64(3),
    "complex": 1j,
    "none": None,
    "list": [1],
    "nan": float("nan"),
}


class ReplyNumber(Odd):
    def client_update(self, client, message, ctx):
        reply = Reply(student=message["student"], samples=ctx.num_samples, more=NUMBERS[self.what])
        return client, reply


# What steps return, change and raise.

RETURNS = {
    "none": lambda client, reply: None,
    "reply alone": lambda client, reply: reply,
    "three": lambda client, reply: (client, reply, 1),
    "list": lambda client, reply: [client, reply],
    "swapped": lambda client, reply: (reply, client),
    "dict": lambda client, reply: (client, dict(reply.parts)),
    "message": lambda client, reply: (client, Message(student=reply["student"])),
    "class": lambda client, reply: (client, Reply),
}


class StepReturns(Odd):
    def client_update(self, client, message, ctx):
        return RETURNS[self.what](client, self.reply(message, ctx))


CHANGES = {
    "add": lambda message: message["student"].add_(1.0),
    "data": lambda message: message["student"].data.zero_(),
    "array": lambda message: message["student"].numpy().fill(0.0),
    "flip": lambda message: message["student"].copy_(message["student"].flip(0)),
    "requires_grad": lambda message: message["student"].requires_grad_(),
}


class ChangesMessage(Odd):
    def client_update(self, client, message, ctx):
        reply = self.reply(message, ctx)
        CHANGES[self.what](message)
        return client, reply


class ReplacesParts(Odd):
    """The message's mappings are the step's own: no other client sees what one puts there."""

    def dispatch(self, server, ctx):
        return Message(student=server, factor=2.0)

    def client_update(self, client, message, ctx):
        assert message["factor"] == 2.0
        assert "more" not in message
        reply = self.reply(message, ctx)
        message.parts["more"], message.metadata["factor"] = torch.zeros(1), 3.0
        return client, reply


class ChangesState(Odd):
    """A step may do what it likes with what it was given: it is the step's own."""

    def client_update(self, client, message, ctx):
        assert client[0] == (ctx.participation - 1) * (1 + ctx.client)
        client += 1.0 + ctx.client
        return client, self.reply(message, ctx)


BUFFER = torch.zeros(2)


class SharesABuffer(Odd):
    """States and replies that clients write into one buffer are each client's own all the same."""

    def client_update(self, client, message, ctx):
        assert client[0] == ctx.client * (ctx.participation > 1)
        reply = Reply(
            student=message["student"], mark=BUFFER.fill_(float(ctx.client)), samples=ctx.num_samples
        )
        return BUFFER, reply

    up: ClassVar = {**Keeping.up, "mark": "scalars"}

    def absorb(self, server, replies, ctx):
        assert [float(mark[0]) for mark in replies.vectors("mark")] == [float(k) for k in replies.clients]
        return super().absorb(server, replies, ctx)


def raised(what):
    if what == "exit":
        sys.exit(3)
    raise {"stop": StopIteration, "generator": GeneratorExit, "value": ValueError}[what]("so")


class StepRaises(Odd):
    def client_update(self, client, message, ctx):
        raised(self.what)


class ServerRaises(Odd):
    def absorb(self, server, replies, ctx):
        raised(self.what)


class LogsOddly(Odd):
    def client_update(self, client, message, ctx):
        ctx.log(loss={"number": 0.5, "vector": torch.zeros(2), "text": "a"}[self.what])
        return client, self.reply(message, ctx)


# What the server's part returns.

SERVERS = {
    "none": lambda server: None,
    "short": lambda server: server[:5],
    "tuple": lambda server: (server, 1),
    "list": lambda server: [server],
    "text": lambda server: "a",
    "int": lambda server: server.long(),
    "nan": lambda server: server * float("nan"),
}


class Absorbs(Odd):
    def absorb(self, server, replies, ctx):
        return SERVERS[self.what](super().absorb(server, replies, ctx))


class Dispatches(Odd):
    def dispatch(self, server, ctx):
        return {"none": None, "vector": server, "reply": Reply(student=server), "dict": {"student": server}}[
            self.what
        ]


MODELS = {
    "none": lambda server: None,
    "list": lambda server: [server],
    "vector": lambda server: server,
    "value none": lambda server: {"global": None},
    "value list": lambda server: {"global": [1.0]},
    "number as a name": lambda server: {1: server},
    "no name": lambda server: {"": server},
    "short": lambda server: {"global": server[:5]},
    "column": lambda server: {"global": server[:, None]},
    "bf16": lambda server: {"global": server.bfloat16()},
    "int": lambda server: {"global": server.long()},
    "unknown architecture": lambda server: {"global": Evaluated(server, "other")},
    "double": lambda server: {"global": server.double()},
    "nothing": lambda server: {},
}


class Evaluates(Odd):
    def evaluated(self, server):
        return MODELS[self.what](server)


class Personal(Odd):
    def evaluated(self, server):
        return {"personal": PERSONAL}

    def personal(self, client, ctx):
        return {"none": None, "short": torch.zeros(5), "whole": ctx.initial_vector()}[self.what]


class ChangesServerState(Odd):
    """A round may do what it likes with the state it was given."""

    def absorb(self, server, replies, ctx):
        return server.copy_(super().absorb(server, replies, ctx))


class Shows(Odd):
    """Pictures after a round."""

    def shown(self, server, cohort, ctx):
        flat = Distribution({"one": server.sum()}, "a number")
        return {
            "none": None,
            "vector": {"weights": server},
            "flat": {"weights": flat},
            "value": 1 // 0 if self.what == "value" else 0,
        }[self.what]


class Checks(Odd):
    def check(self, ctx):
        raised(self.what)


class Asks(Odd):
    """Questions to clients, by rows of their answers."""

    up: ClassVar = {**Keeping.up, "answers": Answers("logits"), "other": Answers("logits")}

    def answers(self, client, message, ctx):
        return client, Reply(answers=message["student"].view(-1, 2))

    def run_round(self, server, cohort, ctx):
        answer = "other" if self.what == "other" else "answers"
        ids = {"beyond": torch.tensor([155]), "floats": torch.tensor([0.5])}.get(self.what, torch.arange(3))
        questions = cohort.questions(self.answers, Message(student=server), answer=answer)
        assert torch.equal(questions.ask(ids)[0], server.view(-1, 2)[:3])
        return server


class Weighs(Odd):
    """`aggregated` with something else than one count a reply, or around something else."""

    def absorb(self, server, replies, ctx):
        counts = replies.numbers("samples")
        if self.what == "counts":
            return replies.aggregated("student", counts[1:], into=server)
        if self.what == "around":
            return replies.aggregated("student", counts, into=server[:5])
        return replies.mean("samples" if self.what == "number" else "other")


class UsesTwice(Method):
    """Uses replies of an exchange again, after another exchange."""

    options: Options
    what = Odd.what
    down: ClassVar = {"student": "weights"}
    up = down
    init_server, evaluated = Keeping.init_server, Keeping.evaluated

    def step(self, client, message, ctx):
        return None, Reply(student=message["student"] + 1.0)

    def run_round(self, server, cohort, ctx):
        first = cohort.broadcast(self.step, Message(student=server))
        before = [reply["student"] for reply in first]
        second = cohort.broadcast(self.step, Message(student=server + 1.0))
        assert all(torch.equal(one, reply["student"]) for one, reply in zip(before, first, strict=True))
        assert torch.equal(second.mean("student"), first.mean("student") + 1.0)
        return before[0]


class Sends(UsesTwice):
    """Steps that are none."""

    def run_round(self, server, cohort, ctx):
        step = {"lambda": lambda client, message, ctx: None, "name": "step", "other": numbers}[self.what]
        return cohort.broadcast(step, Message(student=server))[0]["student"]


# What is declared.


class NamesAModel(Odd):
    def architectures(self):
        made = {"recipe's": Architecture("classifier", "mlp", {}), "other": nn.Linear(1, 1)}
        return {"model" if self.what == "recipe's" else "other": made[self.what]}


class DownText(Odd):
    down = "student"


class UpNone(Odd):
    up = None


class UnknownKind(Odd):
    up: ClassVar = {"student": "weight"}


class KindOfNoText(Odd):
    up: ClassVar = {"student": 1}


class NameWithSlash(Odd):
    up: ClassVar = {"student": "weights", "student/exact": "weights"}


class NumberAsName(Odd):
    up: ClassVar = {1: "weights"}


class Undeclared(Odd):
    def client_update(self, client, message, ctx):
        return client, self.reply(message, ctx, extra=torch.zeros(1))


class NumberForAPart(Odd):
    up: ClassVar = {**Keeping.up, "samples": "scalars"}
