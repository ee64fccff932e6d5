"""Devices in simulated time: speeds, windows of availability, traces."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.timing import Windows
from rayfed_kd.timing.clock import NoClock
from rayfed_kd.timing.clocks import (
    ConstantClock,
    ConstantOptions,
    LogNormalClock,
    LogNormalOptions,
    TraceClock,
    TraceOptions,
)
from rayfed_kd.timing.device_sources import read_trace


def windows(*pairs, period=100.0):
    starts, ends = (np.array(side, float) for side in zip(*pairs, strict=True))
    return Windows(starts, ends, period)


def test_busy_seconds_are_messages_and_work():
    """1.25 MB down at 10 Mbit/s: 1 s; 300 samples of 0.01 s: 3 s; 2.5 MB up at 5 Mbit/s: 4 s; 2 * 0.1 s."""
    devices = ConstantClock.make_devices(
        ConstantOptions(seconds_per_sample=0.01, down_mbit_s=10.0, up_mbit_s=5.0, latency_s=0.1), 3, seed=1
    )
    assert devices.busy_s(2, 1_250_000, 300, 2_500_000) == pytest.approx(8.2)
    assert devices.busy_s(2, 1_250_000, 300, None) == pytest.approx(4.1)


def test_lognormal_devices_have_the_asked_median_and_spread():
    """Of 20,000: the standard error of mean and deviation of the logarithm is below 0.01."""
    devices = LogNormalClock.make_devices(
        LogNormalOptions(seconds_per_sample=0.01, compute_sigma=0.8, bandwidth_sigma=0.3), 20_000, seed=1
    )
    logs = np.log(devices.seconds_per_sample)
    assert logs.mean() == pytest.approx(np.log(0.01), abs=0.03)
    assert logs.std() == pytest.approx(0.8, abs=0.02)
    assert np.log(devices.up_mbit_s).std() == pytest.approx(0.3, abs=0.01)
    assert abs(np.corrcoef(np.log(devices.up_mbit_s), logs)[0, 1]) < 0.05


def test_devices_are_a_function_of_the_seed():
    one, same, other = (LogNormalClock.make_devices(LogNormalOptions(), 5, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.up_mbit_s, same.up_mbit_s)
    assert not np.array_equal(one.up_mbit_s, other.up_mbit_s)


def test_without_a_clock_there_are_no_devices():
    assert NoClock.make_devices(NoClock.options_model()(), 5, seed=1) is None


@pytest.mark.parametrize(
    ("at", "expected"), [(0, 10), (10, 10), (15, 15), (20, 50), (55, 55), (60, 110), (160, 210), (155, 155)]
)
def test_next_availability(at, expected):
    assert windows((10, 20), (50, 60)).next(at) == expected


@given(
    st.lists(st.tuples(st.integers(0, 95), st.integers(1, 5)), min_size=1, max_size=6),
    st.integers(0, 400),
    st.integers(0, 300),
)
def test_windows_agree_with_counting_second_by_second(found, at, busy):
    free = np.zeros(100, bool)
    for start, length in found:
        free[start : start + length] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[0], free.astype(int), [0]])))
    device = windows(*[(edges[i], edges[i + 1]) for i in range(0, len(edges), 2)])
    second, done = at, 0
    while done < busy or not (done or free[second % 100]):
        done += free[second % 100] and done < busy
        second += 1
    assert device.after(at, busy) == pytest.approx(second)


def trace(path, rows, **changes):
    whole = [
        {"seconds_per_sample": 0.1, "up_mbit_s": 1.0, "down_mbit_s": 2.0, **row, **changes} for row in rows
    ]
    table = pa.Table.from_pylist(whole)
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.parquet"])
def test_trace_gives_every_client_its_device(name, tmp_path):
    rows = [
        {"client": 1, "from_s": 50.0, "until_s": 60.0},
        {"client": 0, "from_s": None, "until_s": None},
        {"client": 1, "from_s": 10.0, "until_s": 20.0},
    ]
    devices = TraceClock.make_devices(
        TraceOptions(file=str(trace(tmp_path / name, rows)), period_s=100.0), 2, seed=1
    )
    assert devices.windows[0] is None
    assert devices.available_from(1, 30.0) == 50.0
    assert devices.latency_s.tolist() == [0.0, 0.0]
    again = tmp_path / "again.parquet"
    devices.save(again)
    for period_s in (100.0, None):  # it is in the table
        read = read_trace(again, period_s, 2)
        assert read.table().equals(devices.table())
        assert read.windows[1].period_s == 100.0


def test_availability_repeats_after_the_last_interval(tmp_path):
    path = trace(tmp_path / "t.csv", [{"client": 0, "from_s": 10.0, "until_s": 40.0}])
    assert read_trace(path, None, 1).available_from(0, 41.0) == 50.0


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([{"client": 0}], {}, "says nothing of client 1 (1 of 2 clients)"),
        (
            [{"client": 0}, {"client": 2}, {"client": 1}],
            {},
            "row 2: client 2; expected 0 to 1 (partition.clients)",
        ),
        ([{"client": 0}], {"up_mbit_s": -1.0}, "row 1.up_mbit_s = -1.0: expected a number of at"),
        (
            [{"client": 0}],
            {"seconds_per_sample": -0.5},
            "seconds_per_sample = -0.5: expected a number of at least 0.",
        ),
        ([{"client": 0}], {"speed": 1.0}, "row 1.speed is no key of "),
        ([{"client": 0, "from_s": 9.0, "until_s": 3.0}], {}, "available from 9.0 until 3.0"),
        ([{"client": 0, "from_s": 9.0, "until_s": None}], {}, "available from 9.0 until None"),
        (
            [{"client": 0, "from_s": 0.0, "until_s": 5.0}, {"client": 0, "from_s": 4.0, "until_s": 9.0}],
            {},
            "client 0: until 5 and from 4 to 9 overlap",
        ),
        (
            [{"client": 0, "latency_s": 0.0}, {"client": 0, "latency_s": 1.0}],
            {},
            "two values of latency_s for client 0",
        ),
    ],
)
def test_traces_that_make_no_sense_are_answered(rows, changes, message, tmp_path):
    whole = [*rows, {"client": 1, "latency_s": 0.0}] if len(rows) > 1 or "from_s" in rows[0] else rows
    path = trace(tmp_path / "t.parquet", whole, **changes)
    with pytest.raises(RecipeError) as caught:
        read_trace(path, None, 2)
    assert message in str(caught.value)


def test_word_among_numbers_is_named_with_its_own_row(tmp_path):
    lines = ["client,seconds_per_sample,up_mbit_s,down_mbit_s", "0,0.001,1,1", "1,fast,1,1"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(RecipeError, match=r"row 2\.seconds_per_sample = 'fast': expected a number"):
        read_trace(tmp_path / "t.csv", None, 2)


def test_interval_beyond_the_period_is_answered(tmp_path):
    path = trace(tmp_path / "t.csv", [{"client": 0, "from_s": 10.0, "until_s": 40.0}])
    with pytest.raises(RecipeError, match=r"clock.period_s = 30: .* has an interval until 40"):
        read_trace(path, 30.0, 1)


def test_trace_that_is_not_there_is_answered(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", None, 1)
