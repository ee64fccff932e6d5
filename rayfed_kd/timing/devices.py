"""The clients' devices in simulated time: how fast each computes and sends, and when it is available.

A dispatch keeps its device busy for

    2 latency + bytes down / bandwidth down + samples * seconds per sample + bytes up / bandwidth up

seconds, of which only those count in which the device is available: it pauses and goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayfed_kd.files.whole import write_parquet

Array = np.ndarray[Any, Any]
BITS_OF_A_MBIT = 1e6
SPEEDS = ("seconds_per_sample", "up_mbit_s", "down_mbit_s")
PERIOD = "rayfed_kd.period_s"  # in the metadata of a saved table
COLUMNS = ("client", *SPEEDS, "latency_s", "from_s", "until_s")


@dataclass(frozen=True)
class Windows:
    """When a device is available; the pattern repeats for ever.

    Attributes:
        starts, ends: [n] seconds within a period, ascending, apart.
        period_s: of the pattern.
    """

    starts: Array
    ends: Array
    period_s: float

    def next(self, at: float) -> float:
        """The first second from `at` on at which the device is available."""
        period, _, within = self._place(at)
        return max(at, period * self.period_s + within)

    def after(self, at: float, busy_s: float) -> float:
        """When a device that starts at `at` has been available for `busy_s` seconds."""
        total_s = float((self.ends - self.starts).sum())
        skipped = max(0, math.ceil(busy_s / total_s) - 1)  # the first so many periods pass alike
        busy_s -= skipped * total_s
        period, place, within = self._place(at)
        while busy_s > (left := float(self.ends[place]) - within):
            busy_s -= left
            place += 1
            if place == len(self.ends):
                period, place = period + 1, 0
            within = float(self.starts[place])
        return (period + skipped) * self.period_s + within + busy_s

    def _place(self, at: float) -> tuple[int, int, float]:
        """Period, window and second within the period of the first availability from `at` on."""
        period = int(at // self.period_s)
        within = at - period * self.period_s
        # "right": at the very end of a window the device is away already.
        place = int(np.searchsorted(self.ends, within, side="right"))
        if place == len(self.ends):
            return period + 1, 0, float(self.starts[0])
        return period, place, max(within, float(self.starts[place]))


@dataclass(frozen=True)
class Devices:
    """One device per client.

    Attributes:
        seconds_per_sample: [K], one training sample in one epoch.
        up_mbit_s, down_mbit_s: [K] bandwidth, 10^6 bits a second.
        latency_s: [K] of a message, each way.
        windows: per client, when it is available; None where it always is.
    """

    seconds_per_sample: Array
    up_mbit_s: Array
    down_mbit_s: Array
    latency_s: Array
    windows: tuple[Windows | None, ...]

    def __len__(self) -> int:
        return len(self.windows)

    @cached_property
    def always_available(self) -> bool:
        """Whether no device is ever away."""
        return all(windows is None for windows in self.windows)

    def busy_s(self, client: int, bytes_down: int, samples: int, bytes_up: int | None) -> float:
        """Seconds that a dispatch keeps a device busy; without the upload if `bytes_up` is None."""
        down_s = self.latency_s[client] + 8 * bytes_down / (BITS_OF_A_MBIT * self.down_mbit_s[client])
        busy_s = down_s + samples * self.seconds_per_sample[client]
        if bytes_up is not None:
            busy_s += self.latency_s[client] + 8 * bytes_up / (BITS_OF_A_MBIT * self.up_mbit_s[client])
        return float(busy_s)

    def done(self, client: int, at: float, busy_s: float) -> float:
        """When a device that starts at `at` has worked for `busy_s` seconds."""
        windows = self.windows[client]
        return at + busy_s if windows is None else windows.after(at, busy_s)

    def available_from(self, client: int, at: float) -> float:
        """The first second from `at` on at which a device is available."""
        windows = self.windows[client]
        return at if windows is None else windows.next(at)

    def table(self) -> pa.Table:
        """One row per client and window, in the columns of a trace; its metadata have the period of all."""
        rows = []
        for client, windows in enumerate(self.windows):
            facts = {name: float(getattr(self, name)[client]) for name in (*SPEEDS, "latency_s")}
            pairs = [(None, None)] if windows is None else zip(windows.starts, windows.ends, strict=True)
            for start, end in pairs:
                rows.append({"client": client, **facts, "from_s": start, "until_s": end})
        fields = [("client", pa.int64()), *((name, pa.float64()) for name in COLUMNS[1:])]
        periods = {windows.period_s for windows in self.windows if windows is not None}
        metadata = {PERIOD: str(*periods)} if len(periods) == 1 else None
        return pa.Table.from_pylist(rows, pa.schema(fields, metadata))

    def save(self, path: Path) -> None:
        """Writes the table: it is a trace."""
        write_parquet(path, self.table())
