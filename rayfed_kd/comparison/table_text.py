"""A comparison as text: its table's cells, and the sentences that stand with it.

Markdown, LaTeX and the screen show the same cells and sentences; each writer only lays them out.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

from rayfed_kd.comparison.comparison import STATISTICS, Comparison
from rayfed_kd.comparison.curves import AXES
from rayfed_kd.comparison.differences import CONFIDENCE, FEWEST_SEEDS_FOR_ADVICE, MOST_SEEDS, Difference, Row
from rayfed_kd.comparison.published import PrintedValue, printed_text
from rayfed_kd.comparison.row_notes import paper_notes
from rayfed_kd.errors import in_words, span
from rayfed_kd.results.names import metric_digits, metric_scale, metric_text, metric_title, model_notes
from rayfed_kd.results.schemas import EPSILONS
from rayfed_kd.results.scores import is_score


def row_name(comparison: Comparison, row: Row) -> str:
    """A row's name for readers: its label, and in brackets what the study calls the model."""
    label, model = row
    return f"{label} ({comparison.study.models.get(model, model)})"


def columns(comparison: Comparison) -> dict[str, Callable[[Row], str]]:
    """The table's columns, but for the rows' names: title -> what gives a row's cell, "" without a value."""
    headline, metrics = comparison.headline, comparison.metrics
    cells = {metric_title(metric): _mean_cell(comparison, metric, "last") for metric in metrics}
    if _evaluations(comparison) > 1:  # of one evaluation, best and mean are the last round's
        for statistic, words in zip(STATISTICS[1:], ("best", mean_of_last(comparison)), strict=True):
            cells[f"{metric_title(headline)}, {words}"] = _mean_cell(comparison, headline, statistic)
    if any(map(comparison.difference, comparison.rows)):
        usual = row_name(comparison, _usual_baseline(comparison))
        cells[f"difference to {usual} [95 % interval]"] = partial(_row_difference_text, comparison)
    for metric, printed in comparison.printed_values().items():
        cells[f"published {metric}"] = partial(printed_cell, printed)
    spent = [spending for label in comparison.study.labels for spending in comparison.privacy(label)]
    for name in (*EPSILONS, "delta"):
        if any(spending[name] is not None for spending in spent):
            cells[name.replace("_", " ")] = partial(_privacy_cell, comparison, name)
    return cells


def _mean_cell(comparison: Comparison, metric: str, statistic: str) -> Callable[[Row], str]:
    return lambda row: mean_text(comparison.values(row, metric, statistic), metric)


def printed_cell(printed: Mapping[Row, PrintedValue], row: Row) -> str:
    """A row's printed value as text; "" without one."""
    return printed_text(printed[row]) if row in printed else ""


def mean_of_last(comparison: Comparison) -> str:
    """The statistic "mean of last" in words, with the number of evaluations that it is of.

    Args:
        comparison: whose.
    """
    last, headline = comparison.study.last, comparison.headline
    # A short run has fewer than the study averages.
    counts = [min(last, len(curve.values)) for key, curve in comparison.curves.items() if key[3] == headline]
    return "last evaluation" if (told := span(counts)) == "1" else f"mean of last {told} evaluations"


def _evaluations(comparison: Comparison) -> int:
    return max(len(curve.values) for curve in comparison.curves.values())


def _privacy_cell(comparison: Comparison, name: str, row: Row) -> str:
    """A value over seeds: one number where it is the same with each, as it is under most samplings."""
    values = [spent[name] for spent in comparison.privacy(row[0])]
    known = [value for value in values if value is not None]
    if not values:
        return "none"  # the row has no `privacy`
    if len(known) < len(values):
        return "no bound"
    if math.inf in known:
        return "inf"
    mean = statistics.fmean(known)
    text = f"{mean:,.0f}" if mean >= 1e4 else f"{mean:.4g}"  # not 1.92e+04
    return text if len(set(known)) == 1 else f"{text} ± {statistics.stdev(known):.2g}"


def caption(comparison: Comparison, statistic: str = "last round") -> str:
    """The sentence above the table: the study's title, and over what the numbers are.

    Args:
        comparison: the table's.
        statistic: what they are of, in words.
    """
    seeds = len(comparison.study.seeds)
    over = f"mean ± sample deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{comparison.study.title or 'Comparison'}; {statistic}, {over}."


