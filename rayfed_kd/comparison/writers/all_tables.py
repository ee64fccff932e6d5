"""A comparison's tables of texts, in the order in which every writer shows them, and as Markdown.

The claims each have their difference and their verdict. The papers' printed tables each say how far both
orders agree.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.console import Console

from rayfed_kd.comparison import table_text
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.curves import AXES, MIB, AxisName, RunTotals
from rayfed_kd.comparison.differences import JudgedClaim, Row, after_holm
from rayfed_kd.comparison.published import PaperRows, printed_text
from rayfed_kd.results.names import metric_title
from rayfed_kd.results.screen_table import TextTable, screen_table

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
    rows = " less ".join(table_text.row_name(comparison, row) for row in (judged.higher, judged.lower))
    statistic = table_text.mean_of_last(comparison) if claim.statistic == "mean of last" else claim.statistic
    # All bytes of a run have no statistic.
    number = "MiB sent" if metric == "bytes" else f"{metric_title(metric)}, {statistic}"
    if judged.difference is None:
        why = _missing_model(comparison, judged) or "fewer than two seeds have both numbers"
        return [claim.says, f"{number}: {rows}", "", f"no verdict: {why}"]
    margin = f" (above {-claim.margin:g})" if claim.margin else ""
    difference = table_text.difference_text(judged.difference, metric)
    # A margin moves the line that the interval must leave out, of which the advice knows nothing.
    advice = ""
    if not (judged.difference.decided or judged.difference.equal or margin):
        more = table_text.more_seeds(judged.difference)
        if more is None:
            advice = f"; {len(judged.difference.by_seed)} seeds are too few to say how many more would decide"
        else:
            advice = f"; {more} more seed{'' if more == '1' else 's'} would decide"
    return [claim.says, f"{number}: {rows}", difference, f"{judged.verdict}{margin}{advice}"]


def _missing_model(comparison: Comparison, judged: JudgedClaim) -> str | None:
    """What a row of the claim evaluates, if it is not what the claim names."""
    for label, model in (judged.higher, judged.lower):
        models = list(dict.fromkeys(key[1] for key in comparison.curves if key[0] == label))
        if models and model not in models:
            return f"{label} evaluates no {model}; it has {', '.join(models)}"
    return None


def published_tables(comparison: Comparison) -> list[TextTable]:
    """Every printed table that the study names.

    Its title says which one it is, what differs here, and how far both orders agree.
    """
    return [
        TextTable(
            _published_heading(comparison, paper),
            ("system", "as printed"),
            [
                (label, ", ".join(f"{m} {printed_text(value)}" for m, value in values.items()))
                for label, values in paper.lines.items()
            ],
            left=2,
        )
        for paper in comparison.papers
    ]


def _published_heading(comparison: Comparison, paper: PaperRows) -> str:
    published = paper.published
    heading = f"Published, {paper.title}"
    if published.differs:
        heading += f"; here differs: {published.differs}"
    agreement = comparison.agreement(paper)
    if agreement is None:
        return heading
    rows, tau = agreement
    ours = metric_title(published.ours or comparison.headline)
    return (
        f"{heading}; rank correlation (Kendall's tau-b) of {paper.metric} against our {ours}, "
        f"{published.statistic}, over {rows} rows: {tau:.2f}"
    )


def main_table(comparison: Comparison) -> TextTable:
    """Every row's metrics. The caption stands above it, the remarks beneath."""
    columns = table_text.columns(comparison)
    cells = [
        [table_text.row_name(comparison, row), *(cell(row) for cell in columns.values())]
        for row in comparison.rows
    ]
    return TextTable(comparison.study.title, ["run", *columns], cells)


def tables_beneath(comparison: Comparison) -> list[TextTable]:
    """The claims, if the study has any, the costs, and a table per paper."""
    claims = TextTable("Claims", CLAIM_HEADER, claim_cells(comparison), left=len(CLAIM_HEADER))
    return [*([claims] if claims.rows else []), cost_table(comparison), *published_tables(comparison)]


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, its caption and remarks, the claims, the costs, and the papers' values.

    Args:
        comparison: what is shown.
        console: a terminal; for files and pipes use `render_markdown`, which folds no line.
    """
    main = main_table(comparison)
    console.print(screen_table(main.title, main.header, main.rows))
    for line in (table_text.caption(comparison), *table_text.remarks(comparison)):
        console.print(line, markup=False, highlight=False)  # a label may hold brackets
    for table in tables_beneath(comparison):
        console.print(screen_table(table.title, table.header, table.rows, table.left))


# What Markdown would not show: a bar, which ends a cell; a backslash, an asterisk, a tag, an entity, and a
# bracket that makes a link. Brackets around an interval, a lone "<" and the code of our own sentences stay.
_SPECIAL = re.compile(r"\\(?=[!-/:-@\[-`{-~])|[*|]|\](?=[(\[:])|<(?=[A-Za-z/!?])|&(?=#?\w+;)")
_ESCAPED = re.compile(r"\\([\\*|\]])|&lt;|&amp;")
# A backslash before a "<" is none for every reader of Markdown.
_ENTITIES = {"<": "&lt;", "&": "&amp;"}
_CHARACTERS = {entity: character for character, entity in _ENTITIES.items()}


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line, also within a table."""
    one_line = " ".join(text.split())
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), one_line)


