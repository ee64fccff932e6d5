"""The clients' devices in simulated time: how fast each computes and sends, and when it is there.

Drawn from the run's seed, or read from a trace. A dispatch keeps its device busy for

    2 latency + bytes down / bandwidth down + samples * seconds per sample + bytes up / bandwidth up

seconds, of which only those count in which the device is available: it pauses and goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.recipe.timing import ClockOptions, ConstantOptions, LogNormalOptions, TraceOptions
from rayfed_kd.seeds import numpy_stream

Array = np.ndarray[Any, Any]
BITS_OF_A_MBIT = 1e6
SPEEDS = ("seconds_per_sample", "up_mbit_s", "down_mbit_s")
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
        whole = float((self.ends - self.starts).sum())
        skipped = max(0, math.ceil(busy_s / whole) - 1)  # the first so many periods pass alike
        busy_s -= skipped * whole
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
        """One row per client and window, in the columns of a trace."""
        rows = []
        for client, windows in enumerate(self.windows):
            facts = {name: float(getattr(self, name)[client]) for name in (*SPEEDS, "latency_s")}
            pairs = [(None, None)] if windows is None else zip(windows.starts, windows.ends, strict=True)
            for start, end in pairs:
                times = {"from_s": _plain(start), "until_s": _plain(end)}
                rows.append({"client": client, **facts, **times})
        fields = [("client", pa.int64()), *((name, pa.float64()) for name in COLUMNS[1:])]
        return pa.Table.from_pylist(rows, pa.schema(fields))

    def save(self, path: Path) -> None:
        """Writes the table: it is a trace."""
        pq.write_table(self.table(), path)


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)


def make_devices(options: ClockOptions, clients: int, seed: int) -> Devices | None:
    """The devices of a recipe's clock; None for a clock that simulates none.

    Raises: DataError if a trace cannot be read; RecipeError naming row and value if it makes no sense.
    """
    if isinstance(options, TraceOptions):
        return read_trace(Path(options.file), options.period_s, clients)
    if not isinstance(options, ConstantOptions):
        return None
    compute, bandwidth = 0.0, 0.0
    if isinstance(options, LogNormalOptions):
        compute, bandwidth = options.compute_sigma, options.bandwidth_sigma
    stream = numpy_stream(seed, "devices")
    draws = np.exp(stream.standard_normal((3, clients)) * np.array([[compute], [bandwidth], [bandwidth]]))
    return Devices(
        options.seconds_per_sample * draws[0],
        options.up_mbit_s * draws[1],
        options.down_mbit_s * draws[2],
        np.full(clients, options.latency_s),
        (None,) * clients,
    )


def read_trace(path: Path, period_s: float | None, clients: int) -> Devices:
    """Devices from a Parquet or CSV file.

    Columns: client (0 ... K - 1), seconds_per_sample, up_mbit_s, down_mbit_s; latency_s (else 0); from_s and
    until_s, one row per interval in which the client is available (else, or both empty: always).

    Raises: DataError if it cannot be read; RecipeError naming what in it makes no sense.
    """
    table = _read(path)
    missing = [name for name in ("client", *SPEEDS) if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in COLUMNS]
    if missing or unknown:
        what = f"has no column {missing[0]}" if missing else f"has an unknown column {unknown[0]}"
        if "period_s" in unknown:
            what += " (clock.period_s stands in the recipe)"
        raise RecipeError(f"clock.file: {path} {what}; expected {', '.join(COLUMNS)}")
    rows: dict[int, list[dict[str, Any]]] = {}
    for number, given in enumerate(table.to_pylist(), start=1):
        read = {name: _as_number(value) for name, value in given.items()}
        row = {"latency_s": 0.0, "from_s": None, "until_s": None, **read}
        _check_row(row, f"clock.file: {path}, row {number}", clients)
        rows.setdefault(row["client"], []).append(row)
    absent = sorted(set(range(clients)) - set(rows))
    if absent:
        shown = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
        raise RecipeError(
            f"clock.file: {path} says nothing of client {shown} ({len(absent)} of {clients} clients)"
        )
    for client, found in rows.items():
        for name in (*SPEEDS, "latency_s"):
            if len({row[name] for row in found}) > 1:
                raise RecipeError(f"clock.file: {path} has two values of {name} for client {client}")
    latest = max((row["until_s"] for found in rows.values() for row in found if row["until_s"]), default=0.0)
    period_s = period_s or latest
    if latest > period_s:
        raise RecipeError(f"clock.period_s = {period_s:g}: {path} has an interval until {latest:g}")
    speeds = {n: np.array([rows[k][0][n] for k in range(clients)], float) for n in (*SPEEDS, "latency_s")}
    windows = tuple(_windows(rows[k], period_s, f"clock.file: {path}, client {k}") for k in range(clients))
    return Devices(**speeds, windows=windows)


def _read(path: Path) -> pa.Table:
    try:
        if path.suffix == ".csv":
            return pa.csv.read_csv(path)
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"clock.file: {path} cannot be read: {error}") from None


def _check_row(row: dict[str, Any], where: str, clients: int) -> None:
    client = row["client"]
    if not isinstance(client, int) or not 0 <= client < clients:
        raise RecipeError(f"{where}: client {client}; expected 0 to {clients - 1} (partition.clients)")
    for name in SPEEDS:
        value, free = row[name], name == "seconds_per_sample"
        if not _number(value) or value < 0 or (value == 0 and not free):
            bound = "of at least" if free else "above"
            raise RecipeError(f"{where}: {name} {value!r}; expected a number {bound} 0")
    if not _number(row["latency_s"]) or row["latency_s"] < 0:
        raise RecipeError(f"{where}: latency_s {row['latency_s']}; expected a number of at least 0")
    start, end = row["from_s"], row["until_s"]
    if start is None and end is None:
        return
    if not _number(start) or not _number(end) or not 0 <= start < end:
        raise RecipeError(f"{where}: available from {start} until {end}; expected 0 <= from < until")


def _as_number(value: Any) -> Any:
    """A column with a word in it is read as text throughout: its numbers are numbers, and the word stays."""
    if not isinstance(value, str):
        return value
    try:
        return int(value) if value.strip().isdigit() else float(value)
    except ValueError:
        return value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def _windows(rows: list[dict[str, Any]], period_s: float, where: str) -> Windows | None:
    pairs = sorted((row["from_s"], row["until_s"]) for row in rows if row["from_s"] is not None)
    if not pairs:
        return None
    if len(pairs) < len(rows):
        raise RecipeError(f"{where} is available always and from {pairs[0][0]:g} to {pairs[0][1]:g}")
    for (_, end), (start, until) in pairwise(pairs):
        if start < end:
            raise RecipeError(f"{where}: until {end:g} and from {start:g} to {until:g} overlap")
    starts, ends = (np.array(side, float) for side in zip(*pairs, strict=True))
    return Windows(starts, ends, period_s)