def remarks(comparison: Comparison) -> list[str]:
    """The sentences beneath the table: what a reader must know of its rows."""
    notes = comparison.all_notes
    study = comparison.study
    if study.target is not None and all(comparison.target(seed) is None for seed in study.seeds):
        notes.append(f"the target's run has no {metric_title(comparison.headline)}, so there is no target")
    notes += [*_score_notes(comparison), *_seed_notes(comparison), *_difference_notes(comparison)]
    notes += [*_claim_notes(comparison), *_privacy_notes(comparison)]
    undrawn = [AXES[axis].title for axis in study.against if not comparison.has_cost(axis)]
    notes += [f"there is no picture over {title}, of which no row has any" for title in undrawn]
    notes += paper_notes(comparison)
    # A study may give models names of its own.
    names = {model for _, model in comparison.rows if model not in study.models}
    legend = model_notes(names) if len(names) > 1 else []
    return [*(f"{note[0].upper()}{note[1:]}." for note in notes), *(f"{line}." for line in legend)]


def _score_notes(comparison: Comparison) -> list[str]:
    """On what metrics that recipes name are, of which smaller values are better, and which lack some."""
    names = [metric for metric in comparison.metrics if is_score(metric)]
    if not names:
        return []
    falling = [n for n in names if any(k[3] == n and c.better is min for k, c in comparison.curves.items())]
    notes = ["official: on the official test part; local: on the clients' test parts together"]
    notes += [f"smaller is better: {', '.join(falling)}"] if falling else []
    for name, row in product(names, comparison.rows):
        curves = comparison.seed_curves(row, name)
        short = {s for s, curve in curves.items() if len(curve.rounds) < len(curve.evaluated)}
        gaps = [str(s) for s in comparison.study.seeds if s in short or s not in curves]
        if curves and gaps:
            text = f"evaluations without a finite value are left out, with seed{'s' * (len(gaps) > 1)}"
            notes.append(f"{name} of {row_name(comparison, row)}: {text} {in_words(gaps)}")
    return notes


def _seed_notes(comparison: Comparison) -> Iterator[str]:
    """Which rows have fewer seeds than the caption says."""
    headline, seeds = comparison.headline, len(comparison.study.seeds)
    for row in comparison.rows:
        found = len(comparison.values(row, headline, "last"))
        if 0 < found < seeds:
            name = row_name(comparison, row)
            yield f"{name}: over {found} of the {seeds} seeds; the others have no {metric_title(headline)}"


def more_seeds(difference: Difference) -> str | None:
    """How many seeds more would decide, if mean and deviation stay as they are.

    Args:
        difference: one that is not decided.

    Returns: None with too few seeds to tell.
    """
    if len(difference.by_seed) < FEWEST_SEEDS_FOR_ADVICE:
        return None
    needed = difference.seeds_to_decide()
    return f"more than {MOST_SEEDS}" if needed is None else str(needed - len(difference.by_seed))


def _row_difference_text(comparison: Comparison, row: Row) -> str:
    difference = comparison.difference(row)
    if difference is None:
        return ""
    undecided = ", equal" if difference.equal else "" if difference.decided else ", undecided"
    text = difference_text(difference, comparison.headline)
    baseline = comparison.baseline(row)
    if baseline is None or baseline == _usual_baseline(comparison):  # which the column's title names
        return text + undecided
    return f"{text} to {row_name(comparison, baseline)}{undecided}"


def _usual_baseline(comparison: Comparison) -> Row:
    """The study's baseline with the model that most differences are to; other rows name theirs."""
    baselines = [baseline for row in comparison.rows if (baseline := comparison.baseline(row)) is not None]
    usual = [baseline for baseline in baselines if baseline[0] == comparison.baseline_label]
    return Counter(usual or baselines).most_common(1)[0][0]


def difference_text(difference: Difference, metric: str) -> str:
    """A difference with its interval, as `+1.20 [-0.21, +2.60]`, in percent where the metric is.

    Args:
        difference: in the metric's own unit.
        metric: the metric's column.
    """
    scale, digits = metric_scale(metric), metric_digits(metric)
    if metric == "bytes" and difference.mean:  # small models send thousandths of a MiB
        digits = max(digits, 1 - math.floor(math.log10(abs(difference.mean))))
    values = (difference.mean, difference.low, difference.high)
    mean, low, high = (f"{scale * value:+.{digits}f}" for value in values)
    return f"{mean} [{low}, {high}]"


