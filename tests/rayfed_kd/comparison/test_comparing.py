"""Comparisons: one table over seeds, the paper's rows beside, nothing run twice."""

import io
import math
import re
import time
from functools import partial

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console
from small_recipes import THREE_CLIENTS

import rayfed_kd.experiment.running
from rayfed_kd.cli.main import commands
from rayfed_kd.comparison.agreement import rank_correlation
from rayfed_kd.comparison.comparing import compare
from rayfed_kd.comparison.planning import plan
from rayfed_kd.comparison.published import published_lines, published_rows
from rayfed_kd.comparison.runs import run_each
from rayfed_kd.comparison.studies import Study, in_words, read_study, studies_of
from rayfed_kd.comparison.table import Comparison, Curve
from rayfed_kd.errors import DataError, RecipeError, RunError
from rayfed_kd.report.papers import comparison_section


def write(path, content):
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def study(tmp_path):
    base = write(tmp_path / "base.yaml", THREE_CLIENTS)
    runs = [{"label": "A"}, {"label": "B b", "overrides": ["local.optimizer.lr=0.1"]}]
    content = {"base": str(base), "folder": str(tmp_path / "runs"), "seeds": [1, 2], "runs": runs}
    return Study.model_validate(content)


def local(told=None):
    tell = (lambda line: None) if told is None else told.append
    return partial(run_each, local=True, address=None, jobs=None, tell=tell)


def made(**study):
    """A seen twice: official test .5, .6, .4 and .7, .6, .8; B once the seed 1 has run: .9."""
    content = {"folder": "x", "seeds": [1, 2], "runs": [{"label": "A"}, {"label": "B"}], "last": 2, **study}
    rounds, seconds, nothing = [2, 4, 6], [1.0, 2.0, 3.0], [None, None, None]
    found = {
        ("A", 1): Curve(rounds, [0.5, 0.6, 0.4], [10, 20, 30], seconds),
        ("A", 2): Curve(rounds, [0.7, 0.6, 0.8], [10, 20, 30], seconds),
        ("B", 1): Curve(rounds, [0.1, 0.2, 0.9], [5, 10, 15], nothing),
        ("B", 2): Curve(rounds, [0.1, 0.2, 0.3], [5, 10, 15], nothing),
    }
    curves = {(label, "aca", seed, "server_accuracy"): curve for (label, seed), curve in found.items()}
    return Comparison(Study.model_validate(content), curves)


def test_last_best_and_mean_of_the_last_by_hand():
    """A: last .4, .8: 60 and sqrt(.08) = 28.28; best .6, .8: 70 and 14.14; last two .5, .7: 60 and 14.14."""
    comparison = made()
    headline = "official test %"
    means = f"{headline}, mean of last 2 evaluations"
    assert comparison.header() == ["run", headline, f"{headline}, best", means]
    assert comparison.cells()[0] == ["A (aca)", "60.00 ± 28.28", "70.00 ± 14.14", "60.00 ± 14.14"]


def test_headline_is_the_metric_that_the_study_names():
    """UA beside an official test: A's last two .3, .5 and .2, .2 make 40 and 20: 30 and 14.14."""
    comparison = made(headline="ua")
    for seed, values in ((1, [0.9, 0.3, 0.5]), (2, [0.1, 0.2, 0.2])):
        comparison.curves["A", "aca", seed, "ua"] = Curve([2, 4, 6], values, [1, 2, 3], [None] * 3)
    assert comparison.header()[-2:] == ["UA %, best", "UA %, mean of last 2 evaluations"]
    assert comparison.cells()[0][-1] == "30.00 ± 14.14"
    assert comparison.cells()[1][-1] == ""
    with pytest.raises(RecipeError, match="headline: no row has wlp; there are server_accuracy"):
        made(headline="wlp").header()


def test_cost_to_a_number_by_hand():
    """.6: A at rounds 4 and 2, mean 3, 20 and 10 bytes; B in one seed at 6."""
    comparison = made(target=0.6)
    assert comparison.costs(("A", "aca")) == {"rounds": [4, 2], "bytes": [20, 10], "sim_s": [2.0, 1.0]}
    assert comparison.costs(("B", "aca"))["rounds"] == [6, None]
    assert [line[4] for line in comparison.cells()] == ["3.0", "6.0 (1 of 2 seeds)"]
    assert comparison.header()[-1] == "simulated s to target"


