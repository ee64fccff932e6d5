"""Paired differences, their intervals and verdicts, by hand and by the printed table of Student's t."""

import math
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from known_comparison import any_costs, compared, run_locally

from rayfed_kd.comparison.checking import check_study
from rayfed_kd.comparison.compare import compare_runs as compare
from rayfed_kd.comparison.compare import write_comparison
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.curves import Curve
from rayfed_kd.comparison.differences import Difference, JudgedClaim, after_holm, paired_difference, student_t
from rayfed_kd.comparison.studies import Claim, Study
from rayfed_kd.comparison.study_changes import change_study, without_rows
from rayfed_kd.comparison.table_text import difference_text, remarks
from rayfed_kd.comparison.writers.all_tables import claim_cells, main_table, render_markdown
from rayfed_kd.comparison.writers.latex import render_latex
from rayfed_kd.errors import RecipeError
from rayfed_kd.reporting.study_sections import comparison_section

B_ABOVE_A = {"says": "B above A", "higher": "B", "lower": "A"}
A_TO_C = [{"label": label} for label in "ABC"]


@pytest.mark.parametrize(
    ("degrees", "printed"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)]
)
def test_students_t_is_that_of_the_printed_table(degrees, printed):
    assert student_t(degrees) == pytest.approx(printed, abs=5e-4)


def test_interval_by_hand():
    """Differences 1, 2, 3: mean 2, deviation 1, half width 4.303 / sqrt(3) = 2.484."""
    difference = paired_difference({1: 2.0, 2: 4.0, 3: 6.0}, {3: 3.0, 2: 2.0, 1: 1.0, 9: 5.0})
    assert difference.by_seed == {1: 1.0, 2: 2.0, 3: 3.0}
    assert (difference.mean, difference.deviation) == (2.0, 1.0)
    assert (difference.low, difference.high) == pytest.approx((2 - 2.484, 2 + 2.484), abs=1e-3)
    assert not difference.decided


def test_one_seed_in_common_has_no_interval():
    assert paired_difference({1: 0.5, 2: 0.6}, {2: 0.5, 3: 0.4}) is None


def test_a_difference_of_few_bytes_keeps_its_digits():
    """Deviation 0.0001414, and t with one degree of freedom 12.706: half of the interval is 0.00127."""
    few = paired_difference({1: 0.006, 2: 0.0062}, {1: 0.0, 2: 0.0})
    assert difference_text(few, "bytes") == "+0.0061 [+0.0048, +0.0074]"


def of_two_seeds(p, margin=0.0):
    """A claim over two seeds: with one degree of freedom p is 1 - 2 / pi atan(t), so t is known."""
    t = math.tan((1 - p) * math.pi / 2)
    difference = paired_difference({1: t - 1 - margin, 2: t + 1 - margin}, {1: 0.0, 2: 0.0})  # error 1
    assert difference.probability(margin) == pytest.approx(p, rel=1e-6)
    claim = Claim(says="A above B", higher="A", lower="B", metric="bytes", margin=margin)
    return JudgedClaim(claim, ("A", "m"), ("B", "m"), "bytes", difference)


@pytest.mark.parametrize(
    ("values", "decided"),
    [
        ((0.02, 0.01, 0.04), (True, True, True)),  # 0.01 <= 0.05 / 3, 0.02 <= 0.05 / 2, 0.04 <= 0.05
        ((0.03, 0.04), (False, False)),  # both by themselves; 0.03 > 0.05 / 2 ends it
        ((0.001, 0.03, 0.04), (True, False, False)),
    ],
)
def test_holms_correction_by_hand(values, decided):
    without = replace(of_two_seeds(0.5), difference=None)  # does not count
    assert after_holm([without, *map(of_two_seeds, values)]) == [False, *decided]
    assert after_holm([of_two_seeds(0.04, margin=2.0)]) == [True]


