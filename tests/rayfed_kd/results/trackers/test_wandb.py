"""Weights & Biases for real, offline: the records in the file that `wandb sync` would send."""

import json
import struct

import pytest
from recording_tracker import cut_off

import rayfed_kd

pytest.importorskip("wandb", exc_type=ImportError)
BLOCK, HEAD, MAGIC = 32768, struct.Struct("<IHB"), 7  # LevelDB's log, behind seven bytes of W&B's


def records(folder):
    """Kind -> records of the one offline run in a run's folder."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, place, part, found = file.read_bytes(), MAGIC, b"", {}
    while place + HEAD.size <= len(data):
        if BLOCK - place % BLOCK < HEAD.size:
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = HEAD.unpack_from(data, place)
        part += data[place + HEAD.size : place + HEAD.size + size]
        place += HEAD.size + size
        if kind in (1, 4):  # whole, or the last part
            record, part = Record.FromString(part), b""
            name = record.WhichOneof("record_type")
            found.setdefault(name, []).append(getattr(record, name))
    return found


def values(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_a_run_that_was_cut_off_is_one_offline_run_with_each_round_once(tmp_path):
    cut_off(tmp_path / "run", ["wandb"])
    begun = json.loads((tmp_path / "run/environment.json").read_text())["id"]
    result = rayfed_kd.resume(tmp_path / "run", local=True)
    found = records(tmp_path / "run")
    (run,) = found["run"]
    assert (run.run_id, run.display_name, run.project) == (begun, "run", "rayfed-kd")
    assert values(run.config.update)["method"] == {"name": "fedavg"}
    rounds = [values(record.item) for record in found["history"]]
    assert [row["_step"] for row in rounds] == [0, 1, 2, 3, 4, 5]
    assert [row["amp/global"] for row in rounds[1:]] == result.table("metrics")["amp"].to_pylist()
    assert rounds[0]["partition/_type"] == "image-file"
    assert found["exit"][0].exit_code == 0
    summary = {}
    for record in found["summary"]:
        summary |= values(record.update)
    assert summary["models"] == result.summary["models"]
    (copies,) = (tmp_path / "run").glob("wandb/offline-run-*/files/run")
    assert json.loads((copies / "summary.json").read_text()) == result.summary
