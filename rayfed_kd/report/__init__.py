"""One page about runs: `rayfed-kd report`. HTML that needs nothing beside it, and its tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from rayfed_kd.errors import RecipeError
from rayfed_kd.report.about import recipes_section, runs_section
from rayfed_kd.report.costs import bytes_section, faults_section, hosts_section, time_section
from rayfed_kd.report.papers import comparison_section, published_section
from rayfed_kd.report.parts import Section
from rayfed_kd.report.pictures import DASHES, SERIES
from rayfed_kd.report.reading import Run, Sources, read_sources
from rayfed_kd.report.results import clients_section, logged_section, metrics_section, partition_section
from rayfed_kd.report.searches import search_section

# In this order; a section is left out where the runs have nothing for it.
OF_RUNS: Sequence[Callable[[Sequence[Run]], Section | None]] = (
    metrics_section,
    clients_section,
    published_section,
    partition_section,
    bytes_section,
    time_section,
    hosts_section,
    logged_section,
    faults_section,
    recipes_section,
)


def write_report(folders: Sequence[Path], to: Path, methods: Mapping[str, str]) -> list[Path]:
    """Writes the page and, beside it, its tables as Markdown; gives both paths.

    Args:
        folders: of runs, and of what `rayfed-kd compare` and `rayfed-kd tune` wrote.
        to: a file name that ends in .html.
        methods: name -> location, for the methods' papers.
    Raises: RecipeError if a folder holds no run that this version can read, or `to` is no such name.
    """
    if to.suffix != ".html":
        raise RecipeError(
            f"--to {to}: expected a name that ends in .html; the same name in .md lies beside it"
        )
    sources = read_sources(folders)
    found = report_sections(sources, methods)
    title = _title(sources)
    to.parent.mkdir(parents=True, exist_ok=True)
    paths = [to, to.with_suffix(".md")]
    for path in paths:
        template = _templates().get_template(f"page{path.suffix}")
        text = template.render(title=title, sections=found, dashes=DASHES, colours=len(SERIES), file=to.name)
        aside = path.with_name(f".{path.name}.part")
        aside.write_text(text, encoding="utf8")
        aside.replace(path)
    return paths


def report_sections(sources: Sources, methods: Mapping[str, str]) -> list[Section]:
    """All that there is to say, in order."""
    compared = [comparison_section(path.resolve().name, text) for path, text in sources.comparisons.items()]
    searched = [search_section(found) for found in sources.searches]
    if not sources.runs:  # a search none of whose trials has a value
        return searched
    rest = [section for make in OF_RUNS if (section := make(sources.runs)) is not None]
    return [*searched, runs_section(sources.runs, methods), *compared, *rest]


def _title(sources: Sources) -> str:
    if sources.comparisons:
        return ", ".join(path.resolve().name for path in sources.comparisons)
    if sources.searches:
        return ", ".join(found.folder.resolve().name for found in sources.searches)
    if len(sources.runs) > 3:
        return f"{len(sources.runs)} runs"
    return ", ".join(run.label for run in sources.runs)


def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"slug": _slug, "markdown": _markdown}
    return made


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is, also within a table."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))
