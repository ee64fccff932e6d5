"""Simulated time: when a dispatch's reply is there. Known before the real work ends, so order repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rayfed_kd.setting.devices import Devices


class Clock(Protocol):
    """What simulated time does with a dispatch."""

    @property
    def simulated(self) -> bool:
        """Whether there are seconds to be shown."""
        ...

    def earliest(self, client: int, at: float, bytes_down: int, least_samples: int) -> float:
        """A second before which the reply cannot be there, known when it is dispatched."""
        ...

    def landing(self, client: int, at: float, bytes_down: int, samples: int, bytes_up: int) -> float:
        """The second at which the reply is there, known when the work is done."""
        ...

    def available(self, clients: Sequence[int], at: float) -> Sequence[int]:
        """Those of `clients` that can be asked at `at`."""
        ...

    def next_available(self, clients: Sequence[int], at: float) -> float:
        """The first second from `at` on at which one of them can be asked."""
        ...


class NoClock:
    """All replies come at once: they are taken in client order."""

    simulated = False

    def earliest(self, client: int, at: float, bytes_down: int, least_samples: int) -> float:
        """At once."""
        return at

    def landing(self, client: int, at: float, bytes_down: int, samples: int, bytes_up: int) -> float:
        """At once."""
        return at

    def available(self, clients: Sequence[int], at: float) -> Sequence[int]:
        """All."""
        return clients

    def next_available(self, clients: Sequence[int], at: float) -> float:
        """Now."""
        return at


@dataclass(frozen=True)
class DeviceClock:
    """Time as the clients' devices make it.

    Attributes:
        devices: one per client.
    """

    devices: Devices
    simulated: bool = True

    def earliest(self, client: int, at: float, bytes_down: int, least_samples: int) -> float:
        """Without the upload, whose size nobody knows yet."""
        return self.devices.done(client, at, self.devices.busy_s(client, bytes_down, least_samples, None))

    def landing(self, client: int, at: float, bytes_down: int, samples: int, bytes_up: int) -> float:
        """Download, work and upload."""
        return self.devices.done(client, at, self.devices.busy_s(client, bytes_down, samples, bytes_up))

    def available(self, clients: Sequence[int], at: float) -> Sequence[int]:
        """Those whose device is there."""
        if self.devices.always_available:
            return clients
        return [client for client in clients if self.devices.available_from(client, at) <= at]

    def next_available(self, clients: Sequence[int], at: float) -> float:
        """When the first of their devices is there."""
        return min((self.devices.available_from(client, at) for client in clients), default=math.inf)