def test_target_is_a_runs_own_best_seed_by_seed():
    """A's best is .6 in seed 1 and .8 in seed 2; B reaches the first in round 6 and never the second."""
    comparison = made(target={"run": "A"})
    assert comparison.costs(("A", "aca"))["rounds"] == [4, 6]
    assert comparison.costs(("B", "aca"))["rounds"] == [6, None]


def test_target_of_a_run_without_the_headline_is_pointed_out():
    """A has official tests only, as a server's model may; the rows are compared by UA."""
    comparison = made(target={"run": "A"}, headline="ua")
    comparison.curves["B", "aca", 1, "ua"] = Curve([2], [0.5], [1], [None])
    assert comparison.cells()[1][-2:] == ["", ""]
    assert "The target's run has no UA %, so there is no target." in comparison.remarks()


def test_relative_change_against_another_row_by_hand():
    """A ends at .4 and .8, B at .9 and .3: .9 / .4 - 1 = 1.25 and .3 / .8 - 1 = -.625, mean .3125."""
    comparison = made(runs=[{"label": "A"}, {"label": "B", "against": "A"}])
    assert comparison.changes(("B", "aca")) == pytest.approx([1.25, -0.625])
    assert comparison.header()[-1] == "relative change %"
    assert [line[-1] for line in comparison.cells()] == ["", "+31.25 ± 132.58"]
    assert comparison.remarks() == [
        "Relative change: of the last accuracy (official test, else AMP, else UA) of B to A."
    ]


def test_a_row_without_an_accuracy_in_common_has_no_change():
    comparison = made(runs=[{"label": "A"}, {"label": "B", "against": "A"}])
    curves = {key: curve for key, curve in comparison.curves.items() if key[0] == "B"}
    assert Comparison(comparison.study, curves).changes(("B", "aca")) == []


def test_bar_in_a_label_stays_in_its_cell_of_the_markdown_table_and_of_the_report():
    """One cell more would shift the numbers below the wrong heading."""
    made_so = made(runs=[{"label": "A"}, {"label": "B"}])
    runs = [{"label": "A | a"}, {"label": "B|"}]
    study = Study.model_validate({**made_so.study.model_dump(), "runs": runs})
    names = {"A": "A | a", "B": "B|"}
    text = Comparison(study, {(names[k[0]], *k[1:]): c for k, c in made_so.curves.items()}).markdown()
    assert r"| A \| a (aca) | 60.00" in text
    (table,) = comparison_section("x", text).tables
    assert [row[0] for row in table.rows] == ["A | a (aca)", "B| (aca)"]
    assert {len(row) for row in (table.header, *table.rows)} == {4}


def test_latex_is_for_booktabs_and_escaped():
    lines = made(title="x").latex().splitlines()
    assert lines[0] == "% x; last round, mean ± sample deviation over 2 seeds."
    assert lines[1] == r"\begin{tabular}{lrrr}"
    assert lines[2] == r"\toprule"
    assert lines[5] == r"A (aca) & 60.00 $\pm$ 28.28 & 70.00 $\pm$ 14.14 & 60.00 $\pm$ 14.14 \\"
    assert r"official test \%" in lines[3]
    assert lines[-3] == r"\bottomrule"
    assert lines[-1] == r"\end{tabular}"


def test_latex_prints_what_was_shortened_and_not_only_as_a_comment():
    named = {
        "paper": "kdia",
        "table": "2",
        "where": {"dataset": "CIFAR-10", "beta": 0.1},
        "differs": "20 % of N",
    }
    note = made(title="x; 5 rounds & 1 seed", published=[named]).latex().splitlines()[-2]
    assert note.startswith(
        r"\multicolumn{4}{p{\linewidth}}{\footnotesize x; 5 rounds \& 1 seed; last round, "
    )
    assert r"here differs: 20 \% of N" in note
    assert note.endswith(r"} \\")


def test_missing_data_of_a_later_table_is_told_before_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYFED_KD_DATA", str(tmp_path))
    study = {
        "base": str(write(tmp_path / "base.yaml", THREE_CLIENTS)),
        "folder": str(tmp_path / "runs"),
        "runs": [{"label": "A"}],
        "tables": {"there": {}, "missing": {"overrides": ["data={name: mnist}"]}},
    }
    told = CliRunner().invoke(commands, ["compare", str(write(tmp_path / "study.yaml", study)), "--local"])
    assert isinstance(told.exception, DataError)
    assert "data mnist is not in" in str(told.exception)
    assert not (tmp_path / "runs").exists()


