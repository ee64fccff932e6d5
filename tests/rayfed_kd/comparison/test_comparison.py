"""The numbers of a comparison, by hand."""

import pytest
from known_comparison import KDIA, any_costs, compared
from pydantic import ValidationError

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.curves import Curve
from rayfed_kd.comparison.table_text import mean_of_last, remarks
from rayfed_kd.comparison.writers.all_tables import cost_table, main_table, published_tables
from rayfed_kd.comparison.writers.parquet import comparison_table
from rayfed_kd.errors import RecipeError


def test_last_best_and_mean_of_the_last_by_hand():
    """A: last .4, .8: 60 and sqrt(.08) = 28.28; best .6, .8: 70 and 14.14; last two .5, .7: 60 and 14.14."""
    comparison = compared()
    headline = "official test %"
    means = f"{headline}, mean of last 2 evaluations"
    assert main_table(comparison).header[:-1] == ["run", headline, f"{headline}, best", means]
    assert main_table(comparison).rows[0][:-1] == [
        "A (global)",
        "60.00 ± 28.28",
        "70.00 ± 14.14",
        "60.00 ± 14.14",
    ]


def test_columns_of_one_seed_have_the_types_of_several():
    assert comparison_table(compared(seeds=[1])).schema.equals(comparison_table(compared()).schema)


def test_one_evaluation_has_no_best_and_no_mean_of_the_last():
    """Of .8 and .6, A's last round, and .1 lower for B."""
    known = compared(baseline="A")
    curves = {
        key: Curve(curve.rounds[-1:], curve.values[-1:], any_costs(1)) for key, curve in known.curves.items()
    }
    comparison = Comparison(known.study, curves, known.totals)
    assert main_table(comparison).header == [
        "run",
        "official test %",
        "difference to A (global) [95 % interval]",
    ]
    assert all(len(line) == 3 for line in main_table(comparison).rows)
    assert any(
        note.startswith("Difference: official test %, last evaluation, less") for note in remarks(comparison)
    )


@pytest.mark.parametrize(("headline", "said"), [("server_accuracy", False), ("ua", True)])
def test_models_on_the_same_official_test_are_like_for_like(headline, said):
    known = compared(headline=headline)
    curves = {(*key[:3], "ua"): curve for key, curve in known.curves.items()} | dict(known.curves)
    own = {
        (key[0], "personal" if key[0] == "A" else "global", *key[2:]): curve for key, curve in curves.items()
    }
    comparison = Comparison(known.study, own, known.totals)
    assert any("not like for like" in note for note in comparison.all_notes) == said


def test_best_of_any_metric_is_of_the_round_that_is_best_by_the_headline():
    """The official test is best in round 4 of seed 1 and in round 6 of seed 2: UA .2 and .3, not .9."""
    comparison = compared()
    for seed, values in ((1, [0.9, 0.2, 0.1]), (2, [0.9, 0.1, 0.3])):
        comparison.curves["A", "global", seed, "ua"] = Curve([2, 4, 6], values, any_costs(3))
    assert comparison.values(("A", "global"), "ua", "best") == [0.2, 0.3]


def test_first_model_of_a_row_is_the_one_that_its_method_names_first():
    """A's method names its server before its clients; B's has one model."""
    claim = {"says": "A above B", "higher": "A", "lower": "B"}
    known = compared(baseline="A", claims=[claim])
    curves = {}
    for model in ("server", "personal"):
        for key, curve in known.curves.items():
            curves[(key[0], model if key[0] == "A" else "global", *key[2:])] = curve
    comparison = Comparison(known.study, curves, known.totals)
    assert comparison.rows == [("A", "server"), ("A", "personal"), ("B", "global")]
    assert comparison.baseline(("B", "global")) == ("A", "server")
    assert comparison.judged_claims()[0].higher == ("A", "server")


def test_headline_is_the_metric_that_the_study_names():
    """UA beside an official test: A's last two .3, .5 and .2, .2 make 40 and 20: 30 and 14.14."""
    comparison = compared(headline="ua")
    for seed, values in ((1, [0.9, 0.3, 0.5]), (2, [0.1, 0.2, 0.2])):
        comparison.curves["A", "global", seed, "ua"] = Curve([2, 4, 6], values, any_costs(3))
    # One row has UA: no differences.
    assert main_table(comparison).header[-2:] == ["UA %, best", "UA %, mean of last 2 evaluations"]
    assert main_table(comparison).rows[0][-1] == "30.00 ± 14.14"
    assert main_table(comparison).rows[1][-1] == ""
    with pytest.raises(RecipeError, match="headline: no row has wlp; there are server_accuracy"):
        main_table(compared(headline="wlp"))


