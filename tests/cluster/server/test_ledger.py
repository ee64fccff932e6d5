"""Bytes, counted by one rule: elements x element size."""

import pytest

from rayfed_kd.cluster.server.traffic import Ledger
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Simulated
from rayfed_kd.protocol.wire import PartSize

DOWN = {"student": "weights", "teacher": "weights", "help": Simulated("labels")}
DECLARED = {"down": DOWN, "up": {"logits": "logits"}}


def test_two_models_of_a_hundred_floats_are_800_bytes():
    ledger = Ledger(DECLARED)
    ledger.count(3, "down", {"student": PartSize(100, 400, 400), "teacher": PartSize(100, 400, 400)}, 0)
    assert ledger.rows(7) == [
        {
            "round": 7,
            "client": 3,
            "direction": "down",
            "kind": "weights",
            "bytes": 800,
            "raw_bytes": 800,
            "parts": 2,
        }
    ]


def test_metadata_and_simulation_are_counted_apart():
    ledger = Ledger(DECLARED)
    ledger.count(0, "down", {"student": PartSize(10, 40, 40), "help": PartSize(10, 20, 80)}, 2)
    assert {row["kind"]: (row["bytes"], row["raw_bytes"]) for row in ledger.rows(1)} == {
        "weights": (40, 40),
        "simulation": (20, 80),
        "metadata": (16, 16),
    }
    assert ledger.total("down") == 40
    assert ledger.total("up") == 0


def test_ten_class_logit_vector_is_forty_bytes():
    """FedGEMS, Table 6: 0.0390625 KiB; 16 clients x 5,000 samples give 3125 KiB."""
    ledger = Ledger(DECLARED)
    for client in range(16):
        ledger.count(client, "up", {"logits": PartSize(5000 * 10, 4 * 5000 * 10, 4 * 5000 * 10)}, 0)
    assert ledger.total("up") / 1024 == 3125.0


def test_undeclared_part_is_refused_with_the_nearest():
    with pytest.raises(RunError, match=r"'studnt' goes down undeclared.*Did you mean student\?"):
        Ledger(DECLARED).count(0, "down", {"studnt": PartSize(1, 4, 4)}, 0)
