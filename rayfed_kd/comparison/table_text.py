"""A comparison as text: its table's cells, and the sentences that stand with it.

Markdown, LaTeX and the screen show the same cells and sentences; each writer only lays them out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rayfed_kd.comparison.comparison import MIB, STATISTICS, Comparison, JudgedClaim, Row
from rayfed_kd.comparison.differences import MOST_SEEDS, Difference
from rayfed_kd.comparison.paper_rows import PaperRows, printed_text
from rayfed_kd.results.model_names import model_notes
from rayfed_kd.results.schemas import is_score
from rayfed_kd.results.summary import HEADLINES

TITLES = {"amp": "AMP %", "fm": "FM", "wlp": "WLP %", "ua": "UA %", "server_accuracy": "official test %"}
CLAIM_HEADER = ("claim", "number", "difference [95 % interval]", "verdict")


@dataclass(frozen=True)
class PublishedLines:
    """A paper's printed table beneath ours.

    Attributes:
        heading: which table, what differs here, and how far both orders agree.
        lines: (system, its values as printed).
    """

    heading: str
    lines: Sequence[tuple[str, str]]


def metric_title(metric: str) -> str:
    """A metric's title; one that a recipe names has its own name.

    Args:
        metric: the metric's column, or a name of `score_name`.
    """
    return TITLES.get(metric, metric)


def row_name(comparison: Comparison, row: Row) -> str:
    """A row's name for readers: its label, and in brackets what the study calls the model."""
    label, model = row
    return f"{label} ({comparison.study.models.get(model, model)})"


def header(comparison: Comparison) -> list[str]:
    """The table's column titles, the rows' names first."""
    headline = metric_title(comparison.headline())
    averaged = _averaged(comparison)
    columns = ["run", *(metric_title(metric) for metric in comparison.metrics())]
    columns += [f"{headline}, best", f"{headline}, mean of last {averaged} evaluations"]
    if _has_differences(comparison):
        columns.append(f"difference to {_baseline_label(comparison)} [95 % interval]")
    if comparison.has_relative_changes():
        columns.append("relative change %")
    columns += [f"published {metric}" for metric in comparison.printed_values()]
    if comparison.study.target is not None:
        columns += ["rounds to target", "MiB to target"]
        if comparison.has_clock():
            columns.append("simulated s to target")
    return [*columns, *(("MiB in all", "real s in all") if comparison.study.totals else ())]


def _averaged(comparison: Comparison) -> int:
    """How many evaluations "mean of last" is of: a short run has fewer than the study averages."""
    return min(comparison.study.last, _evaluations(comparison))


def _evaluations(comparison: Comparison) -> int:
    return max(len(curve.values) for curve in comparison.curves.values())


def cells(comparison: Comparison) -> list[list[str]]:
    """The table's rows below `header`: means and sample deviations over seeds; "" where there is no value."""
    return [_row_cells(comparison, row) for row in comparison.rows()]


def _row_cells(comparison: Comparison, row: Row) -> list[str]:
    line = [row_name(comparison, row)]
    line += [_mean_text(comparison.values(row, metric, "last"), metric) for metric in comparison.metrics()]
    headline = comparison.headline()
    line += [_mean_text(comparison.values(row, headline, s), headline) for s in STATISTICS[1:]]
    if _has_differences(comparison):
        line.append(_row_difference_text(comparison, row))
    if comparison.has_relative_changes():
        line.append(_mean_text(comparison.relative_changes(row), "change"))
    for printed in comparison.printed_values().values():
        line.append(printed_text(printed[row]) if row in printed else "")
    if comparison.study.target is not None:
        costs = comparison.costs(row)
        line += [_cost_text(costs["rounds"], 1.0), _cost_text(costs["bytes"], MIB)]
        if comparison.has_clock():
            line.append(_cost_text(costs["sim_s"], 1.0))
    if comparison.study.totals:
        curves = comparison.seed_curves(row, headline).values()
        line += [_cost_text([curve.bytes[-1] for curve in curves], MIB)]
        line += [_cost_text([curve.wall_s[-1] for curve in curves], 1.0)]
    return line


