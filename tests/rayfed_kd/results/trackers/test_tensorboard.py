"""A round's scalars, and the event file read back as TensorBoard reads it."""

import shutil

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.trackers.tensorboard import TensorBoard
from rayfed_kd.results.trackers.tracker import TrackedRound, TrackedRun
from rayfed_kd.results.trackers.tracking import round_scalars

ROW = dict.fromkeys(SCHEMAS["rounds"].names) | {"client_s": 2.0, "bytes_up": 10, "cohort": 4}
METRICS = [
    {"round": 7, "sim_s": None, "model": "global", "amp": 0.5, "wlp": 0.25, "server_loss": None},
    {"round": 7, "sim_s": None, "model": "oca", "amp": 0.75, "wlp": 0.5, "server_loss": 1.5},
]


def points(folder, kind, tag):
    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    return getattr(found, kind)(tag)


def told(round_index, scalars=None, histograms=None, images=None):
    return TrackedRound(round_index, scalars or {}, histograms or {}, images or {}, {})


@pytest.fixture
def board(tmp_path):
    made = TensorBoard()
    made.start(TrackedRun(tmp_path, {"rounds": 3}, "", "", None))
    made.round(told(0))
    return made


def test_scalars_are_named_by_what_they_are_and_by_model():
    spent = {"epsilon": 2.5, "local_epsilon": None, "clip": 1.0, "delta": 0.1}
    row = {**ROW, "logged": {"ce": 1.25}}
    named = {"time/client_s": 2.0, "bytes/up": 10, "round/cohort": 4, "logged/ce": 1.25, "amp/global": 0.5}
    named |= {"wlp/global": 0.25, "amp/oca": 0.75, "wlp/oca": 0.5, "server_loss/oca": 1.5}
    named |= {"privacy/epsilon": 2.5, "privacy/clip": 1.0}
    assert round_scalars({"rounds": [row], "metrics": METRICS, "privacy": [spent]}) == named


def test_simulated_seconds_are_a_second_axis(board, tmp_path):
    board.round(told(1, {"logged/ce": 1.25, "time/sim_s": 60.2}))
    board.round(told(2, {"logged/ce": 1.0, "time/sim_s": 119.9}))
    board.end({"rounds": 2}, [])
    for tag, steps in (("logged/ce", [1, 2]), ("sim/logged/ce", [60, 120])):
        found = [(one.step, one.value) for one in points(tmp_path, "Scalars", tag)]
        assert found == [(steps[0], 1.25), (steps[1], 1.0)]


def test_histograms_pictures_and_the_configuration(board, tmp_path):
    path = tmp_path / "samples.png"
    Image.fromarray(np.zeros((8, 12, 4), dtype=np.uint8)).save(path)
    board.round(told(3, {}, {"client_accuracy/global": [0.0, 0.5, 0.5, 1.0]}, {"samples": path}))
    board.end({"rounds": 3}, [path, tmp_path / "summary.json"])
    (histogram,) = points(tmp_path, "Histograms", "client_accuracy/global")
    assert (histogram.step, histogram.histogram_value.num) == (3, 4)
    first, last = points(tmp_path, "Images", "samples")
    assert (first.step, first.width, first.height) == (3, 12, 8)
    assert first.encoded_image_string == last.encoded_image_string == path.read_bytes()
    (text,) = points(tmp_path, "Tensors", "config/text_summary")
    assert b"rounds: 3" in text.tensor_proto.string_val[0]


def hosts(count):
    return [{"host": h, "rss_mb": 100.0 + h, "gpu_mb": None, "busy_s": 2.0 * h} for h in range(count)]


def test_of_many_hosts_only_the_extremes_are_shown():
    few, many = (round_scalars({"hosts": hosts(count)}) for count in (3, 100))
    columns = ("busy_s", "rss_mb")  # none of what no host can measure
    assert set(many) == {f"hosts/{name}/{end}" for name in columns for end in ("least", "most")}
    assert set(few) == set(many) | {f"hosts/{name}/{h}" for name in columns for h in range(3)}
    assert (few["hosts/busy_s/1"], few["hosts/busy_s/most"], many["hosts/busy_s/most"]) == (2.0, 4.0, 198.0)


def test_a_full_disk_is_told_by_the_next_call_and_not_by_a_stack_trace(board, tmp_path, capsys):
    shutil.rmtree(tmp_path / "tensorboard")
    with pytest.raises(OSError, match="No such file"):
        while True:
            board.round(told(1, {"logged/ce": 1.25}))
            board._writer.flush()  # else the thread writes every five seconds
    assert capsys.readouterr().err == ""