def test_probability_of_no_deviation():
    same = paired_difference({1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5})
    assert (same.probability(), same.probability(0.1)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("mean", "margin", "verdict"),
    [
        (2.0, 0.0, "shown"),
        (0.5, 0.0, "not shown"),
        (-0.5, 0.0, "not shown"),
        (-2.0, 0.0, "contradicted"),
        (-0.5, 1.6, "shown"),  # at least equal, within 1.6: [-1.5, .5] lies above -1.6
        (-0.5, 1.4, "not shown"),
        (-3.0, 1.4, "contradicted"),
    ],
)
def test_verdict_by_the_interval_alone(mean, margin, verdict):
    assert Difference({1: mean, 2: mean}, mean, 0.1, 1.0).verdict(margin) == verdict


@pytest.mark.parametrize(("mean", "deviation"), [(0.2, 0.354), (-0.01, 0.02), (0.3, 0.1)])
def test_seeds_to_decide_are_the_fewest(mean, deviation):
    difference = Difference({1: mean, 2: mean}, mean, deviation, student_t(1) * deviation / math.sqrt(2))
    seeds = difference.seeds_to_decide()
    assert abs(mean) > student_t(seeds - 1) * deviation / math.sqrt(seeds)
    assert abs(mean) <= student_t(seeds - 2) * deviation / math.sqrt(seeds - 1)


def test_no_number_of_seeds_decides_no_difference():
    assert Difference({1: 0.1, 2: -0.1}, 0.0, 0.141, 1.27).seeds_to_decide() is None


def test_difference_to_the_first_row_stands_in_the_table_by_hand():
    """Last two: A .5 and .7, B .55 and .25: +5 and -45, mean -20, deviation 35.36, half width 12.706 * 25."""
    comparison = compared()
    assert main_table(comparison).header[-1] == "difference to A (global) [95 % interval]"
    assert [line[-1] for line in main_table(comparison).rows] == ["", "-20.00 [-337.66, +297.66], undecided"]


def gives(comparison, row, *values):
    """The row's only evaluations, of the seeds 1, 2 and so on."""
    for seed, value in enumerate(values, start=1):
        comparison.curves[*row, seed, "server_accuracy"] = Curve([6], [value], any_costs(1))


def with_five_seeds(**study):
    """B less A is .1, -.05, 0, .15 and .05: mean .05, deviation sqrt(.025 / 4) = .0791.

    Zero is left out from 13 seeds on: 2.179 * .0791 / sqrt(13) = .0478; 12: 2.201 * .0791 / sqrt(12) = .0503.
    """
    comparison = compared(seeds=[1, 2, 3, 4, 5], **study)
    gives(comparison, ("A", "global"), *[0.5] * 5)
    gives(comparison, ("B", "global"), 0.6, 0.45, 0.5, 0.65, 0.55)
    return comparison


def test_number_of_seeds_that_would_decide_is_told_from_five_seeds_on():
    """Of two seeds the deviation is known so badly that any number would be a guess."""
    comparison = with_five_seeds(claims=[B_ABOVE_A])
    assert remarks(comparison)[-1].endswith("(`--add-seeds N` runs them): B (global) 8.")
    assert claim_cells(comparison)[0][-1] == "not shown; 8 more seeds would decide"
    two = compared(claims=[B_ABOVE_A])
    assert remarks(two)[-1] == (
        "How many more seeds would decide is said from 5 seeds on: fewer tell too little of the deviation."
    )
    assert claim_cells(two)[0][-1] == ("not shown; 2 seeds are too few to say how many more would decide")


def test_rows_that_are_equal_with_every_seed_are_said_to_be_and_wait_for_no_further_seed():
    """As CCVR's model before its last step, which is FedAvg's."""
    comparison = with_five_seeds(claims=[B_ABOVE_A])
    gives(comparison, ("B", "global"), *[0.5] * 5)
    assert claim_cells(comparison)[0][-1] == "not shown"
    assert [line[-1] for line in main_table(comparison).rows] == ["", "+0.00 [+0.00, +0.00], equal"]
    assert not any("more seeds" in remark for remark in remarks(comparison))