def test_published_rows_stand_beneath_with_what_differs():
    named = {"paper": "kdia", "table": "2", "where": {"dataset": "CIFAR-10", "beta": 0.1}, "differs": "N 50"}
    text = made(published=[named]).markdown()
    assert "Published, kdia table 2 (dataset CIFAR-10, beta 0.1); here differs: N 50:" in text
    assert "| KDIA (T) | accuracy 57.29 ± 0.97 |" in text


KDIA = {"paper": "kdia", "table": "2", "where": {"dataset": "CIFAR-10", "beta": 0.1}}


def test_printed_value_stands_beside_the_row_that_the_study_links():
    """KDIA (T) 57.29 and FedAvg 50.41 in KDIA's Table 2."""
    runs = [{"label": "A", "published": {"aca": "KDIA (T)"}}, {"label": "B", "published": "FedAvg"}]
    comparison = made(runs=runs, published=[KDIA])
    assert comparison.header()[-1] == "published accuracy"
    assert [line[-1] for line in comparison.cells()] == ["57.29 ± 0.97", "50.41 ± 1.91"]
    ((heading, _),) = comparison.published()
    assert "rank correlation" not in heading  # two rows have no order to speak of


@pytest.mark.parametrize("limits", [{"rows": ["A"]}, {"models": ["aca"]}])
def test_printed_value_of_another_side_stays_away(limits):
    """B is another row, and its model another, than the table is about."""
    comparison = made(
        runs=[{"label": "A", "published": "FedAvg"}, {"label": "B", "published": "FedAvg"}],
        published=[{**KDIA, **limits}],
    )
    for seed in (1, 2):
        comparison.curves["B", "server", seed, "server_accuracy"] = comparison.curves.pop(
            ("B", "aca", seed, "server_accuracy")
        )
    assert [line[-1] for line in comparison.cells()] == ["50.41 ± 1.91", ""]


def test_agreement_of_both_orders_by_hand():
    """Ours A .4, B .9, C .2; printed (T) before (S) before FedAvg: two pairs of three agree, (2 - 1) / 3."""
    runs = [
        {"label": "A", "published": "KDIA (T)"},
        {"label": "B", "published": "KDIA (S)"},
        {"label": "C", "published": "FedAvg"},
    ]
    comparison = made(runs=runs, published=[KDIA], seeds=[1])
    comparison.curves["C", "aca", 1, "server_accuracy"] = Curve([2], [0.2], [1], [None])
    ((heading, _),) = comparison.published()
    assert heading.endswith("of accuracy against our official test %, last, over 3 rows: 0.33")


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6),  # five pairs one way, one the other
        ([1, 1, 2], [1, 2, 3], 2 / 6**0.5),
    ],
)
def test_rank_correlation_by_hand(first, second, tau):
    assert rank_correlation(first, second) == pytest.approx(tau)


def test_order_of_equal_rows_is_no_order():
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))


@pytest.fixture
def tables(tmp_path):
    """Two tables, learning rates .1 and .2, and a quick version of the second with one round."""
    base = write(tmp_path / "base.yaml", THREE_CLIENTS)
    content = {
        "title": "T",
        "base": str(base),
        "folder": str(tmp_path / "runs"),
        "seeds": [1, 2, 3],
        "tables": {
            "lr .1": {"overrides": ["local.optimizer.lr=0.1"], "where": {"beta": 0.1}},
            "lr .2": {"overrides": ["local.optimizer.lr=0.2"], "where": {"beta": 0.5}},
        },
        "runs": [{"label": "A"}, {"label": "B", "overrides": ["method={name: fedprox}"]}],
        "published": [{**KDIA, "where": {"dataset": "CIFAR-10"}, "differs": "digits"}],
        "quick": {
            "title": "one round",
            "overrides": ["rounds=1"],
            "seeds": [4],
            "tables": ["lr .2"],
            "runs": {"B": ["method.mu=0.5"]},
            "differs": "one round for two",
        },
    }
    return write(tmp_path / "study.yaml", content)