def caption(comparison: Comparison) -> str:
    """The sentence above the table: the study's title, and over what the numbers are."""
    seeds = len(comparison.study.seeds)
    over = f"mean ± sample deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{comparison.study.title or 'Comparison'}; last round, {over}."


def remarks(comparison: Comparison) -> list[str]:
    """The sentences beneath the table: what a reader must know of its rows."""
    notes = comparison.all_notes
    study = comparison.study
    if study.target is not None and all(comparison.target(seed) is None for seed in study.seeds):
        notes.append(f"the target's run has no {metric_title(comparison.headline())}, so there is no target")
    notes += [*_score_notes(comparison), *_difference_notes(comparison), *_changes_note(comparison)]
    # A study may give models names of its own.
    names = {model for _, model in comparison.rows() if model not in study.models}
    legend = model_notes(names) if {"aca", "global"} <= names else []
    return [*(f"{note[0].upper()}{note[1:]}." for note in notes), *(f"{line}." for line in legend)]


def _score_notes(comparison: Comparison) -> list[str]:
    """On which samples metrics that recipes name are, and of which the smaller value is the better one."""
    names = [metric for metric in comparison.metrics() if is_score(metric)]
    if not names:
        return []
    falling = [n for n in names if any(k[3] == n and c.better is min for k, c in comparison.curves.items())]
    notes = ["official: on the official test part; local: on the clients' test parts together"]
    return [*notes, f"smaller is better: {', '.join(falling)}"] if falling else notes


def claim_cells(comparison: Comparison) -> list[list[str]]:
    """The rows below `CLAIM_HEADER`: each claim of the study, its difference, and the verdict."""
    return [_claim_cells(comparison, judged) for judged in comparison.judged_claims()]


def _claim_cells(comparison: Comparison, judged: JudgedClaim) -> list[str]:
    claim, metric = judged.claim, judged.metric
    rows = f"{row_name(comparison, judged.higher)} less {row_name(comparison, judged.lower)}"
    # All bytes of a run have no statistic.
    number = "MiB sent" if metric == "bytes" else f"{metric_title(metric)}, {claim.statistic}"
    if judged.difference is None:
        return [claim.says, f"{number}: {rows}", "", "no verdict: fewer than two seeds have both numbers"]
    margin = f" (above {-metric_scale(metric) * claim.margin:g})" if claim.margin else ""
    difference = _difference_text(judged.difference, metric)
    # A margin moves the line that the interval must leave out, of which the advice knows nothing.
    advice = ""
    if not (judged.difference.decided or margin):
        more = _more_seeds(judged.difference)
        advice = f"; {more} more seed{'' if more == '1' else 's'} would decide"
    return [claim.says, f"{number}: {rows}", difference, f"{judged.verdict}{margin}{advice}"]


def _more_seeds(difference: Difference) -> str:
    """How many seeds more would decide, if mean and deviation stay as they are."""
    needed = difference.seeds_to_decide()
    return f"more than {MOST_SEEDS}" if needed is None else str(needed - len(difference.by_seed))


def _has_differences(comparison: Comparison) -> bool:
    return any(comparison.difference(row) is not None for row in comparison.rows())


def _baseline_label(comparison: Comparison) -> str:
    return comparison.study.baseline or comparison.study.labels[0]


def _row_difference_text(comparison: Comparison, row: Row) -> str:
    difference = comparison.difference(row)
    if difference is None:
        return ""
    undecided = "" if difference.decided else ", undecided"
    return _difference_text(difference, comparison.headline()) + undecided


def _difference_text(difference: Difference, metric: str) -> str:
    scale, digits = metric_scale(metric), metric_digits(metric)
    mean, low, high = (
        f"{scale * value:+.{digits}f}" for value in (difference.mean, difference.low, difference.high)
    )
    return f"{mean} [{low}, {high}]"


