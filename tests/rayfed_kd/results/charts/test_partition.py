"""Pictures and tables of a partition show its counts, legibly."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from partitions import partition_of

from rayfed_kd.results.charts.figure import save_figure
from rayfed_kd.results.charts.partition import DrawnPartition, bubble_figure

NONE = np.zeros(0, dtype=np.int64)

pytestmark = pytest.mark.pictures


def names(classes):
    return tuple(f"a long class name {c}" for c in range(classes))


def overlaps(labels, renderer):
    boxes = [label.get_window_extent(renderer) for label in labels if label.get_text()]
    return any(a.overlaps(b) for a, b in pairwise(boxes))


def test_bubbles_lie_at_client_and_class():
    axes = bubble_figure(np.array([[5, 0], [0, 7], [1, 0]]), ("a", "b"), "p").axes[0]
    assert axes.collections[0].get_offsets().tolist() == [[0, 0], [1, 1], [2, 0]]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (10, 100), (100, 10), (100, 100)])
def test_labels_do_not_run_into_each_other(clients, classes):
    figure = bubble_figure(np.ones((clients, classes), dtype=np.int64), names(classes), "p")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        assert not overlaps(axis.get_ticklabels(), renderer)


@pytest.mark.parametrize(("clients", "classes"), [(10, 10), (20, 26), (10, 100), (100, 10), (100, 100)])
def test_equal_bubbles_do_not_touch(clients, classes):
    figure = bubble_figure(np.ones((clients, classes), dtype=np.int64), names(classes), "p")
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    (left, bottom), (right, top) = axes.transData.transform([(0, 0), (1, 1)])
    diameter = np.sqrt(axes.collections[0].get_sizes().max()) / 72 * figure.dpi
    assert diameter < min(right - left, top - bottom)


@pytest.mark.filterwarnings("error")
def test_no_samples_at_all_can_be_drawn(tmp_path):
    """Clients and classes are there, and no bubble."""
    figure = bubble_figure(np.zeros((3, 2), dtype=np.int64), ("a", "b"), "p")
    save_figure(figure, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    axes = figure.axes[0]
    assert [place for points in axes.collections for place in points.get_offsets()] == []
    assert axes.xaxis.get_ticklocs().tolist() == [0, 1, 2]


def test_pictures_leave_no_global_state(tmp_path):
    partition = partition_of(
        (np.array([0, 1]), np.array([2])), (NONE, NONE), {"scheme": "dirichlet", "options": {"alpha": 0.1}}
    )
    path, _ = DrawnPartition(partition, np.array([0, 1, 1]), ("a", "b")).save(tmp_path)
    assert path.name == "partition-bubbles.png" and path.read_bytes().startswith(b"\x89PNG")
    assert plt.get_fignums() == []


def test_table_counts_parts_classes_and_largest_share():
    """Client 0 has labels 0, 1, 1, 1: three quarters are class 1; client 1 has nothing."""
    partition = partition_of((np.array([0, 1, 2]), NONE), (np.array([3]), NONE))
    table = DrawnPartition(partition, np.array([0, 1, 1, 1]), ("a", "b", "c")).screen_table()
    first, second = zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    assert first == ("0", "3", "1", "2", "b: 75 %")
    assert second == ("1", "0", "0", "0", "a: 0 %")


def test_console_table_says_that_it_ends_at_a_hundred():
    partition = partition_of(tuple(np.array([c]) for c in range(101)), (NONE,) * 101)
    table = DrawnPartition(partition, np.zeros(101, dtype=np.int64), ("0",)).screen_table()
    assert (table.row_count, str(table.title)) == (
        100,
        "101 clients, 101 training samples; the first 100 are shown",
    )


def test_console_table_names_classes_as_the_data_do():
    """Of four samples three are of the second class; what looks like rich's markup is a name like others."""
    partition = partition_of((np.arange(4),), (NONE,))
    table = DrawnPartition(partition, np.array([1, 1, 0, 1]), ("low", "[bold]high")).screen_table()
    assert [str(cell) for cell in table.columns[-1].cells] == ["[bold]high: 75 %"]