def test_difference_and_claim_are_of_the_rounds_that_both_rows_evaluated():
    """B has rounds 2 and 6 alone: A's .5, .4 and .7, .8 there are .45 and .75; B's .1, .9 and .1, .3."""
    claim = {"says": "c", "higher": "B", "lower": "A", "statistic": "mean of all"}
    comparison = compared(claims=[claim], runs=A_TO_C)  # C lacks the headline
    for key, curve in [*comparison.curves.items()]:
        if key[0] == "B":
            comparison.curves[key] = Curve([2, 6], curve.values[::2], curve.costs[::2])
        comparison.curves["C" if key[0] == "B" else "A", *key[1:3], "ua"] = comparison.curves[key]
    assert comparison.difference(("B", "global")).by_seed == pytest.approx({1: 0.05, 2: -0.55})
    assert comparison.judged_claims()[0].difference.by_seed == pytest.approx({1: 0.05, 2: -0.55})
    assert comparison.values(("A", "global"), "server_accuracy", "mean of last") == pytest.approx([0.5, 0.7])
    said = remarks(comparison)
    assert "B (global): the difference is over the evaluations that both rows have." in said
    assert 'The claim "c" is over the evaluations that both rows have.' in said


def test_difference_and_claim_are_of_the_rounds_in_which_both_rows_have_a_finite_value():
    """Of the last two A has .6, .4 and B .2 with seed 1; of 4 alone B less A is -.4 with either seed."""
    claim = {**B_ABOVE_A, "metric": "local_f1"}
    comparison = compared(claims=[claim], headline="local_f1")
    for (label, *key, _), curve in [*comparison.curves.items()]:
        count = 2 if label == "B" else 3  # B's last round has none
        values = Curve([2, 4, 6][:count], curve.values[:count], any_costs(count), evaluated=[2, 4, 6])
        comparison.curves[label, *key, "local_f1"] = values
    assert comparison.difference(("B", "global")).by_seed == pytest.approx({1: -0.4, 2: -0.4})
    assert comparison.judged_claims()[0].difference.by_seed == pytest.approx({1: -0.4, 2: -0.4})
    assert 'The claim "B above A" is over the evaluations that both rows have.' in remarks(comparison)


def test_claim_of_learning_faster_ends_with_the_shorter_run():
    """B ends after round 4: .15 less A's .55 and .65. Of whole runs A's mean with seed 1 would be .5."""
    claims = [{**B_ABOVE_A, "statistic": statistic} for statistic in ("mean of all", "last")]
    comparison = compared(claims=claims)
    for key, curve in [*comparison.curves.items()]:
        if key[0] == "B":
            comparison.curves[key] = Curve([2, 4], curve.values[:2], curve.costs[:2])
    faster, last = comparison.judged_claims()
    assert faster.difference.by_seed == pytest.approx({1: -0.4, 2: -0.5})
    assert last.difference.by_seed == pytest.approx({1: -0.2, 2: -0.6})
    assert (faster.cut, last.cut) == (True, False)


def test_difference_to_a_named_row_of_the_same_model():
    comparison = compared(baseline="B")
    gives(comparison, ("A", "oca"), 0.5, 0.6)
    gives(comparison, ("B", "oca"), 0.1, 0.1)
    assert comparison.baseline(("A", "oca")) == ("B", "oca")
    assert comparison.difference(("A", "oca")).by_seed == pytest.approx({1: 0.4, 2: 0.5})
    assert comparison.difference(("B", "oca")) is None


def differences_shown(comparison):
    """Row's name -> its cell."""
    table = main_table(comparison)
    place = table.header.index("difference to A (global) [95 % interval]")
    return {line[0]: line[place] for line in table.rows}


