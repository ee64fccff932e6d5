"""The check's Markdown page: one table a section, as docs/measured/performance.md can take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TITLES = {
    "machine": "The machine",
    "bits": "The same bits: twice on the local engine, and on Ray",
    "devices": "Every method on the device: the same bits twice, and how far from the CPU",
    "fedkf": "FedKF over FedAvg",
    "workloads": "Rounds in one process against the bare loop on the same device",
    "hosts": "Hosts on Ray that share the device, against as many plain processes",
    "precision": "Precision of local training",
    "graphs": "A training step as it is, and as a CUDA graph",
    "memory": "Memory of a host",
}


def page(found: Mapping[str, Any]) -> str:
    """The page: a heading and a table for each section."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    sections = found["sections"]
    yield "# What a GPU told" if found["device"] != "cpu" else "# The check at toy size on the CPU"
    yield ""
    commit = f"commit {found['commit'][:12]}, " if found["commit"] else ""
    yield f"`tests/gpu/check.sh`, {commit}{found['started'][:10]}, {found.get('seconds', 0):g} s in all."
    for name, section in sections.items():
        yield from ("", f"## {TITLES[name]}", "")
        if section["status"] != "done":
            yield f"{section['status'].capitalize()}: {section['reason'] or 'no reason was told'}."
            if section["rows"]:
                yield ""
        yield from table(section["rows"])


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Rows with their own keys as columns, in the order in which they appear; numbers to the right."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        return
    numeric = {key: all(_is_number(row.get(key)) for row in rows) for key in columns}
    yield "| " + " | ".join(key.replace("_", " ") for key in columns) + " |"
    yield "| " + " | ".join("---:" if numeric[key] else "---" for key in columns) + " |"
    for row in rows:
        yield "| " + " | ".join(shown(row.get(key)) for key in columns) + " |"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def shown(value: Any) -> str:
    """A cell: numbers with three digits that count, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")