def test_study_of_several_tables_is_one_study_each(tables, tmp_path):
    first, second = studies_of([str(tables)])
    assert (first.title, second.title) == ("T; lr .1", "T; lr .2")
    assert [study.folder for study in (first, second)] == [str(tmp_path / f"runs/lr-.{i}") for i in (1, 2)]
    assert second.published[0].where == {"dataset": "CIFAR-10", "beta": 0.5}
    assert [one.overrides for one in plan(second) if one.seed == 1] == [
        ("local.optimizer.lr=0.2", "seed=1"),
        ("local.optimizer.lr=0.2", "method={name: fedprox}", "seed=1"),
    ]


def test_table_has_its_own_base_and_rows(tables):
    content = yaml.safe_load(tables.read_text())
    content["tables"]["lr .1"] |= {"base": "other.yaml", "runs": {"B": ["method.mu=0.1"]}, "without": ["A"]}
    first, second = studies_of([str(write(tables, content))])
    assert [run.label for run in first.runs] == ["B"]
    assert plan(first)[0].overrides[-2:] == ("method.mu=0.1", "seed=1")
    assert (plan(first)[0].source, plan(second)[0].source) == ("other.yaml", content["base"])
    content["tables"]["lr .1"]["without"] = ["C"]
    with pytest.raises(RecipeError, match=r"tables.lr .1.without: 'C': there are A, B"):
        studies_of([str(write(tables, content))])


def test_quick_version_is_named_and_lies_apart(tables, tmp_path):
    (study,) = studies_of([str(tables)], quick=True)
    assert (study.title, study.seeds) == ("T; quick: one round; lr .2", [4])
    assert study.folder == str(tmp_path / "runs-quick/lr-.2")
    assert study.published[0].differs == "digits; one round for two"
    assert plan(study)[1].overrides == (
        "rounds=1",
        "local.optimizer.lr=0.2",
        "method={name: fedprox}",
        "method.mu=0.5",
        "seed=4",
    )


def test_quick_true_on_the_command_line_runs_it(tables, tmp_path):
    shown = CliRunner().invoke(commands, ["compare", str(tables), "quick=true", "--local"])
    assert shown.exit_code == 0, shown.output
    assert "quick: one round" in shown.output
    assert (tmp_path / "runs-quick" / "lr-.2" / "comparison.md").exists()
    assert not (tmp_path / "runs").exists()


def test_what_the_command_line_changes_is_told_on_the_screen_in_the_files_and_on_the_page(tables, tmp_path):
    words = ["compare", str(tables), "quick=true", "--local", "--seeds", "2", "local.batch_size=32"]
    shown = CliRunner().invoke(commands, words)
    assert shown.exit_code == 0, shown.output
    told = "changed on the command line: local.batch_size=32, seeds 1, 2 for 4"
    folder = tmp_path / "runs-quick" / "lr-.2"
    title = f"T; quick: one round; lr .2; {told}; last round, mean ± sample deviation over 2 seeds"
    differs = f"here differs: digits; one round for two; {told}"
    for text in (shown.output, *((folder / f"comparison.{kind}").read_text() for kind in ("md", "tex"))):
        assert title in text
        assert differs in text
    section = comparison_section("x", (folder / "comparison.md").read_text())
    assert title in section.tables[0].title
    assert differs in section.tables[1].title


def test_labels_with_commas_stand_in_quotes_in_a_sentence():
    assert in_words(["A"]) == "A"
    assert in_words(["A", "B, server", "C"]) == 'A, "B, server" and C'


def test_study_as_its_file_has_it_tells_of_no_change(tables):
    asked = studies_of([str(tables)], seeds=3)
    assert asked == studies_of([str(tables)])
    assert "changed" not in asked[0].title


def test_terminal_shows_an_overrides_brackets_in_the_title():
    console = Console(file=io.StringIO(), width=200)
    changed = Comparison(made(title="T").study.changed(["x=[a, b]"]), made().curves)
    console.print(changed.rich())
    assert "x=[a, b]" in console.file.getvalue()