def test_models_may_have_a_baseline_of_their_own():
    """B's personal models are .3 and .2 above C's; its shared one is held against A's, as ever."""
    comparison = compared(runs=A_TO_C, baselines={"personal": "C", "nearest": "C"})
    gives(comparison, ("B", "personal"), 0.8, 0.6)
    gives(comparison, ("C", "personal"), 0.5, 0.4)
    assert comparison.difference(("B", "personal")).by_seed == pytest.approx({1: 0.3, 2: 0.2})
    assert comparison.baseline(("B", "global")) == ("A", "global")
    assert comparison.difference(("C", "personal")) is None
    shown = differences_shown(comparison)
    # 2 seeds: half the interval is 12.706 times the deviation 0.0707 over the root of 2.
    assert shown["B (personal)"] == "+25.00 [-38.53, +88.53] to C (personal), undecided"
    assert " to " not in shown["B (global)"]
    assert any(
        "less that of A (global), or of the row that it names, with" in remark
        for remark in remarks(comparison)
    )
    assert "Baselines: no row evaluates nearest." in remarks(comparison)


def test_the_columns_title_names_the_usual_model_and_a_row_what_else_it_is_held_against():
    """A has two models: B's oca is held against A's oca, and what C alone has against A's first."""
    comparison = compared(runs=A_TO_C)
    for row in [("A", "oca"), ("B", "oca"), ("C", "global")]:
        gives(comparison, row, 0.5, 0.6)
    shown = differences_shown(comparison)
    assert shown["B (oca)"] == "+0.00 [+0.00, +0.00] to A (oca), equal"
    assert shown["C (global)"]
    assert " to " not in shown["C (global)"] + shown["B (global)"]


def test_without_a_second_seed_there_is_no_column():
    comparison = compared(seeds=[1])
    assert "difference" not in " ".join(main_table(comparison).header)
    assert not any("Difference" in remark for remark in remarks(comparison))


def test_claims_get_a_verdict_everywhere(tmp_path):
    """B's bytes are half of A's in each seed, so the interval is that one number."""
    fewer = {"says": "B sends less", "higher": "A", "lower": "B", "metric": "bytes"}
    comparison = compared(claims=[B_ABOVE_A, fewer])
    first, second = claim_cells(comparison)
    assert first == [
        "B above A",
        "official test %, mean of last 2 evaluations: B (global) less A (global)",
        "-20.00 [-337.66, +297.66]",
        "not shown; 2 seeds are too few to say how many more would decide",
    ]
    assert second[1] == "MiB sent: A (global) less B (global)"
    assert second[3] == "shown; also after Holm's correction"
    assert "| B sends less | MiB sent: " in render_markdown(comparison)
    assert r"B sends less & MiB sent: " in render_latex(comparison)
    tables = comparison_section("x", render_markdown(comparison)).tables
    assert [row[-1] for row in tables[1].rows] == [first[3], second[3]]
    write_comparison(comparison, tmp_path)
    rows = pq.read_table(tmp_path / "comparison.parquet").to_pylist()
    (row,) = (row for row in rows if row["statistic"] == "difference to A")
    assert (row["run"], row["mean"], row["low"]) == pytest.approx(("B", -0.2, -3.3766), abs=1e-3)


def test_claim_about_the_whole_curve():
    """A .5 and .7 on average over all three evaluations, B .4 and .2."""
    (judged,) = compared(claims=[{**B_ABOVE_A, "statistic": "mean of all"}]).judged_claims()
    assert judged.difference.by_seed == pytest.approx({1: -0.1, 2: -0.5})


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [(1.0, "not shown (above -1)"), (4.8, "not shown (above -4.8)"), (4.9, "shown (above -4.9)")],
)
def test_margin_is_in_points_as_the_table_is(margin, verdict):
    """B less A is 5 points, and half its interval 2.776 * 7.906 / sqrt(5) = 9.815: it begins at -4.815."""
    comparison = with_five_seeds(claims=[{**B_ABOVE_A, "margin": margin}])
    assert claim_cells(comparison)[0][2:] == ["+5.00 [-4.82, +14.82]", verdict]
    two = with_five_seeds(claims=[{**B_ABOVE_A, "margin": margin}] * 2)
    line = "of 2 claims without any difference (with a margin: of exactly minus it), 0.05 would"
    assert any(line in remark for remark in remarks(two))