def test_headline_without_a_name_is_the_metric_that_most_rows_have():
    """Two models have official tests; all three, one of them clients' own, have AMP."""
    comparison = compared()
    for row in (("A", "global"), ("B", "global"), ("B", "personal")):
        comparison.curves[(*row, 1, "amp")] = Curve([2], [0.5], any_costs(1))
    assert comparison.headline == "amp"


def test_cost_to_a_number_by_hand():
    """.6: A at rounds 4 and 2: 8 and 4 bytes up, 12 and 6 down; B in one seed at 6, of 3 x 2 and 3 x 3."""
    comparison = compared(target=0.6)
    assert comparison.costs(("A", "global")) == {
        "rounds": [4, 2],
        "bytes_up": [8, 4],
        "bytes_down": [12, 6],
        "bytes": [20, 10],
        "sim_s": [2.0, 1.0],
    }
    assert comparison.costs(("B", "global"))["rounds"] == [6, None]
    assert comparison.costs(("B", "global"))["bytes"] == [15, None]


def test_metric_that_recipes_name_may_be_better_the_smaller_it_is():
    """Its least values are best, .1 in round 2 and .2 in round 4; .2 or less is reached in rounds 2 and 4."""
    error = "local_calibration_error"
    comparison = compared(headline=error, target=0.2)
    for seed, values in ((1, [0.1, 0.3, 0.5]), (2, [0.3, 0.2, 0.4])):
        comparison.curves["A", "global", seed, error] = Curve([2, 4, 6], values, any_costs(3), better=min)
    assert comparison.metrics == ["server_accuracy", error]
    assert comparison.values(("A", "global"), error, "best") == [0.1, 0.2]
    assert comparison.values(("A", "global"), "server_accuracy", "best") == [0.5, 0.6]
    assert comparison.costs(("A", "global"))["rounds"] == [2, 4]
    assert main_table(comparison).header[2:4] == [error, f"{error}, best"]
    assert main_table(comparison).rows[0][2] == "0.4500 ± 0.0707"
    assert f"Smaller is better: {error}." in remarks(comparison)


def test_evaluations_without_a_finite_value_are_left_out_and_told():
    """The last round is none of the values; of the last two, the one that there is counts."""
    comparison, error = compared(), "local_own"
    comparison.curves["A", "global", 1, error] = Curve([2, 4], [0.1, 0.3], any_costs(2), evaluated=[2, 4, 6])
    statistics = ("last", "mean of last", "mean of all")
    values = [comparison.values(("A", "global"), error, one) for one in statistics]
    assert values == [[], [0.3], [0.2]]
    told = f"{error} of A (global): evaluations without a finite value are left out, with seeds 1 and 2."
    assert told.capitalize() in map(str.capitalize, remarks(comparison))
    comparison.curves["A", "global", 1, "server_accuracy"] = Curve([2], [0.1], any_costs(1))
    assert mean_of_last(comparison) == "mean of last 1 to 2 evaluations"


def test_study_names_only_metrics_that_there_may_be():
    compared(headline="official_macro_f1")
    claim = {"says": "s", "higher": "A", "lower": "B", "metric": "bytes"}
    with pytest.raises(ValidationError, match="statistic: bytes are those of the whole run"):
        compared(claims=[{**claim, "statistic": "last"}])
    with pytest.raises(ValidationError, match=r"'macro_f1' is no metric; there are amp, .* local_NAME"):
        compared(headline="macro_f1")


def test_target_is_a_runs_own_best_seed_by_seed():
    """A's best is .6 in seed 1 and .8 in seed 2; B reaches the first in round 6 and never the second.

    A model that the table does not show counts for nothing.
    """
    comparison = compared(target={"run": "A"}, models={"global": "G"})
    comparison.curves["A", "oca", 1, "server_accuracy"] = Curve([2], [0.95], any_costs(1))
    assert comparison.costs(("A", "global"))["rounds"] == [4, 6]
    assert comparison.costs(("B", "global"))["rounds"] == [6, None]


def test_target_of_a_run_without_the_headline_is_pointed_out():
    """A has official tests only, as a server's model may; the rows are compared by UA."""
    comparison = compared(target={"run": "A"}, headline="ua")
    comparison.curves["B", "global", 1, "ua"] = Curve([2], [0.5], any_costs(1))
    assert cost_table(comparison).rows[1][-5:] == [""] * 5
    assert "The target's run has no UA %, so there is no target." in remarks(comparison)