def test_rows_own_settings_that_the_command_line_takes_the_place_of_are_told(study):
    """C and D set another rate, D within the whole optimiser; B has the number that is asked for."""
    rates = {
        "C": ["local.optimizer.lr=0.5"],
        "D": ["local.optimizer={name: sgd, lr: 0.5}"],
        "E": ["rounds=7"],
    }
    runs = [*study.runs, *({"label": label, "overrides": own} for label, own in rates.items())]
    changed = Study.model_validate({**study.model_dump(), "runs": runs}).changed(
        ["local.optimizer.lr=0.1", "local.optimizer={name: adam}"]
    )
    assert changed.title == (
        "Comparison; changed on the command line: "
        "local.optimizer.lr=0.1 (rows C and D: 0.5 -> 0.1), "
        "local.optimizer={name: adam} (row B b: {lr: 0.1} -> {name: adam}; row C: {lr: 0.5} -> {name: adam}; "
        "row D: {name: sgd, lr: 0.5} -> {name: adam})"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("roundz=1", "roundz is no key of a recipe. Did you mean rounds?"),
        ("method.moo=1", "method.moo is no option of fedprox. There are: "),
        ("rounds", "override 'rounds': expected key.path=value"),
    ],
)
def test_mistake_in_a_row_names_the_study_the_row_and_its_recipe(tables, tmp_path, override, message):
    content = yaml.safe_load(tables.read_text())
    content["runs"][1]["overrides"].append(override)
    write(tables, content)
    shown = CliRunner().invoke(commands, ["compare", str(tables), "--local"])
    assert isinstance(shown.exception, RecipeError)
    assert str(shown.exception).startswith(f"{tables}, row B: {tmp_path / 'base.yaml'}: {message}")


@pytest.mark.parametrize("override", ["local.epochs=[1", "rounds"])
def test_override_that_cannot_be_read_is_answered(study, override):
    with pytest.raises(RecipeError, match=re.escape(f"override {override!r}: ")):
        study.changed([override])


def test_mistake_of_the_study_itself_names_its_file(tables):
    write(tables, {**yaml.safe_load(tables.read_text()), "target": {"run": "Z"}})
    with pytest.raises(RecipeError, match=rf"{tables}: target.run: 'Z' is no row"):
        compare(studies_of([str(tables)])[0], run=local())


def test_rows_chosen_on_the_command_line_are_told_and_their_runs_are_found_by_the_whole_study(
    tables, tmp_path
):
    words = ["compare", str(tables), "quick=true", "--local"]
    few = CliRunner().invoke(commands, [*words, "--only", "B"])
    assert few.exit_code == 0, few.output
    assert "changed on the command line: of 2 rows only B; last round" in few.output
    assert "A (aca)" not in few.output
    whole = CliRunner().invoke(commands, words)
    assert whole.exit_code == 0, whole.output
    assert "1 of 2 runs are there" in whole.output
    written = (tmp_path / "runs-quick" / "lr-.2" / "comparison.md").read_text()
    assert "A (aca)" in written
    assert "changed on the command line" not in written


def test_table_chosen_on_the_command_line_is_the_only_one(tables):
    (study,) = studies_of([str(tables)], tables=["lr .2"], without=["A"])
    assert study.title == "T; lr .2; changed on the command line: without A"
    assert [run.label for run in study.runs] == ["B"]


def test_table_that_has_none_of_the_chosen_rows_is_left_out(tables):
    content = yaml.safe_load(tables.read_text())
    content["tables"]["lr .1"]["without"] = ["A"]
    (study,) = studies_of([str(write(tables, content))], only=["A"])
    assert study.title.startswith("T; lr .2; ")


def test_what_is_held_against_a_row_that_is_left_out_goes_with_it_and_is_told(tables):
    content = yaml.safe_load(tables.read_text())
    content["runs"][1]["against"] = "A"
    content["target"] = {"run": "A"}
    content["published"] = [{**KDIA, "rows": ["A"]}, {**KDIA, "rows": ["A", "B"]}]
    (study, _) = studies_of([str(write(tables, content))], without=["A"])
    assert (study.target, study.runs[0].against) == (None, None)
    assert [named.rows for named in study.published] == [["B"]]
    told = "without A, no target, which was A's best, no relative change of B, which was to A"
    assert study.title == f"T; lr .1; changed on the command line: {told}"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"only": ["BB"]}, "--only: 'BB': there are A, B"),
        ({"without": ["C"]}, "--without: 'C': there are A, B"),
        ({"tables": ["lr .3"]}, "--table: 'lr .3': there are lr .1, lr .2. Did you mean lr .2?"),
        ({"only": ["A"], "without": ["A"]}, "--only, --without: they leave no row"),
    ],
)
def test_choice_of_what_is_not_there_is_answered_with_what_is(tables, chosen, message):
    with pytest.raises(RecipeError) as caught:
        studies_of([str(tables)], **chosen)
    assert message in str(caught.value)


