"""What steps take of their host's device, and a round's row of it. NVML is a stand-in."""

import threading

import pytest
import torch
from small_recipes import FOUR_CLIENTS, small_recipe

from rayfed_kd.cluster.engine import gpu_use
from rayfed_kd.cluster.engine.calls import StepFacts
from rayfed_kd.cluster.engine.gpu_use import GpuUse, GpuWatch
from rayfed_kd.cluster.engine.host import Host, WatchedHost, make_host
from rayfed_kd.cluster.server.round_tables import host_rows
from rayfed_kd.cluster.server.traffic import Traffic
from rayfed_kd.data.transfers import Transfers, moved, transfers_so_far
from rayfed_kd.experiment.estimating import HostMemory, host_memory
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol.messages import to_array, to_tensor

MIB = 2**20
CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("needed", "told"),
    [
        # 1,000 of 40,000 MiB are 2.5 hundredths: 3, of which 33 fit.
        (
            1000.0,
            "a host takes 1,000 of the GPU's 40,000 MiB: placement.client.num_gpus=0.03 lets 33 share it",
        ),
        (
            20_000.0,
            "a host takes 20,000 of the GPU's 40,000 MiB: placement.client.num_gpus=0.5 lets 2 share it",
        ),
        (40_000.5, "a host takes 40,000 of the GPU's 40,000 MiB, more than there is"),
    ],
)
def test_a_hosts_share_is_the_least_that_has_room_for_what_was_measured(needed, told):
    assert str(HostMemory(needed, 40_000.0)) == told


@pytest.mark.parametrize(("free", "context"), [(6000, 400), (2000, 1024)])
def test_a_host_needs_its_context_too_but_not_what_others_hold(free, context, monkeypatch):
    """Of 8,000 MiB torch holds 1,600: 6,000 free leave 400 for the context; at 2,000 others are there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * MIB, 8000 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1600 * MIB)
    assert host_memory(1600.0, 50.0) == HostMemory(1650.0 + context, 8000.0)


def test_without_a_gpu_there_is_nothing_to_share():
    assert host_memory(1.0, 1.0) is None


@pytest.fixture
def counters(monkeypatch):
    """torch's counters of a GPU's memory, and the second on which the driver is asked."""
    values = {"reserved": 0, "allocated": 0, "resets": 0, "now": 100.0}
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: values["reserved"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: values["allocated"])
    reset = lambda device: values.update(resets=values["resets"] + 1)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    monkeypatch.setattr(gpu_use.time, "monotonic", lambda: values["now"])
    return values


def test_a_copy_is_counted_with_its_bytes_and_none_without_a_copy():
    before = transfers_so_far()
    moved(torch.zeros(3, 2), "meta")  # six float32 of four bytes
    moved(torch.zeros(5, dtype=torch.int64), torch.device("meta"))
    moved(torch.zeros(7), "cpu")
    to_array(to_tensor(to_array(torch.ones(4))))
    assert transfers_so_far().since(before) == Transfers(2, 6 * 4 + 5 * 8, 0, 0)


def test_a_thread_counts_its_own_copies():
    before, theirs = transfers_so_far(), []

    def copy_one():
        moved(torch.zeros(2), "meta")
        theirs.append(transfers_so_far())

    thread = threading.Thread(target=copy_one)
    thread.start()
    thread.join()
    assert theirs == [Transfers(1, 8, 0, 0)]
    assert transfers_so_far() == before


def test_a_cpu_measures_nothing():
    setting = prepare(small_recipe(FOUR_CLIENTS, "fedavg") | {"sampling": {"count": 2}}).setting
    assert type(make_host(setting)) is Host
    assert type(make_host(setting, 0, "meta")) is WatchedHost


def test_a_gpus_memory_and_share_are_those_of_torch_and_the_driver(counters):
    watch = GpuWatch(CUDA, utilisation=lambda device: 40)
    watch.begin()
    counters.update(reserved=1536 * MIB, allocated=512 * MIB)
    moved(torch.zeros(3), "meta")
    assert watch.end() == GpuUse(1536.0, 512.0, 0.4, Transfers(1, 12, 0, 0))
    assert counters["resets"] == 1
    watch.begin()
    assert watch.end().transfers == Transfers()


def test_the_driver_is_asked_once_in_its_sample_period(counters):
    answers = iter([40, 80])
    watch = GpuWatch(CUDA, utilisation=lambda device: next(answers))
    shares = []
    for seconds in (0.0, 0.1, 0.1):
        counters["now"] += seconds
        shares.append(watch.end().busy)
    assert shares == [0.4, 0.4, 0.8]


@pytest.mark.parametrize("error", [ModuleNotFoundError("nvidia-ml-py"), RuntimeError("NVML")])
def test_a_share_that_cannot_be_had_is_none_and_is_not_asked_for_again(error, counters):
    asked = []

    def utilisation(device):
        asked.append(device)
        raise error

    watch = GpuWatch(CUDA, utilisation)
    for _ in range(2):
        counters["now"] += 10
        assert watch.end().busy is None
    assert asked == [CUDA]


def step(host, seconds, use):
    return StepFacts({}, {}, (), {}, 0, host, "here", seconds, 9.0, gpu=use)


def row_of(first, second):
    """The row of a host whose steps took one second and three."""
    traffic = Traffic()
    traffic.facts = [(0, step(0, 1.0, first)), (1, step(0, 3.0, second))]
    (row,) = host_rows(1, traffic)
    return row


def test_a_rounds_row_has_the_last_memory_the_highest_peak_and_all_copies():
    row = row_of(
        GpuUse(300.0, 200.0, 0.2, Transfers(1, 8, 2, 16)), GpuUse(400.0, 100.0, 0.6, Transfers(1, 4, 0, 0))
    )
    assert (row["gpu_mb"], row["gpu_peak_mb"]) == (400.0, 200.0)
    assert row["gpu_busy"] == pytest.approx((1 * 0.2 + 3 * 0.6) / 4)
    copies = [row[f"gpu_{what}_{way}"] for way in ("in", "out") for what in ("copies", "bytes")]
    assert copies == [2, 12, 2, 16]


def test_a_rows_ids_have_each_client_once_and_its_clients_each_step():
    traffic = Traffic()
    traffic.facts = [(client, step(0, 1.0, None)) for client in (3, 1, 3)]
    (row,) = host_rows(1, traffic)
    assert (row["client_ids"], row["clients"], row["busy_s"]) == ([1, 3], 3, 3.0)


def test_a_row_has_nulls_for_what_no_step_measured():
    row = row_of(GpuUse(transfers=Transfers(1, 8, 0, 0)), GpuUse())
    assert row["gpu_mb"] is row["gpu_peak_mb"] is row["gpu_busy"] is None
    assert row["gpu_bytes_in"] == 8
    assert not [name for name in row_of(None, None) if name.startswith("gpu")]
