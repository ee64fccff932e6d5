"""What crosses between server and clients: named parts and metadata, down and up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rayfed_kd.data.transfers import moved
from rayfed_kd.errors import MisuseError, RunError, kind_of
from rayfed_kd.models.vectors import weighted_mean, weighted_sum
from rayfed_kd.protocol.mean_rules import Lateness, MeanRule
from rayfed_kd.protocol.summed import SummedReply, sum_of_groups

Number = int | float
Array = np.ndarray[Any, Any]


class Package:
    """Named parts (tensors) and metadata (plain numbers). Parts are counted by kind, metadata apart.

    `package["name"]` gives either; `"name" in package` asks. Frozen, like everything that crosses.
    """

    def __init__(self, **values: Tensor | Number) -> None:
        self.parts: Mapping[str, Tensor] = {k: v for k, v in values.items() if isinstance(v, Tensor)}
        self.metadata: Mapping[str, Number] = {k: v for k, v in values.items() if not isinstance(v, Tensor)}
        for name, number in self.metadata.items():
            if not isinstance(number, int | float):
                raise MisuseError(
                    f"{type(self).__name__}({name}=...) is given {kind_of(number)}; expected a tensor, "
                    "which is a part, or an int or float, which is metadata"
                )

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

    def resolve(self) -> Mapping[str, Any]:
        """The arrays by name, or a client's packed state as "state".

        Read-only, possibly shared memory: copy before computing.
        """

    def own(self) -> Handle:
        """A handle on these arrays that may be kept: this one, unless it holds other clients' as well."""
        return self


@dataclass(frozen=True)
class PartRef:
    """One part of a reply, by reference: what a cache slot holds."""

    handle: Handle
    name: str

    def load(self) -> Tensor:
        """The part as a tensor in torch's own memory."""
        return to_tensor(self.handle.resolve()[self.name])


class NamedParts(Mapping[str, Tensor]):
    """Parts whose names are known without a look at any part."""

    _names: Sequence[str]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's own would fetch it

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class SealedParts(NamedParts):
    """Parts of which only the names are seen: epsilon is of their mean, or hosts sum them."""

    def __init__(self, names: Mapping[str, Tensor], *, summed: bool) -> None:
        self._names, self._summed = tuple(names), summed

    def __getitem__(self, name: str) -> Tensor:
        if self._summed:
            raise RunError(
                f"local.sum_replies: the method reads a reply's {name!r} by itself, and hosts send sums of "
                "them, as it declares it Averaged; expected Replies.aggregated and Replies.mean, or "
                "local.sum_replies=off"
            )
        raise RunError(
            f"privacy: the method reads a reply's {name!r} by itself, and epsilon is of the mean, as it is "
            "declared Averaged; expected Replies.aggregated and Replies.mean, or its kind and noise=client"
        )


class Reply(Package):
    """What a client answers. On the server it knows its client, and fetches a part when asked.

    Attributes:
        client: who answered; -1 where the reply is made.
        handle: the reference behind its parts; None where the reply is made.
        sent: the reference behind the message that it answers; None where the reply is made.
        staleness: server updates between that message and the reply's use.
        in_sum: the sums that its parts are in instead of here; None: they are here.
        origin: round, client and step that it comes from, for messages; "" where the reply is made.
    """

    client: int = -1
    origin: str = ""
    handle: Handle | None = None
    sent: Handle | None = None
    staleness: int = 0
    in_sum: SummedReply | None = None

    def __getitem__(self, name: str) -> Any:
        if self.origin and name not in self:
            names = ", ".join(sorted([*self.parts, *self.metadata]))
            raise RunError(
                f"{self.origin}: the reply has no {name!r}, which the server's part of the method reads; "
                f"there are {names}"
            )
        return super().__getitem__(name)

    def ref(self, name: str) -> PartRef:
        """The part `name` by reference, unresolved."""
        if self.handle is None:
            raise ValueError("only a reply that reached the server has references")
        if name not in self.parts:
            raise KeyError(f"no part {name!r} here; there are {sorted(self.parts)}")
        # `own`, because a slot outlives the round and must not keep other clients' replies in memory.
        return PartRef(self.handle.own(), name)

    def sealed(self) -> Reply:
        """This reply, of which a method sees the numbers and not the parts."""
        sealed = copy(self)
        sealed.parts, sealed.handle = SealedParts(self.parts, summed=self.in_sum is not None), None
        return sealed