def test_table_of_a_study_that_has_but_one_is_refused():
    with pytest.raises(RecipeError, match="--table 'x': this study has one table, without a name"):
        studies_of(["configs/quickstart.yaml"], tables=["x"])


def test_recipes_compared_without_a_study_tell_their_overrides(tmp_path):
    source = write(tmp_path / "one.yaml", THREE_CLIENTS)
    (study,) = studies_of([str(source)], ["rounds=3"], seeds=2)
    assert study.title == "Comparison; changed on the command line: rounds=3"
    assert plan(study)[1].overrides == ("rounds=3", "seed=2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quick": None}, "this study has no quick version"),
        ({"quick": {"title": "q", "runs": {"C": []}}}, "quick.runs: 'C': there are A, B"),
        ({"quick": {"title": "q", "tables": ["lr 1"]}}, "quick.tables: 'lr 1': there are lr .1, lr .2"),
    ],
)
def test_bad_quick_version_is_refused(tables, changes, message):
    write(tables, {**yaml.safe_load(tables.read_text()), **changes})
    with pytest.raises(RecipeError) as caught:
        studies_of([str(tables)], quick=True)
    assert message in str(caught.value)


def test_bad_recipe_of_the_second_table_is_found_before_the_first_runs(tables, tmp_path):
    content = yaml.safe_load(tables.read_text())
    content["tables"]["lr .2"]["overrides"] = ["local.optimizer.lr=-1"]
    write(tables, content)
    shown = CliRunner().invoke(commands, ["compare", str(tables), "--local"])
    assert isinstance(shown.exception, RecipeError)
    assert not (tmp_path / "runs").exists()


def test_published_data_holds_what_the_papers_print():
    assert published_lines("dafkd", "3a", {"dataset": "MNIST", "alpha": 0.1})[0] == {
        "label": "DaFKD",
        "values": {"accuracy": (95.56, 0.41)},
    }
    (amp,) = published_rows("fedkf", "V", {"method": "FedAvg", "alpha": 0.01, "metric": "AMP"})
    assert (amp["mean"], amp["std"]) == (55.42, 2.78)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kdai", "2", {}), "Did you mean kdia?"),
        (("kdia", "20", {}), "kdia has 2, 3, 4, 5, 6, 7"),
        (("kdia", "2", {"alpha": 0.1}), "no 'alpha' in kdia's table 2; there are beta,"),
        (("kdia", "2", {"beta": 7}), "no row of kdia's table 2 has {'beta': 7}"),
    ],
)
def test_what_is_not_published_is_told(arguments, message):
    with pytest.raises(RecipeError) as caught:
        published_rows(*arguments)
    assert message in str(caught.value)


def test_finished_runs_are_not_run_again(study, tmp_path):
    told = []
    first = compare(study, run=local(told), tell=told.append)
    assert len(told) == 8
    again = compare(study, run=local(told), tell=told.append)
    assert told[8:] == [f"4 of 4 runs are there in {study.folder}"]
    assert again.markdown() == first.markdown()
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "A-seed1",
        "A-seed2",
        "B-b-seed1",
        "B-b-seed2",
    }


def test_long_run_tells_now_and_then_where_it_is(study, monkeypatch):
    monkeypatch.setattr("rayfed_kd.comparison.runs.PROGRESS_S", 0.0)
    told = []
    compare(study, run=local(told))
    of_one = [line for line in told if line.startswith("A, seed 1:")]
    rounds = [line for line in of_one if "round " in line]
    assert [line.partition("  ")[0] for line in rounds] == [
        "A, seed 1: round 1/2"
    ]  # the end tells of the last
    assert of_one.index(rounds[0]) == 1