def unescaped(text: str) -> str:
    """The text that `escaped` was given, in one line."""
    return _ESCAPED.sub(lambda match: match[1] or _CHARACTERS[match[0]], text)


def render_markdown(comparison: Comparison) -> str:
    """The caption, the table, the remarks beneath it, the claims, the costs, and a table per paper.

    Args:
        comparison: what is shown.

    Returns: Markdown without a final line break.
    """
    lines = [escaped(table_text.caption(comparison)), "", *_table(main_table(comparison))]
    for remark in table_text.remarks(comparison):
        lines += ["", escaped(remark)]
    for table in tables_beneath(comparison):
        lines += ["", f"{escaped(table.title)}:", "", *_table(table)]
    return "\n".join(lines)


def read_table_line(line: str) -> list[str]:
    """The cells of a line of a table that `render_markdown` wrote."""
    parts = line.strip().removeprefix("|").removesuffix("|").split(" | ")
    return [unescaped(part.strip()) for part in parts]


def _table(table: TextTable) -> list[str]:
    rule = ["---"] * len(table.header)
    return [f"| {' | '.join(map(escaped, row))} |" for row in (table.header, rule, *table.rows)]


# Column -> the cost in `Cost`.
SENT: Mapping[str, AxisName] = {"MiB up": "bytes_up", "MiB down": "bytes_down", "MiB": "bytes"}

# Other work only ever makes a run slower, so the fastest one says most of what the row itself takes.
FASTEST = "real s, fastest seed"


def cost_title(comparison: Comparison) -> str:
    """The sentence above the table, without its colon."""
    title = "Costs of a whole run" + ", mean over seeds" * (len(comparison.study.seeds) > 1)
    if not _has_codec(comparison):
        return title
    return f"{title}; without codec: the same parts as they are, and how many times as much that is"


def cost_table(comparison: Comparison) -> TextTable:
    """What runs cost: a row for each run, and where there is a target for each of its models."""
    columns, by_model = cost_columns(comparison), comparison.study.target is not None
    rows = comparison.rows if by_model else [(label, "") for label in comparison.study.labels]
    names = [table_text.row_name(comparison, row) if by_model else row[0] for row in rows]
    cells = [[name, *(cell(row) for cell in columns.values())] for name, row in zip(names, rows, strict=True)]
    return TextTable(cost_title(comparison), ["run", *columns], cells)


def cost_columns(comparison: Comparison) -> dict[str, Callable[[Row], str]]:
    """The columns, but for the rows' names: title -> what gives a row's cell, of a target a model's."""

    def totals(of: Callable[[Sequence[RunTotals]], str]) -> Callable[[Row], str]:
        return lambda row: of(list(comparison.seed_totals(row[0]).values()))

    columns = {title: totals(partial(_spent, name)) for title, name in SENT.items()}
    if _has_codec(comparison):
        columns |= {f"without codec: {title}": totals(partial(_raw, name)) for title, name in SENT.items()}
    if has_clock := comparison.has_cost("sim_s"):
        columns["simulated s"] = totals(partial(_spent, "sim_s"))
    if comparison.study.totals:
        columns[FASTEST] = totals(lambda runs: f"{min(r.cost.wall_s for r in runs):,.1f}" if runs else "")
    if comparison.study.target is not None:
        to_target: Mapping[str, AxisName] = {**SENT, "simulated s": "sim_s"} if has_clock else SENT
        columns["to target: rounds"] = lambda row: _rounds_text(comparison.costs(row)["rounds"])
        for title, name in to_target.items():
            columns[f"to target: {title}"] = partial(_target_text, comparison, name)
    return columns


def _spent(name: AxisName, runs: Sequence[RunTotals]) -> str:
    return _mean_text(name, [getattr(run.cost, name) for run in runs])


def _raw(name: AxisName, runs: Sequence[RunTotals]) -> str:
    """Bytes without a codec, and in brackets how many times as much as what was sent, where they differ."""
    raw, sent = [getattr(run.raw, name) for run in runs], [getattr(run.cost, name) for run in runs]
    text = _mean_text(name, raw)
    return f"{text} (x {sum(raw) / sum(sent):.3g})" if sum(sent) and sum(raw) != sum(sent) else text


def _has_codec(comparison: Comparison) -> bool:
    """Whether a codec changed the bytes of any run."""
    return any(totals.raw.bytes != totals.cost.bytes for totals in comparison.totals.values())


def _mean_text(name: AxisName, costs: Sequence[float | None]) -> str:
    """The mean of what is known of some costs, in their axis' unit."""
    known = [cost / AXES[name].unit for cost in costs if cost is not None]
    if not known:
        return ""
    mean = statistics.fmean(known)
    return number_text(mean) if AXES[name].unit == MIB else f"{mean:,.1f}"


def _rounds_text(rounds: Sequence[float | None]) -> str:
    reached = [index for index in rounds if index is not None]
    if not reached:
        return "not reached" if rounds else ""
    mean = f"{statistics.fmean(reached):.1f}"
    return mean if len(reached) == len(rounds) else f"{mean} ({len(reached)} of {len(rounds)} seeds)"


def _target_text(comparison: Comparison, name: AxisName, row: Row) -> str:
    return _mean_text(name, comparison.costs(row)[name])


def number_text(value: float) -> str:
    """MiB with about three digits: small models send thousandths of one, large ones thousands.

    Args:
        value: at least 0.
    """
    if value >= 100:
        return f"{value:,.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"
