"""A result in Python: what it prints, draws and gives; who listens to a run; a partition without a run."""

import html
import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from small_recipes import THREE_MLPS

import rayfed_kd
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.header import describe_run
from rayfed_kd.experiment.progress import in_notebook, listeners
from rayfed_kd.experiment.result import Result
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.tables import read_table


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("result") / "run"
    return rayfed_kd.run(THREE_MLPS, {"results.folder": folder, "local.epochs": 2}, local=True, rounds=2)


def test_overrides_of_every_form_reach_the_run(result):
    recipe = rayfed_kd.prepare(result.folder / "config.yaml").recipe
    assert (recipe.rounds, recipe.local.epochs) == (2, 2)
    assert result.summary["rounds"] == 2


def test_recipes_section_local_is_not_taken_for_the_engine(tmp_path):
    with pytest.raises(RecipeError, match=r"local = \{'epochs': 1\}: expected True or False.*'local.epochs'"):
        rayfed_kd.run(THREE_MLPS, local={"epochs": 1})


def test_printed_result_is_its_summary(result):
    text = str(result)
    amp = f"{100 * result.summary['models']['global']['last']['amp']:.2f} %"
    assert "2 rounds, finished" in text and amp in text
    assert f"folder: {result.folder}" in text
    best = result.summary["models"]["global"]["best_round"]
    assert f"global, best round {best} " in text
    assert repr(result) == f"Result(folder={result.folder!r})"


def test_notebook_shows_the_same_text_with_names_escaped(result):
    assert html.unescape(result._repr_html_()) == f"<pre>{result}</pre>"
    values = dict.fromkeys(("amp", "fm", "wlp", "ua", "server_accuracy"))
    model = {"last": values, "best": values, "best_round": None, "best_by": None}
    odd = Result(result.folder, {**result.summary, "models": {"<b>": model}}, {}, {})
    assert "&lt;b&gt;" in odd._repr_html_() and "<b>" not in odd._repr_html_()


def test_tables_are_arrow_and_pandas(result):
    assert result.table("clients").equals(read_table(result.folder, "clients"))
    frame = result.table().to_pandas()
    assert frame["amp"].tolist() == result.table()["amp"].to_pylist()
    with pytest.raises(RecipeError, match=r"no table 'cleints'; there are rounds, .* Did you mean clients"):
        result.table("cleints")


def test_plot_has_a_line_of_every_evaluation(result):
    figure = result.plot()
    amp = figure.axes[0].get_lines()[0]
    assert amp.get_xdata().tolist() == [1, 2]
    assert np.allclose(amp.get_ydata(), [100 * value for value in result.table()["amp"].to_pylist()])
    unevaluated = Result(result.folder, {}, {"metrics": SCHEMAS["metrics"].empty_table()}, {})
    with pytest.raises(RecipeError, match="no round was evaluated"):
        unevaluated.plot()


def test_figure_shows_itself_in_a_notebook(result):
    """matplotlib's own formatter is there only after pyplot was imported."""
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


def test_result_of_a_finished_run_is_read_again(result):
    again = rayfed_kd.resume(result.folder, local=True)
    assert str(again) == str(result)
    assert again.summary["models"] == result.summary["models"]


EVENT = {
    "round": 1,
    "rounds": 2,
    "round_s": 1.0,
    "logged": {},
    "bytes_up": 1,
    "bytes_down": 1,
    "metrics": {"global": {"amp": 0.5}},
}


def test_line_of_progress_is_rewritten(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    on_event, tell = listeners(True, None, None)
    on_event({**EVENT, "round_s": 1000.0})
    on_event({**EVENT, "round": 2})
    tell("done")
    first, second, _ = sys.stdout.getvalue().removeprefix("\r").replace("\n", "\r").split("\r", 2)
    assert first == "round 1/2  1000.0 s  global amp 0.500  up 1 B down 1 B"
    assert second == "round 2/2  1.0 s  global amp 0.500  up 1 B down 1 B".ljust(len(first))
    assert sys.stdout.getvalue().endswith("B   \ndone\n")


def test_line_is_shown_in_a_notebook_alone(monkeypatch, capsys):
    def show(progress, on_event=None):
        listeners(progress, on_event, None)[0](EVENT)
        return capsys.readouterr().out

    assert not in_notebook()
    assert show(None) == ""
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1))
    )
    assert in_notebook()
    assert "round 1/2" in show(None)
    assert show(False) == ""
    heard = []
    assert show(None, heard.append) == ""
    assert heard == [EVENT]


def test_partition_is_drawn_without_a_run(tmp_path):
    drawn = rayfed_kd.partition(THREE_MLPS, {"partition.alpha": 0.1}, seed=3)
    setting = rayfed_kd.prepare(THREE_MLPS, ["partition.alpha=0.1", "seed=3"]).setting
    assert all(map(np.array_equal, drawn.partition.train, setting.partition.train))
    test_parts = [len(part) for part in setting.partition.test]
    assert drawn.counts.sum(axis=1).tolist() == (setting.partition.sizes + test_parts).tolist()
    assert "3 clients" in str(drawn) and str(drawn) in drawn._repr_html_()
    assert drawn.plot().axes[0].get_title() == "dirichlet (alpha 0.1)"
    paths = drawn.save(tmp_path / "out")
    changes = {"partition.alpha": 0.1, "partition.file": paths[-1]}
    facts = describe_run(rayfed_kd.prepare(THREE_MLPS, changes), "", "")
    assert facts["clients"] == f"3, 3 a round; from {paths[-1]}"
    again = rayfed_kd.partition(THREE_MLPS, changes, seed=4)
    assert all(map(np.array_equal, drawn.partition.train, again.partition.train))
