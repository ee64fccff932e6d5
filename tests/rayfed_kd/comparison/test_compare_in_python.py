"""`rayfed_kd.compare` and `rayfed_kd.report`: what the commands do, with recipes as mappings."""

import pyarrow.parquet as pq
import pytest
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.errors import RecipeError

FEDPROX = {**THREE_CLIENTS, "method": {"name": "fedprox"}}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder, lines = tmp_path_factory.mktemp("compared") / "study", []
    recipes = {"A": THREE_CLIENTS, "B": FEDPROX}
    results = rayfed_kd.compare(recipes, rounds=1, seeds=2, folder=folder, local=True, tell=lines.append)
    return results, lines, folder, recipes


def test_recipes_as_mappings_are_rows(compared):
    (result,), lines, folder, _ = compared
    names = sorted(path.name for path in folder.glob("*-seed?"))
    assert names == ["A-seed1", "A-seed2", "B-seed1", "B-seed2"]
    assert rayfed_kd.prepare(folder / "B-seed2" / "config.yaml").recipe.method.name == "fedprox"
    assert sum("starts in" in line for line in lines) == 4
    assert result.folder == folder


def test_run_that_diverged_or_was_ended_earlier_is_named_beneath_the_table(tmp_path):
    """One step of this rate leaves finite weights, whose logits are none."""
    local = {"batch_size": 1000, "epochs": 1, "optimizer": {"name": "sgd", "lr": 1e25}}
    recipes, end = {"A": {**THREE_CLIENTS, "local": local}}, iter(()).__next__  # it raises StopIteration
    (result,) = rayfed_kd.compare(recipes, folder=tmp_path, local=True, on_event=lambda event: end())
    text = " ".join(str(result).split())  # its lines are wrapped
    for what in ("global gives NaN or infinite values for 3 clients", "on_event raised StopIteration"):
        assert f"A, seed 1: {what} in round 1" in text


FEW = {**THREE_CLIENTS, "evaluation": {"clients": 2}}


@pytest.mark.parametrize(("second", "whose"), [(FEW, "all runs"), (THREE_CLIENTS, '"A, seed 1"')])
def test_of_how_many_clients_the_metrics_are_is_told_beneath_the_table(second, whose, tmp_path):
    (result,) = rayfed_kd.compare({"A": FEW, "B": second}, rounds=1, folder=tmp_path, local=True)
    told = "2 of 3 clients are evaluated (evaluation.clients = 2); the metrics over clients are of these"
    assert result.comparison.notes[-1] == f"{whose}: {told}"


def test_headline_on_an_official_test_set_that_the_data_lack_is_refused_before_round_1(tmp_path):
    runs = [{"label": label, "base": THREE_CLIENTS} for label in "AB"]
    study = {"folder": str(tmp_path), "runs": runs}
    claim = {"says": "s", "higher": "A", "lower": "B", "metric": "server_accuracy"}
    for named, where in ({"headline": "server_accuracy"}, "headline"), ({"claims": [claim]}, r"claims\[0\]"):
        with pytest.raises(RecipeError, match=f"{where}: the data have no official test set"):
            rayfed_kd.compare({**study, **named}, local=True)
    with pytest.raises(RecipeError, match=r"headline: no row has local_macro_f1: evaluation\.metrics is w"):
        rayfed_kd.compare({**study, "headline": "local_macro_f1"}, local=True)
    assert not [*tmp_path.iterdir()]
    (tmp_path / "A-seed1").mkdir()
    (tmp_path / "A-seed1" / "notes.txt").touch()
    with pytest.raises(RecipeError, match="A-seed1 is there, without a finished run"):
        rayfed_kd.compare(study, local=True)


@pytest.mark.parametrize(("apart", "told"), [(True, 1), (False, 0)])
def test_rows_of_other_splits_are_told_of(apart, told, tmp_path):
    public = {"partition": {**THREE_CLIENTS["partition"], "public": {"count": 20, "apart": apart}}}
    recipes = {"A": THREE_CLIENTS, "B": {**THREE_CLIENTS, **public}}
    (result,) = rayfed_kd.compare(recipes, rounds=1, folder=tmp_path, local=True)
    assert str(result).count("Rows with another partition have other samples at their clients") == told


def test_result_is_the_table_its_files_and_its_curves(compared):
    (result,), _, folder, _ = compared
    text = (folder / "comparison.md").read_text()
    assert str(result) == text.rstrip("\n") == result._repr_markdown_()
    assert "| A (global) |" in text and "| B (global) |" in text
    assert result.table().equals(pq.read_table(folder / "comparison.parquet"))
    assert folder / "curves-amp.png" in result.files
    labels = [line.get_label() for line in result.plot("amp").axes[0].get_lines()]
    assert labels == ["A (global)", "B (global)"]
    with pytest.raises(RecipeError, match="no row has server_accuracy; there are amp"):
        result.plot("server_accuracy")


def test_report_takes_results_and_folders(compared, tmp_path):
    (result,), _, folder, _ = compared
    html, markdown = rayfed_kd.report(result, to=tmp_path / "a.html")
    assert "A-seed1" in markdown.read_text() and html.read_text().startswith("<!")
    rayfed_kd.report(folder / "A-seed1", str(folder / "B-seed1"), to=str(tmp_path / "b.html"))
    assert (tmp_path / "b.html").is_file()
    with pytest.raises(RecipeError, match="expected at least one run"):
        rayfed_kd.report(to=tmp_path / "c.html")


def test_study_as_a_mapping_is_the_study_of_a_file():
    content = {"folder": "runs/x", "base": "quickstart", "seeds": [1, 2], "runs": [{"label": "A"}]}
    (study,) = select_studies(content, ["rounds=1"])
    assert (study.labels, study.seeds, study.runs[0].overrides) == (["A"], [1, 2], ["rounds=1"])
    with pytest.raises(RecipeError, match="foldr is no key"):
        select_studies({**content, "foldr": "x"})


@pytest.mark.parametrize("sources", [THREE_CLIENTS, {"A": 3}])
def test_mapping_that_is_neither_is_told(sources):
    with pytest.raises(RecipeError, match="expected a mapping from labels to recipes"):
        rayfed_kd.compare(sources, local=True)