def test_finished_run_tells_its_seconds_in_all_and_in_rounds(study, monkeypatch):
    """What is not in rounds is data, partition, start and end."""
    told, ready = [], rayfed_kd.experiment.running.make_ready
    monkeypatch.setattr(
        rayfed_kd.experiment.running, "make_ready", lambda recipe: time.sleep(0.5) or ready(recipe)
    )
    compare(study.model_copy(update={"seeds": [1]}), run=local(told))
    found = re.search(r"A, seed 1: aca amp .*; ([\d.]+) s in all, ([\d.]+) s in rounds$", told[1])
    assert float(found[1]) >= float(found[2]) + 0.4  # both are rounded


def test_half_finished_run_is_made_again(study, tmp_path):
    (tmp_path / "runs" / "A-seed1.running").mkdir(parents=True)
    compare(study.model_copy(update={"seeds": [1]}), run=local())
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"A-seed1", "B-b-seed1"}


def test_rows_share_partition_and_initial_weights(study):
    compare(study, run=local())
    for seed in (1, 2):
        first, second = (pq.read_table(p.folder / "partition.parquet") for p in plan(study) if p.seed == seed)
        assert first.equals(second)


ONE_ACTOR = "placement.clients_per_actor=3"


@pytest.mark.parametrize("seeds", [[1], pytest.param([1, 2], marks=pytest.mark.slow)])
def test_runs_at_a_time_on_one_ray_give_the_local_results(seeds, study, shared_ray, tmp_path):
    placed = [run.model_copy(update={"overrides": [*run.overrides, ONE_ACTOR]}) for run in study.runs]
    study = study.model_copy(update={"seeds": seeds, "runs": placed})
    expected = compare(study, run=local())
    on_ray = study.model_copy(update={"folder": str(tmp_path / "ray")})
    told = []
    found = compare(on_ray, run=partial(run_each, local=False, address=None, jobs=2, tell=told.append))
    assert found.curves == expected.curves
    starts = [line for line in told if "starts" in line]
    assert len(starts) == 2 * len(seeds)
    assert told[1] in starts  # the second began before the first was over


def test_written_files(study, tmp_path):
    comparison = compare(study, run=local())
    names = {path.name for path in comparison.write(tmp_path / "out")}
    assert {"comparison.md", "comparison.tex", "comparison.parquet", "curves-amp.png"} <= names
    rows = pq.read_table(tmp_path / "out" / "comparison.parquet").to_pylist()
    amp = next(r for r in rows if (r["run"], r["metric"], r["statistic"]) == ("A", "amp", "last"))
    assert amp["mean"] == pytest.approx(sum(amp["seeds"]) / 2)
    assert (tmp_path / "out" / "tensorboard" / "A (aca)").is_dir()


def test_recipes_on_the_command_line_are_rows(tmp_path):
    first, second = (write(tmp_path / f"{name}.yaml", THREE_CLIENTS) for name in ("one", "two"))
    (study,) = studies_of([str(first), str(second)], seeds=3, folder="elsewhere")
    assert [run.label for run in study.runs] == ["one", "two"]
    assert (study.seeds, study.folder) == ([1, 2, 3], "elsewhere")


def test_bad_recipe_is_found_before_the_first_run(study, tmp_path):
    runs = [*study.runs, study.runs[0].model_copy(update={"label": "bad", "overrides": ["roundz=2"]})]
    with pytest.raises(RecipeError, match=r"roundz is no key of a recipe. Did you mean rounds\?"):
        compare(study.model_copy(update={"runs": runs}), run=local())
    assert not (tmp_path / "runs").exists()


def test_rows_of_different_data_are_refused_with_both(study):
    other = study.runs[0].model_copy(update={"label": "C", "overrides": ["data.fraction=0.2"]})
    with pytest.raises(RecipeError) as caught:
        compare(study.model_copy(update={"runs": [*study.runs, other]}), run=local())
    assert "A has data name digits, fraction 0.1, C has name digits, fraction 0.2" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"run": "Z"}}, "target.run: 'Z' is no row"),
        ({"runs": [{"label": "A/B"}, {"label": "A B"}]}, "two rows have the same label"),
        ({"runs": [{"label": "A"}, {"label": "A"}]}, "two rows have the same label"),
        ({"base": None}, "runs: A: no base recipe"),
        ({"published": [{"paper": "kdia", "table": "99"}]}, "published.table: '99'"),
        ({"runs": [{"label": "A", "against": "Z"}]}, "runs: A: against: 'Z' is no row"),
        ({"published": [{**KDIA, "rows": ["Z"]}]}, "published.rows: 'Z': there are A, B b"),
        ({"published": [{**KDIA, "metric": "AMP"}]}, "published.metric: 'AMP': table 2 prints accuracy"),
        (
            {"published": [KDIA], "runs": [{"label": "A", "published": "FedAgv"}]},
            "published: 'FedAgv' is not printed; there are",
        ),
    ],
)
def test_bad_study_is_refused(study, changes, message):
    with pytest.raises(RecipeError) as caught:
        compare(Study.model_validate({**study.model_dump(), **changes}), run=local())
    assert message in str(caught.value)


