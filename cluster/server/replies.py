"""Replies as the server sees them: parts by reference, fetched when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from cluster.engine.calls import StepResult
from rayfed_kd.protocol import Handle, Reply, to_tensor


def _reply(client: int, result: StepResult) -> Reply:
    reply: Reply = Reply.of(LazyParts(result.parts, list(result.facts.shapes)), result.facts.metadata)
    reply.client, reply.handle = client, result.parts
    return reply


class LazyParts(Mapping[str, Tensor]):
    """A reply's parts, fetched when asked and not kept."""

    def __init__(self, handle: Handle, names: Sequence[str]) -> None:
        self._handle, self._names = handle, names

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return to_tensor(self._handle.resolve()[name])

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's own would fetch it

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