def test_a_row_may_have_a_baseline_of_its_own():
    comparison = compared(runs=[{"label": "A"}, {"label": "B", "against": "A"}], baseline="B")
    assert [comparison.baseline((label, "global")) for label in "AB"] == [("B", "global"), ("A", "global")]


def test_printed_value_stands_beside_the_row_that_the_study_links():
    """KDIA (T) 57.29 and FedAvg 50.41 in KDIA's Table 2."""
    runs = [{"label": "A", "published": {"global": "KDIA (T)"}}, {"label": "B", "published": "FedAvg"}]
    comparison = compared(runs=runs, published=[KDIA])
    assert main_table(comparison).header[-1] == "published accuracy"
    assert [line[-1] for line in main_table(comparison).rows] == ["57.29 ± 0.97", "50.41 ± 1.91"]
    (paper,) = published_tables(comparison)
    assert "rank correlation" not in paper.title  # two rows have no order to speak of


def test_metric_that_several_papers_print_has_a_column_for_each():
    """FedAvg: 50.41 in KDIA's Table 2, 95.16 in DaFKD's Table 1 on MNIST, alpha 0.1; AMP is FedKF's alone."""
    mnist, emnist = ({"dataset": name, "alpha": 0.1} for name in ("MNIST", "EMNIST"))
    dafkd = {"paper": "dafkd", "table": "1", "where": mnist}
    fedkf = {"paper": "fedkf", "table": "V", "where": emnist, "metric": "AMP"}
    runs = [{"label": "A", "published": "FedAvg"}, {"label": "B", "published": "FedProx"}]
    comparison = compared(runs=runs, published=[KDIA, dafkd, fedkf])
    assert main_table(comparison).header[-3:] == [
        "published accuracy (kdia)",
        "published accuracy (dafkd)",
        "published AMP",
    ]
    assert main_table(comparison).rows[0][-3:] == ["50.41 ± 1.91", "95.16 ± 0.79", "75.61 ± 0.92"]


def test_row_that_two_tables_of_a_paper_print_has_both_values():
    """FedAvg at beta 0.1 and 0.5: 50.41 and 64.36."""
    milder = {**KDIA, "where": {"dataset": "CIFAR-10", "beta": 0.5}}
    comparison = compared(runs=[{"label": "A", "published": "FedAvg"}], published=[KDIA, milder, KDIA])
    assert main_table(comparison).header[-2:] == [
        "published accuracy",
        "published accuracy, kdia table 2 (dataset CIFAR-10, beta 0.5)",
    ]
    assert main_table(comparison).rows[0][-2:] == ["50.41 ± 1.91", "64.36 ± 0.69"]


def test_row_with_fewer_seeds_than_the_caption_says_is_named():
    comparison = compared()
    assert not any("of the 2 seeds" in remark for remark in remarks(comparison))
    del comparison.curves["B", "global", 2, "server_accuracy"]
    assert "B (global): over 1 of the 2 seeds; the others have no official test %." in remarks(comparison)


@pytest.mark.parametrize("limits", [{"rows": ["A"]}, {"models": ["global"]}])
def test_printed_value_of_another_side_stays_away(limits):
    """B is another row, and its model another, than the table is about."""
    comparison = compared(
        runs=[{"label": "A", "published": "FedAvg"}, {"label": "B", "published": "FedAvg"}],
        published=[{**KDIA, **limits}],
    )
    for seed in (1, 2):
        comparison.curves["B", "server", seed, "server_accuracy"] = comparison.curves.pop(
            ("B", "global", seed, "server_accuracy")
        )
    assert [line[-1] for line in main_table(comparison).rows] == ["50.41 ± 1.91", ""]


def test_agreement_of_both_orders_by_hand():
    """Ours A .4, B .9, C .2; printed (T) before (S) before FedAvg: two pairs of three agree, (2 - 1) / 3."""
    runs = [
        {"label": "A", "published": "KDIA (T)"},
        {"label": "B", "published": "KDIA (S)"},
        {"label": "C", "published": "FedAvg"},
    ]
    comparison = compared(runs=runs, published=[KDIA], seeds=[1])
    comparison.curves["C", "global", 1, "server_accuracy"] = Curve([2], [0.2], any_costs(1))
    (paper,) = published_tables(comparison)
    assert paper.title.endswith("of accuracy against our official test %, last, over 3 rows: 0.33")