def test_margin_of_bytes_is_in_mib():
    """B sends half of what A does in each seed: above A less all of A's MiB, and not above A less 40 %."""
    bytes_of_a = compared().seed_totals("A")[1].cost.bytes / 2**20
    for share, verdict in ((1.0, "shown"), (0.4, "contradicted")):
        claim = {**B_ABOVE_A, "metric": "bytes", "margin": share * bytes_of_a}
        (judged,) = compared(claims=[claim]).judged_claims()
        assert judged.verdict == verdict


@pytest.mark.parametrize("changes", [{"margin": 0.01}, {"margin": 0.01, "metric": "ua"}, {"lower": "A"}])
def test_claim_in_the_older_unit_or_of_a_row_against_itself_is_refused(study, changes):
    claim = {"says": "x", "higher": "A", "lower": "B b", **changes}
    told = r"\.margin = 0\.01: it is in points" if "margin" in changes else ": A is compared with itself"
    with pytest.raises(RecipeError, match=rf"claims\[0\]{told}"):
        check_study(Study.model_validate(study.model_dump() | {"claims": [claim]}))


@pytest.mark.parametrize(
    ("study", "why"),
    [
        ({"seeds": [1]}, "fewer than two seeds have both numbers"),
        ({"claims": [{**B_ABOVE_A, "lower": {"run": "A", "model": "x"}}]}, "A evaluates no x; it has global"),
    ],
)
def test_claim_without_two_seeds_of_both_rows_has_no_verdict_and_says_why(study, why):
    (cells_of_claim,) = claim_cells(compared(**{"claims": [B_ABOVE_A], **study}))
    assert cells_of_claim[2:] == ["", f"no verdict: {why}"]


def test_what_is_about_a_row_left_out_goes_with_it():
    study = compared(claims=[B_ABOVE_A], baseline="A", baselines={"global": "A", "oca": "B"}).study
    left = without_rows(study, ["A"])
    assert (left.claims, left.baseline, left.baselines) == ([], None, {"oca": "B"})
    assert without_rows(study, []).claims == study.claims
    assert Comparison(left, {}, {}).judged_claims() == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("baseline", "C", r"baseline: 'C' is unknown; expected one of A, B b"),
        ("baselines", {"global": "C"}, r"baselines\.global: 'C' is unknown; expected one of A, B b"),
        ("claims", {"says": "x", "higher": "A", "lower": "C"}, r"claims\[0\]: 'C' is unknown"),
    ],
)
def test_row_that_is_none_is_refused_before_the_first_run(study, key, value, message):
    content = study.model_dump() | {key: [value] if key == "claims" else value}
    with pytest.raises(RecipeError, match=message):
        check_study(type(study).model_validate(content))


def test_seeds_that_the_table_leaves_out_are_named(study):
    run = run_locally()
    more = study.model_copy(update={"seeds": [1, 2, 3]})
    compare(more, run=run)
    assert compare(study, run=run).notes[-1] == (
        "the folder has runs of all rows with seeds 3, too: --add-seeds 0 shows them"
    )
    assert not [note for note in compare(more, run=run).notes if "--add-seeds" in note]
    chosen = change_study(more, seeds=[1, 2])  # on the command line, so the third is left out on purpose
    assert not [note for note in compare(chosen, run=run).notes if "--add-seeds" in note]


def test_mean_over_a_whole_run_is_said_to_be_one():
    assert any("all evaluations of a run" in remark for remark in remarks(compared(last=3)))
    assert not any("all evaluations of a run" in remark for remark in remarks(compared(last=2)))