def test_failed_run_names_itself(study, monkeypatch):
    def fail(*arguments, **options):
        raise RunError("round 3, client 1")

    monkeypatch.setattr("rayfed_kd.comparison.runs._run_local", fail)
    with pytest.raises(RunError, match="A, seed 1: round 3, client 1"):
        compare(study, run=local())


def test_misspelt_key_of_a_study_is_told(tmp_path):
    path = write(tmp_path / "study.yaml", {"folder": "x", "run": []})
    with pytest.raises(RecipeError, match=r"run is no key .*Did you mean runs\?"):
        read_study(path)


def test_finished_run_of_another_recipe_is_refused_with_the_difference(study):
    compare(study, run=local())
    with pytest.raises(RecipeError, match=r"A-seed1 holds another run: rounds was 2, is 3\."):
        compare(study.changed(["rounds=3"]), run=local())


def test_recipe_that_fails_its_checks_is_found_before_any_other_row_runs(study, tmp_path):
    wrong = study.runs[0].model_copy(update={"label": "C", "overrides": ["model={name: resnet9}"]})
    with pytest.raises(RecipeError, match="resnet9"):
        compare(study.model_copy(update={"runs": [*study.runs, wrong]}), run=local())
    assert not (tmp_path / "runs").exists()


def test_rows_that_differ_are_named_beneath_the_table_with_what_they_differ_in(study):
    changes = {"C": ["partition.public={fraction: 0.5}", "rounds=1"], "D": ["rounds=1"], "E": ["rounds=1"]}
    others = [{"label": label, "overrides": own} for label, own in changes.items()]
    runs = [study.runs[0].model_dump(), *others]
    asked = Study.model_validate({**study.model_dump(), "runs": runs, "seeds": [1]})
    found = compare(asked, run=local())
    assert found.remarks() == [
        "Rows differ in partition.public: {fraction: 0.5, labels: true} in C; null in the others.",
        "Rows differ in rounds: 2 in A; 1 in the others.",
    ]
    assert found.caption() == "Comparison; last round, one seed."
    table, *beneath = found.markdown().split("\n\n")[1:]
    assert table.startswith("| run |")
    assert beneath == found.remarks()
    assert all(f"% {remark}" in found.latex() for remark in found.remarks())
    section = comparison_section("x", found.markdown())
    assert section.notes == found.remarks()
    assert [table.title for table in section.tables] == [found.caption()]


def test_two_rows_that_differ_are_both_named(study):
    """B b has another rate; neither is "the others"."""
    changed = study.model_copy(update={"seeds": [1]})
    rates = "{name: sgd, lr: %s, momentum: 0.0, nesterov: false, weight_decay: 0.0}"
    told = f"Rows differ in local.optimizer: {rates % 0.1} in B b; {rates % 0.01} in A."
    assert compare(changed, run=local()).remarks() == [told]


def test_model_that_no_row_evaluates_is_pointed_out(study):
    found = compare(study.model_copy(update={"models": {"acas": "A"}, "seeds": [1]}), run=local())
    assert "Models: no row evaluates acas." in found.remarks()


def test_target_in_percent_is_refused():
    with pytest.raises(ValueError, match="less than or equal to 1"):
        made(target=95.0)


def test_study_given_to_run_is_told(tmp_path):
    from rayfed_kd.recipe.loading import load_recipe

    path = write(tmp_path / "study.yaml", {"folder": "x", "runs": [{"label": "A"}]})
    with pytest.raises(RecipeError, match="rayfed-kd compare runs it"):
        load_recipe(path)


def test_folder_of_a_run_is_not_a_comparisons_to_set(tmp_path):
    with pytest.raises(RecipeError, match="a comparison gives each run its folder; expected --folder"):
        studies_of(["configs/quickstart.yaml"], ["results.folder=there"])