class Replies(Sequence[Reply]):
    """The replies of an exchange, in client order; more than one of a client in the order they came in.

    Args:
        rule: how `aggregated` and `mean` weigh them; None: by the method's counts alone.

    Attributes:
        arrival: places in this sequence, in the order in which the replies came.
        are_summed: whether hosts have summed the parts, so that no reply has its own.
    """

    def __init__(self, replies: Sequence[Reply], rule: MeanRule | None = None) -> None:
        # A stable sort: several replies of one client stay in the order in which they came.
        order = sorted(range(len(replies)), key=lambda came: replies[came].client)
        self._replies = [replies[came] for came in order]
        self.arrival = sorted(range(len(order)), key=order.__getitem__)
        self._rule = rule
        # What the method sees. Means are taken of `_replies`.
        self.are_summed = any(reply.in_sum for reply in self._replies)
        sealed = self.are_summed or (rule is not None and rule.sealed)
        self._seen = [reply.sealed() for reply in self._replies] if sealed else self._replies

    def __len__(self) -> int:
        return len(self._replies)

    def __getitem__(self, index: Any) -> Any:
        return self._seen[index]

    @property
    def clients(self) -> list[int]:
        """Who answered, ascending."""
        return [reply.client for reply in self._replies]

    def numbers(self, name: str) -> list[float]:
        """The metadata `name` of every reply."""
        return [float(reply[name]) for reply in self._replies]

    def vectors(self, name: str) -> Sequence[Tensor]:
        """The part `name` of every reply, fetched one at a time as the sequence is walked."""
        return _LazyVectors(self._seen, name)

    def changed(self, name: str, parts: Mapping[int, Tensor]) -> Replies:
        """These replies with another part `name` at some places, for means by the same rule."""
        replies = [copy(reply) for reply in self._replies]
        for place, part in parts.items():
            replies[place].parts = {**replies[place].parts, name: part}
        return Replies(replies, self._rule)

    def refs(self, name: str) -> dict[int, PartRef]:
        """Client -> its part `name` by reference, unresolved.

        Raises: RunError if the method declares them Averaged, and hosts have summed them or `privacy` is of
            their mean.
        """
        if self._replies and self._seen is not self._replies:
            self._seen[0].parts[name]  # raises, and says why
        return {reply.client: reply.ref(name) for reply in self._replies}

    def mean(self, name: str) -> Tensor:
        """The plain mean of the part `name`, float32, added in client order in float64.

        For parts that are alike at all clients, as logits on public samples. Under `privacy` it has the noise
        that the server adds, and the denominator is the expected number of clients.
        """
        if self.are_summed:
            total = sum_of_groups(self._replies, name, [1.0] * len(self._replies))
            return total.div_(float(len(self._replies))).to(torch.float32)
        tensors = _Alike(self._replies, name)
        if self._rule is None:
            return weighted_mean(tensors, [1.0] * len(tensors))
        return self._rule.mean(tensors, name)

    def aggregated(
        self, name: str, counts: Sequence[float], into: Tensor, parameters: int | None = None
    ) -> Tensor:
        """The server's new vector, [P] of `into`'s type: the mean of the part `name`, weighed by `counts`.

        Where replies may be late, the schedule's rule (rayfed_kd/timing/update_rule.py) weighs them as well.
        Under `privacy` all count the same, and without a reply the vector stays, with noise.

        Args:
            counts: one a reply, as n_k.
            into: [P], the server's vector now, which goes down under the same name.
            parameters: how many of its first elements are parameters, the rest buffers; None: as in the
                method's architecture of the same length.
        """
        vectors, divisor = _Alike(self._replies, name, into.shape), float(sum(counts))
        if self.are_summed:
            total = sum_of_groups(self._replies, name, counts)
            # As the rule does where no reply weighs anything.
            return total.div_(divisor).to(into.dtype) if divisor else into.clone()
        if len(counts) != len(self):
            raise MisuseError(f"aggregated({name!r}) is given {len(counts)} counts for {len(self)} replies")
        if self._rule is None:
            return weighted_sum(vectors, counts).div_(divisor).to(into.dtype) if divisor else into.clone()
        late = [Lateness(reply.staleness, _sent(reply, name)) for reply in self._replies]
        return self._rule.applied(into, vectors, counts, late, parameters, name)


def _sent(reply: Reply, name: str) -> Callable[[], Tensor] | None:
    sent = reply.sent
    # Deferred, because only a late reply under a rule of differences needs that vector.
    return None if sent is None else lambda: to_tensor(sent.resolve()[name])


class _LazyVectors(Sequence[Tensor]):
    """A part of every reply, fetched one at a time."""

    def __init__(self, replies: Sequence[Reply], name: str) -> None:
        self._replies, self._name = replies, name

    def __len__(self) -> int:
        return len(self._replies)

    def __getitem__(self, index: Any) -> Any:
        return self._replies[index][self._name]


class _Alike(_LazyVectors):
    """The same for a mean: all of one shape, else torch would broadcast one to the other."""

    def __init__(self, replies: Sequence[Reply], name: str, shape: torch.Size | None = None) -> None:
        super().__init__(replies, name)
        self._shape = shape

    def __getitem__(self, index: Any) -> Any:
        part, what = super().__getitem__(index), f"{self._replies[index].origin}: the reply's {self._name!r}"
        if not isinstance(part, Tensor):
            raise RunError(f"{what} is a number; expected a part")
        if self._shape not in (None, part.shape):
            raise RunError(
                f"{what} has the shape {list(part.shape)}; expected {list(self._shape or ())}, as what it is "
                "averaged with"
            )
        self._shape = part.shape
        return part


def is_finite(number: Number) -> bool:
    """Whether a number of a reply's metadata is neither NaN nor infinite, nor beyond what a float holds."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def to_array(tensor: Tensor) -> Array:
    """A tensor for the wire: a contiguous numpy array, on the CPU."""
    array: Array = moved(tensor.detach(), "cpu").resolve_neg().contiguous().numpy()
    return array


def to_tensor(array: Array, device: torch.device | str = "cpu") -> Tensor:
    """An array from the wire, copied into memory that torch allocated.

    Kernels choose their code by alignment, so computing on received memory could change bits.
    """
    tensor = torch.empty(array.shape, dtype=_torch_dtype(array.dtype))
    np.copyto(tensor.numpy(), array)
    return moved(tensor, device)


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