def _difference_notes(comparison: Comparison) -> list[str]:
    """What the differences are of, and how many more seeds would decide the rows that are undecided."""
    if not any(map(comparison.difference, comparison.rows)):
        return []
    headline = metric_title(comparison.headline)
    named = any(" to " in _row_difference_text(comparison, row) for row in comparison.rows)
    others = ", or of the row that it names," if named else ""
    usual = row_name(comparison, _usual_baseline(comparison))
    notes = [
        f"difference: {headline}, {mean_of_last(comparison)}, less that of {usual}{others} with the same "
        "seed; the interval is Student's t of the mean over seeds, each row by itself; undecided: it holds 0"
    ]
    if cut := [row_name(comparison, row) for row in comparison.rows if _is_cut(comparison, row)]:
        notes.append(f"{in_words(cut)}: the difference is over the evaluations that both rows have")
    if comparison.study.last >= _evaluations(comparison) > 1:
        notes.append("these are all evaluations of a run, from its first on; a study's `last` takes fewer")
    return [*notes, *_advice(comparison)]


def _is_cut(comparison: Comparison, row: Row) -> bool:
    """Whether the row's difference leaves out evaluations that it or its baseline alone has."""
    baseline = comparison.baseline(row) if comparison.difference(row) else None
    return baseline is not None and comparison.alike(row, baseline, comparison.headline) is not comparison


def _claim_notes(comparison: Comparison) -> Iterator[str]:
    judged = [claim for claim in comparison.judged_claims() if claim.difference is not None]
    for claim in judged:
        if claim.cut:
            yield f'the claim "{claim.claim.says}" is over the evaluations that both rows have'
    if len(judged) > 1:
        by_chance = len(judged) * (1 - CONFIDENCE) / 2
        line = " (with a margin: of exactly minus it)" * any(claim.margin for claim in judged)
        yield (
            f"each claim's verdict is of its own 95 % interval: of {len(judged)} claims without any "
            f"difference{line}, {by_chance:.2g} would be shown by chance; Holm's correction is of all of "
            "them together"
        )


def _advice(comparison: Comparison) -> Iterator[str]:
    """How many more seeds would decide the rows that are undecided, or that there are too few to say."""
    advice, too_few = [], False
    for row in comparison.rows:
        difference = comparison.difference(row)
        if difference is not None and not (difference.decided or difference.equal):
            more = more_seeds(difference)
            too_few = too_few or more is None
            advice += [] if more is None else [f"{row_name(comparison, row)} {more}"]
    if advice:
        yield (
            "more seeds that would decide, if means and deviations stay (`--add-seeds N` runs them): "
            + ", ".join(advice)
        )
    if too_few:
        yield (
            "how many more seeds would decide is said from "
            f"{FEWEST_SEEDS_FOR_ADVICE} seeds on: fewer tell too little of the deviation"
        )


def _privacy_notes(comparison: Comparison) -> Iterator[str]:
    """Of what the rows' epsilons are: those of different promises cannot be held against each other."""
    labels_by_promise: dict[str, list[str]] = {}
    for label in comparison.study.labels:
        for spent in comparison.privacy(label)[:1]:  # seeds differ in nothing that makes a promise another
            words = [spent["neighbours"], f"noise at the {spent['noise']}", spent["sampling"]]
            labels_by_promise.setdefault(", ".join(words), []).append(label)
    if labels_by_promise:
        promises = [f"{promise} in {in_words(labels)}" for promise, labels in labels_by_promise.items()]
        yield f"epsilon is of one client's data, after the last round: {'; '.join(promises)}"


def mean_text(values: Sequence[float], metric: str) -> str:
    """Mean and sample deviation over seeds: accuracies in percent with two digits, others with four.

    Args:
        values: one for each seed; empty: "".
        metric: the metric's column.
    """
    if not values:
        return ""
    mean = metric_text(metric, statistics.fmean(values))
    return mean + (f" ± {metric_text(metric, statistics.stdev(values))}" if len(values) > 1 else "")
