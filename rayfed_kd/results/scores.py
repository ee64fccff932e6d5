"""Values of the table `scores`, beside the metrics of every evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Tables = Mapping[str, Sequence[Mapping[str, Any]]]  # table -> rows


def score_name(row: Mapping[str, Any]) -> str:
    """The name of a value beside the metrics of every evaluation, which says on which samples it is.

    It is `official_macro_f1` on the official test set, `local_macro_f1` on all clients' test parts together.

    Args:
        row: of the table `scores`.
    """
    return f"{row['test']}_{row['metric']}"


def is_score(metric: str) -> bool:
    """Whether a name is one that `score_name` gives."""
    return metric.startswith(("official_", "local_"))


def with_scores(tables: Tables) -> Sequence[dict[str, Any]]:
    """Rows of the table `metrics`, each with its model's values of the round from the table `scores`.

    A value that is no finite number is None there.

    Args:
        tables: rows of `metrics` and of `scores`, of the same rounds; without an entry there are none.
    """
    values: dict[tuple[int, str], dict[str, float | None]] = {}
    for row in tables.get("scores", []):
        value = row["value"] if row["value"] is not None and math.isfinite(row["value"]) else None
        values.setdefault((row["round"], row["model"]), {})[score_name(row)] = value
    return [{**row, **values.get((row["round"], row["model"]), {})} for row in tables.get("metrics", [])]
