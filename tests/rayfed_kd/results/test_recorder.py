"""What a recorder draws of what a method shows, at the borders of what may be shown."""

from types import SimpleNamespace

import pytest
import torch
from small_recipes import THREE_CLIENTS

from rayfed_kd.cluster.server.round_tables import RoundRecord
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.files.whole import read_parquet
from rayfed_kd.protocol import Distribution, Samples
from rayfed_kd.results.recorder import RunRecorder
from rayfed_kd.results.round_pictures import RoundPictures

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture
def drawn(tmp_path):
    """Draws a distribution's series; gives the names of files."""

    def draw(**series):
        shown = Distribution({name: torch.tensor(values) for name, values in series.items()}, "weights")
        RoundPictures(tmp_path, prepare(THREE_CLIENTS).setting).draw_shown(1, "spread", shown)
        return sorted(path.name for path in (tmp_path / "figures").glob("spread*"))

    return draw


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [], "b": []}])
def test_distribution_without_a_value_is_not_drawn(series, drawn):
    assert drawn(**series) == []


def test_empty_series_beside_another_is_drawn(drawn, tmp_path):
    assert drawn(a=[], b=[1.0, 2.0]) == ["spread-000001.parquet", "spread-000001.png"]
    rows = read_parquet(tmp_path / "figures" / "spread-000001.parquet").to_pylist()
    assert [tuple(row.values()) for row in rows] == [("b", 0, 1.0), ("b", 1, 2.0)]


def test_values_that_are_not_finite_are_in_the_file_and_not_in_the_picture(drawn, tmp_path):
    drawn(a=[float("nan"), 1.0, 2.0, float("inf")])
    rows = read_parquet(tmp_path / "figures" / "spread-000001.parquet").to_pylist()
    assert [row["value"] for row in rows][1:] == [1.0, 2.0, float("inf")]


def test_samples_of_two_names_are_drawn_apart(tmp_path):
    pictures = RoundPictures(tmp_path, prepare(THREE_CLIENTS).setting)
    for name in ("samples", "others"):
        pictures.draw_shown(1, name, Samples(torch.zeros(2, 1, 8, 8), torch.arange(2)))
    pictures.draw_shown(1, "none", Samples(torch.zeros(0, 1, 8, 8), torch.arange(0)))
    assert len(list((tmp_path / "figures").iterdir())) == 4  # with the means of their classes


def test_tables_are_flushed_by_time_and_before_a_checkpoint(tmp_path, monkeypatch):
    """Not in each round, which a short one would wait for."""
    from rayfed_kd.results import recorder as module

    # When it was made; each round looks once, and again if it flushes.
    times = iter([0.0, 0.4, 0.9, 1.0, 1.0, 1.9])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    recorder = RunRecorder(tmp_path, prepare(THREE_CLIENTS).setting)
    synced = []
    monkeypatch.setattr(recorder._tables, "sync", lambda: synced.append(None))
    counts = []
    for round_index in range(1, 5):  # at 0.4, 0.9, 1.0 and 1.9 s
        row = {"round": round_index, "wall_s": 1.0, "sim_s": 0.0, "logged": {}, "cohort": 3}
        row |= dict.fromkeys(("bytes_up", "bytes_down"), 0)
        recorder.record(RoundRecord(round_index, {"rounds": [row], "metrics": []}))
        module.wait(recorder._pending)
        counts.append(len(synced))
    assert counts == [0, 0, 1, 1]
    recorder.flush(4)
    assert len(synced) == 2
