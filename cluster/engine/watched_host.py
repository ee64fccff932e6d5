"""A host on a GPU, which measures what each step takes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from rayfed_kd.cluster.engine.calls import StepCall
from rayfed_kd.cluster.engine.gpu_use import GpuWatch
from rayfed_kd.cluster.engine.host import Host, HostResult
from rayfed_kd.data.transfers import Transfers
from rayfed_kd.setting.setting import Setting


def make_host(
    setting: Setting, host: int = 0, device: torch.device | str = "cpu", *rest: Any, **named: Any
) -> Host:
    """A host, which measures its device unless that is the CPU; arguments as those of `Host`."""
    kind = Host if torch.device(device).type == "cpu" else WatchedHost
    return kind(setting, host, device, *rest, **named)


class WatchedHost(Host):
    """A host whose steps' facts say what they took of its device; arguments as those of `Host`."""

    @cached_property
    def _watch(self) -> GpuWatch:
        return GpuWatch(self._device)

    @contextmanager
    def surroundings(self, call: StepCall) -> Iterator[None]:
        """See `Host.surroundings`; the watch begins here."""
        self._watch.begin()
        with super().surroundings(call):
            yield

    def measured(self, results: Sequence[HostResult], started: float) -> list[HostResult]:
        """See `Host.measured`; the copies of several steps stand in the first one's facts."""
        use = self._watch.end()
        uses = [use, *[replace(use, transfers=Transfers())] * (len(results) - 1)]
        return [
            (replace(facts, gpu=one), parts, state)
            for (facts, parts, state), one in zip(super().measured(results, started), uses, strict=True)
        ]
