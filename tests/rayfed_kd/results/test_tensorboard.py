"""The event file read back as TensorBoard reads it."""

import shutil
import sys

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.tensorboard import SHOWN, RunWriter

ROW = {"wall_s": 3.5, "client_s": 2.0, "bytes_up": 10, "bytes_down": 30, "cohort": 4, "staleness": None}
METRICS = [
    {"round": 7, "model": "aca", "amp": 0.5, "wlp": 0.25, "server_loss": None},
    {"round": 7, "model": "oca", "amp": 0.75, "wlp": 0.5, "server_loss": 1.5},
]


def events(folder):
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def points(found, tag):
    return [(event.step, event.value) for event in found.Scalars(tag)]


@pytest.fixture
def writer(tmp_path):
    made = RunWriter(tmp_path)
    yield made
    made.close()


def test_scalars_stand_by_round_and_model(writer, tmp_path):
    writer.round(7, ROW, METRICS, {"ce": 1.25}, None)
    writer.close()
    found = events(tmp_path)
    assert points(found, "amp/aca") == [(7, 0.5)]
    assert points(found, "amp/oca") == [(7, 0.75)]
    assert points(found, "bytes/up") == [(7, 10.0)]
    assert points(found, "time/client_s") == [(7, 2.0)]
    assert points(found, "loss/ce") == [(7, 1.25)]


def test_values_that_are_none_have_no_scalar(writer, tmp_path):
    writer.round(7, ROW, METRICS, {}, None)
    writer.close()
    tags = events(tmp_path).Tags()["scalars"]
    assert "server_loss/oca" in tags
    assert not {"server_loss/aca", "round/staleness", "round/dropped"} & set(tags)


def test_without_a_clock_nothing_is_simulated(writer, tmp_path):
    writer.round(7, ROW, METRICS, {}, None)
    writer.close()
    assert not [tag for tag in events(tmp_path).Tags()["scalars"] if tag.startswith("sim/")]


def test_simulated_seconds_are_a_second_axis(writer, tmp_path):
    writer.round(1, ROW, METRICS, {"ce": 1.25}, 60.2)
    writer.round(2, ROW, METRICS, {"ce": 1.0}, 119.9)
    writer.close()
    found = events(tmp_path)
    assert points(found, "loss/ce") == [(1, 1.25), (2, 1.0)]
    assert points(found, "sim/loss/ce") == [(60, 1.25), (120, 1.0)]
    assert points(found, "sim/amp/aca") == [(60, 0.5), (120, 0.5)]


def test_every_shown_column_is_in_the_table():
    assert set(SHOWN) <= set(SCHEMAS["rounds"].names)


def test_histogram_counts_every_client(writer, tmp_path):
    writer.histogram("client_accuracy/aca", [0.0, 0.5, 0.5, 1.0], 3)
    writer.close()
    (event,) = events(tmp_path).Histograms("client_accuracy/aca")
    values = event.histogram_value
    assert (event.step, values.num, values.min, values.max, values.sum) == (3, 4, 0.0, 1.0, 2.0)


def test_picture_keeps_its_size(writer, tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(np.zeros((5, 9, 3), dtype=np.uint8)).save(path)
    writer.image("samples", path, 2)
    writer.close()
    (event,) = events(tmp_path).Images("samples")
    assert (event.step, event.width, event.height) == (2, 9, 5)


def test_configuration_is_told_as_text(writer, tmp_path):
    writer.text("config", "rounds: 3")
    writer.close()
    (event,) = events(tmp_path).Tensors("config/text_summary")
    assert event.tensor_proto.string_val[0] == b"rounds: 3"


def test_module_loads_without_torch_being_asked_for():
    assert "torch" not in sys.modules["rayfed_kd.results.tensorboard"].__dict__


def hosts(count):
    return [{"host": h, "rss_mb": 100.0 + h, "gpu_mb": 0.0, "busy_s": 2.0 * h} for h in range(count)]


def test_few_hosts_are_shown_each(writer, tmp_path):
    writer.round(7, ROW, METRICS, {}, None, hosts(3))
    writer.close()
    found = events(tmp_path)
    assert [points(found, f"hosts/busy_s/{h}") for h in range(3)] == [[(7, 0.0)], [(7, 2.0)], [(7, 4.0)]]
    assert points(found, "hosts/rss_mb/least") == [(7, 100.0)]
    assert points(found, "hosts/rss_mb/most") == [(7, 102.0)]


def test_what_a_host_cannot_measure_has_no_curve(writer, tmp_path):
    cpu = {**hosts(1)[0], "gpu_mb": None, "gpu_busy": None}
    gpu = {**hosts(2)[1], "gpu_mb": 512.0, "gpu_busy": 0.25, "gpu_bytes_out": 96}
    writer.round(7, ROW, METRICS, {}, None, [cpu, gpu])
    writer.close()
    found = events(tmp_path)
    tags = [tag for tag in found.Tags()["scalars"] if tag.startswith("hosts/gpu")]
    columns = ("gpu_busy", "gpu_bytes_out", "gpu_mb")
    assert sorted(tags) == [f"hosts/{column}/{end}" for column in columns for end in ("1", "least", "most")]
    assert points(found, "hosts/gpu_busy/least") == [(7, 0.25)]


def test_of_many_hosts_only_the_extremes_are_shown(writer, tmp_path):
    writer.round(7, ROW, METRICS, {}, None, hosts(100))
    writer.close()
    tags = [tag for tag in events(tmp_path).Tags()["scalars"] if tag.startswith("hosts/")]
    columns = ("busy_s", "gpu_mb", "rss_mb")
    assert sorted(tags) == [f"hosts/{column}/{end}" for column in columns for end in ("least", "most")]
    assert points(events(tmp_path), "hosts/busy_s/most") == [(7, 198.0)]


def test_a_full_disk_is_told_by_the_next_call_and_not_by_a_stack_trace(tmp_path, capsys):
    writer = RunWriter(tmp_path / "there")
    shutil.rmtree(tmp_path / "there")
    with pytest.raises(OSError, match="No such file"):
        while True:
            writer.round(7, ROW, METRICS, {}, None)
            writer.flush()
    assert capsys.readouterr().err == ""
