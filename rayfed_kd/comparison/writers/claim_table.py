"""The table of a study's claims, each with its difference and its verdict."""

from __future__ import annotations

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.differences import JudgedClaim, after_holm
from rayfed_kd.comparison.table_text import (
    difference_text,
    mean_of_last,
    metric_title,
    more_seeds,
    row_name,
)

CLAIM_HEADER = ("claim", "number", "difference [95 % interval]", "verdict")


def claim_cells(comparison: Comparison) -> list[list[str]]:
    """The rows below `CLAIM_HEADER`: each claim of the study, its difference, and the verdict."""
    claims = comparison.judged_claims()
    rows = [_claim_cells(comparison, judged) for judged in claims]
    if len(rows) > 1:
        for judged, row, stands in zip(claims, rows, after_holm(claims), strict=True):
            if judged.verdict in ("shown", "contradicted"):
                row[-1] += "; also after Holm's correction" if stands else "; not after Holm's correction"
    return rows


def claims_without_model(comparison: Comparison) -> list[str]:
    """The claims that have no verdict because a row lacks the model that they name, each with the reason."""
    unjudged = [judged for judged in comparison.judged_claims() if judged.difference is None]
    whys = [(judged.claim.says, _missing_model(comparison, judged)) for judged in unjudged]
    return [f"{says}: {why}" for says, why in whys if why]


def _claim_cells(comparison: Comparison, judged: JudgedClaim) -> list[str]:
    claim, metric = judged.claim, judged.metric
    rows = f"{row_name(comparison, judged.higher)} less {row_name(comparison, judged.lower)}"
    # All bytes of a run have no statistic.
    number = "MiB sent" if metric == "bytes" else f"{metric_title(metric)}, {_statistic(comparison, judged)}"
    if judged.difference is None:
        why = _missing_model(comparison, judged) or "fewer than two seeds have both numbers"
        return [claim.says, f"{number}: {rows}", "", f"no verdict: {why}"]
    margin = f" (above {-claim.margin:g})" if claim.margin else ""
    difference = difference_text(judged.difference, metric)
    # A margin moves the line that the interval must leave out, of which the advice knows nothing.
    advice = ""
    if not (judged.difference.decided or margin):
        more = more_seeds(judged.difference)
        if more is None:
            seeds = len(judged.difference.by_seed)
            advice = f"; {seeds} seeds are too few to say how many more would decide"
        else:
            advice = f"; {more} more seed{'' if more == '1' else 's'} would decide"
    return [claim.says, f"{number}: {rows}", difference, f"{judged.verdict}{margin}{advice}"]


def _missing_model(comparison: Comparison, judged: JudgedClaim) -> str | None:
    """What a row of the claim evaluates, if it is not what the claim names."""
    for label, model in (judged.higher, judged.lower):
        there = list(dict.fromkeys(key[1] for key in comparison.curves if key[0] == label))
        if there and model not in there:
            return f"{label} evaluates no {model}; it has {', '.join(there)}"
    return None


def _statistic(comparison: Comparison, judged: JudgedClaim) -> str:
    """The claim's statistic, with the number of evaluations that a mean of the last is of."""
    if judged.claim.statistic != "mean of last":
        return judged.claim.statistic
    return mean_of_last(comparison)
