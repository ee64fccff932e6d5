"""Pictures hold what they claim to show."""

import numpy as np
import pyarrow as pa
import pytest

from rayfed_kd.results.charts.bars import accuracy_histogram_figure
from rayfed_kd.results.charts.figure import save_figure
from rayfed_kd.results.charts.images import class_means_figure, sample_grid_figure
from rayfed_kd.results.charts.lines import curves_figure
from rayfed_kd.results.charts.partition import bubble_figure
from rayfed_kd.results.schemas import SCHEMAS

pytestmark = pytest.mark.pictures


def metrics(rows):
    return pa.table({c: [row.get(c) for row in rows] for c in SCHEMAS["metrics"].names}, SCHEMAS["metrics"])


def test_curves_have_a_line_per_model_in_percent():
    rows = [
        {"round": r, "model": m, "amp": r / 10, "fm": 0.1, "wlp": 0.0}
        for r in (1, 2)
        for m in ("global", "oca")
    ]
    axes = curves_figure(metrics(rows)).axes
    assert [a.get_title() for a in axes] == ["AMP %", "FM", "WLP %"]
    assert [line.get_label() for line in axes[0].lines] == ["global", "oca"]
    assert axes[0].lines[0].get_ydata().tolist() == [10.0, 20.0]


def test_histogram_shows_the_last_round_only():
    rows = [
        {"round": r, "client": c, "model": "global", "samples": 10, "correct": 5, "accuracy": 0.5 * (r == 2)}
        for r in (1, 2)
        for c in range(4)
    ]
    figure = accuracy_histogram_figure(pa.Table.from_pylist(rows, SCHEMAS["clients"]))
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    assert (sum(heights), heights[10]) == (4, 4)


@pytest.mark.parametrize("channels", [1, 3])
def test_samples_lie_on_one_canvas_with_their_classes(channels):
    images = np.random.default_rng(0).random((20, channels, 8, 8), dtype=np.float32)
    figure = sample_grid_figure(images, np.arange(20) % 3, ("a", "b", "c"))
    assert [text.get_text() for text in figure.axes[0].texts][:4] == ["a", "b", "c", "a"]


def test_class_never_predicted_stays_empty_and_says_zero(tmp_path):
    real = np.zeros((3, 1, 4, 4), dtype=np.float32)
    generated = real.copy()
    generated[1] = np.nan
    figure = class_means_figure(real, generated, ("a", "b", "c"), [5, 0, 2])
    assert [t.get_text() for t in figure.axes[0].texts] == ["a", "b", "c", "n=5", "n=0", "none", "n=2"]
    save_figure(figure, tmp_path / "f" / "means.png")
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["means.png"]


def test_more_than_a_hundred_clients_say_so():
    counts = np.ones((150, 4), dtype=np.int64)
    figure = bubble_figure(counts, tuple("abcd"), "iid")
    assert figure.axes[0].get_title() == "iid: first 100 of 150 clients"


def test_bubble_areas_are_in_proportion_to_samples():
    figure = bubble_figure(np.array([[100, 0], [25, 50]]), ("a", "b"), "p")
    sizes = figure.axes[0].collections[0].get_sizes()
    assert sizes / sizes.max() == pytest.approx([1.0, 0.25, 0.5])