def _difference_notes(comparison: Comparison) -> list[str]:
    """What the differences are of, and how many more seeds would decide the rows that are undecided."""
    if not _has_differences(comparison):
        return []
    headline = metric_title(comparison.headline())
    notes = [
        f"difference: {headline}, mean of last {_averaged(comparison)} evaluations, less that of "
        f"{_baseline_label(comparison)} with the same seed; the interval is Student's t of the mean over "
        "seeds, each row by itself; undecided: it holds 0"
    ]
    if _averaged(comparison) == _evaluations(comparison) > 1:
        notes.append("these are all evaluations of a run, from its first on; a study's `last` takes fewer")
    advice = []
    for row in comparison.rows():
        difference = comparison.difference(row)
        if difference is not None and not difference.decided:
            advice.append(f"{row_name(comparison, row)} {_more_seeds(difference)}")
    if advice:
        notes.append(
            "more seeds that would decide, if means and deviations stay (`--add-seeds N` runs them): "
            + ", ".join(advice)
        )
    return notes


def _changes_note(comparison: Comparison) -> list[str]:
    """What the relative change is of, and from which row to which; empty if no row has one."""
    labels_by_base: dict[str, list[str]] = {}
    for run in comparison.study.runs:
        if run.against is not None:
            labels_by_base.setdefault(run.against, []).append(run.label)
    if not labels_by_base:
        return []
    pairs = ", ".join(f"{' and '.join(labels)} to {base}" for base, labels in labels_by_base.items())
    accuracies = ", else ".join(metric_title(metric).removesuffix(" %") for metric in HEADLINES)
    return [f"relative change: of the last accuracy ({accuracies}) of {pairs}"]


def published_lines_of(comparison: Comparison) -> list[PublishedLines]:
    """Every printed table that the study names, with the agreement of both orders in its heading."""
    return [
        PublishedLines(
            _published_heading(comparison, paper),
            [
                (
                    line["label"],
                    ", ".join(f"{metric} {printed_text(value)}" for metric, value in line["values"].items()),
                )
                for line in paper.lines
            ],
        )
        for paper in comparison.papers
    ]


def _published_heading(comparison: Comparison, paper: PaperRows) -> str:
    published = paper.published
    where = ", ".join(f"{key} {value}" for key, value in published.where.items())
    heading = f"Published, {published.paper} table {published.table}" + (f" ({where})" if where else "")
    if published.differs:
        heading += f"; here differs: {published.differs}"
    agreement = comparison.agreement(paper)
    if agreement is None:
        return heading
    return (
        f"{heading}; rank correlation (Kendall's tau-b) of {paper.metric} against our "
        f"{metric_title(agreement.metric)}, {agreement.statistic}, over {agreement.rows} rows: "
        f"{agreement.tau:.2f}"
    )


def _mean_text(values: Sequence[float], metric: str) -> str:
    """Mean and sample deviation over seeds: accuracies in percent with two digits, others with four."""
    if not values:
        return ""
    scale, digits = metric_scale(metric), metric_digits(metric)
    sign = "+" if metric == "change" else ""
    mean = f"{statistics.fmean(values) * scale:{sign}.{digits}f}"
    return mean + (f" ± {statistics.stdev(values) * scale:.{digits}f}" if len(values) > 1 else "")


def metric_scale(metric: str) -> float:
    """What a metric's values are multiplied by to be shown: accuracies are in percent."""
    return 1.0 if metric in ("fm", "bytes") or is_score(metric) else 100.0


def metric_digits(metric: str) -> int:
    """How many digits after the point its values are shown with."""
    return 4 if metric == "fm" or is_score(metric) else 2


def _cost_text(costs: Sequence[float | None], unit: float) -> str:
    """Mean over the seeds that reached the target, and how many did if not all."""
    if not costs:
        return ""
    reached = [cost / unit for cost in costs if cost is not None]
    if not reached:
        return "not reached"
    mean = f"{statistics.fmean(reached):,.1f}"
    return mean if len(reached) == len(costs) else f"{mean} ({len(reached)} of {len(costs)} seeds)"
