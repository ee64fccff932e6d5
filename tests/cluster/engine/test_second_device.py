"""Every method on a second device that refuses to mix with the CPU: the CPU's bits, few copies."""

import json
import math
import subprocess
import sys

import pytest
from paths import ROOT

from rayfed_kd.algorithms import METHODS

SCRIPT = ROOT / "tests/helpers/second_device_runs.py"
# FedFTG's ensemble of `torch.func.vmap` does not run on that device.
NAMES = [name for name in METHODS if name != "fedftg"]
OTHERS = ["attack", "buffered", "codecs", "adam", "scores", "streamed", "streamed public"]
CHECKS = """
import torch
from second_device import COPIES, NAME, install

install()
here, there = torch.ones(2), torch.ones(2, device=NAME)
assert there.device.type == NAME and not COPIES
def refused(wrong, said):
    try:
        wrong()
    except RuntimeError as error:
        return said in str(error)

assert refused(lambda: here + there, "a tensor on cpu")
assert refused(lambda: torch.nn.functional.linear(there, here), "a tensor on cpu")
assert (there + 1).tolist() == [2, 2] and [copy[:2] for copy in COPIES] == [("cpu", 2)]
assert torch.tensor([1.0, 2.0, 3.0], device=NAME).device.type == NAME
assert [copy[:2] for copy in COPIES] == [("cpu", 2), (NAME, 3)]
images = torch.ones(1, 1, 8, 8, device=NAME)
for wrong in (
    lambda: there.cumsum(0),
    lambda: torch.bincount(there.long(), there),
    lambda: torch.ops.aten._adaptive_avg_pool2d_backward(images[..., :3, :3], images),
):
    assert refused(wrong, "no deterministic kernel")
assert there.long().cumsum(0).tolist() == [1, 2] and torch.bincount(there.long()).tolist() == [0, 2]
part = there[:1]
part.mul_(5)
assert there.cpu().tolist() == [5, 1]
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lines():
    """Case -> what the script says of it. In a process of its own, as the device stays."""
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_device_refuses_to_mix_and_counts_copies():
    code = f"import sys\nsys.path.insert(0, {str(ROOT / 'tests/helpers')!r})\n{CHECKS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_bits_are_those_of_the_cpu(name, lines):
    assert lines[name]["fault"] == ""


def test_each_thing_is_copied_once(lines):
    """FedAvg: two rounds of four clients with an epoch each, host and server in one process.

    A broadcast goes down once a round, and once more for the evaluation. Up goes one vector a reply, and the
    outcome of an evaluation. Batches are drawn as two lists of numbers an epoch, none a batch.
    """
    copies = lines["fedavg"]["copies"]
    assert copies["other rayfed_kd/protocol/messages.py:to_tensor"] == 2 + 2
    assert copies["cpu rayfed_kd/protocol/messages.py:to_array"] == 2 * 4 + 2
    assert copies["other rayfed_kd/protocol/contexts.py:batches"] == 2 * 4 * 2
    # Images and labels, and the two numbers of their scale, at the start, for host and server together.
    assert copies["other rayfed_kd/data/batches.py:_to_place"] == 2
    assert copies["other rayfed_kd/data/batches.py:__init__"] == 2


def test_samples_that_stay_in_memory_are_copied_batch_by_batch(lines):
    """With `gpu_data: batches` images and labels of each batch go to the device, the data set never does.

    FedAvg, as above: two rounds, batches of 32, and an evaluation in one batch. Of an epoch's two lists of
    numbers one goes there: samples are looked up where they lie.
    """
    copies = lines["streamed"]["copies"]
    batches = sum(math.ceil(size / 32) for size in lines["streamed"]["sizes"])
    assert copies["other rayfed_kd/data/batches.py:_sent"] == 2 * 2 * (batches + 1)
    assert copies["other rayfed_kd/protocol/contexts.py:batches"] == 2 * 4
    assert "other rayfed_kd/data/batches.py:_to_place" not in copies
    assert "other cluster/engine/evaluating.py:_pool" not in copies
    assert [row["gpu_copies_in"] for row in lines["streamed"]["hosts"]] == [1 + 4 + 2 * batches] * 2


def test_table_of_hosts_counts_a_rounds_copies(lines):
    """FedAvg, as above: a round's four steps, without its evaluation.

    In: the broadcast once, and two lists of int64 numbers, as long as the client's samples, for its epoch.
    Out: a reply each. The table `messages` has every client's message and reply of both rounds.
    """
    line = lines["fedavg"]
    assert [row["host"] for row in line["hosts"]] == [0, 0]
    for row in line["hosts"]:
        assert (row["gpu_copies_in"], row["gpu_copies_out"]) == (1 + 4 * 2, 4)
        assert row["gpu_bytes_in"] == line["sent"]["down"] / (2 * 4) + 2 * 8 * sum(line["sizes"])
        assert row["gpu_bytes_out"] == line["sent"]["up"] / 2
        # torch's memory and the driver's numbers are of GPUs alone: null, and not zero.
        assert row["gpu_mb"] is row["gpu_peak_mb"] is row["gpu_busy"] is None


def test_a_state_that_stays_on_its_host_is_copied_by_checkpoints_alone(lines):
    """MOON keeps the client's last model: its steps copy what FedAvg's do.

    In one process all states stay where they are. Nothing but the two replies of four clients and the
    outcomes of two evaluations comes back in the whole run, which writes no checkpoint.
    """
    moon, fedavg = lines["moon"], lines["fedavg"]
    for row, plain in zip(moon["hosts"], fedavg["hosts"], strict=True):
        assert all(row[name] == plain[name] for name in plain if name.startswith("gpu_"))
    assert moon["copies"]["cpu rayfed_kd/protocol/messages.py:to_array"] == 2 * 4 + 2
