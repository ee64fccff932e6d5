"""Write the page of `rayfed-kd report`: HTML that needs no other file, and its tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from rayfed_kd.comparison.writers.markdown import escaped
from rayfed_kd.errors import RecipeError
from rayfed_kd.files import atomic_write, make_folder, remove_unfinished, writing
from rayfed_kd.reporting.against_section import against_section
from rayfed_kd.reporting.comparison_section import comparison_section, study_title
from rayfed_kd.reporting.cost_sections import bytes_section, faults_section, hosts_section, time_section
from rayfed_kd.reporting.page_files import check_replaceable, page_path, stamp_of
from rayfed_kd.reporting.pictures import SERIES
from rayfed_kd.reporting.privacy_section import privacy_section
from rayfed_kd.reporting.reading import Run, Sources, read_sources
from rayfed_kd.reporting.result_sections import (
    clients_section,
    logged_section,
    metrics_section,
    partition_section,
)
from rayfed_kd.reporting.run_sections import recipes_section, runs_section
from rayfed_kd.reporting.search_sections import search_section
from rayfed_kd.reporting.sections import Section
from rayfed_kd.results.charts.figure import DASHES


class HasFolder(Protocol):
    """A result that lies in a folder: of a run, a comparison or a search."""

    @property
    def folder(self) -> Path:
        """Where it lies."""


# In this order; a section is left out where the runs have nothing for it.
RUN_SECTIONS: Sequence[Callable[[Sequence[Run]], Section | None]] = (
    metrics_section,
    clients_section,
    partition_section,
    bytes_section,
    privacy_section,
    time_section,
    hosts_section,
    logged_section,
    faults_section,
    recipes_section,
)


def report(
    *runs: str | Path | HasFolder,
    to: str | Path | None = None,
    against: Sequence[str] = (),
    force: bool = False,
) -> list[Path]:
    """Write one HTML page about runs, comparisons and searches, and its tables as Markdown beside it.

    Args:
        runs: their folders, or what `run`, `compare` and `tune` gave.
        to: the page's file name, which ends in .html; None: report.html, of one folder inside it, of several
            in the current folder.
        against: what the headline is drawn over: bytes, bytes_up, bytes_down, epsilon, local_epsilon, sim_s
            or wall_s; empty: bytes where there are several rows, and epsilon where there is `privacy`.
        force: replace a file that is no report about the same folders.

    Returns: both paths.

    Raises:
        RecipeError: no run is given, a folder holds none that this version can read, an axis is none or no
            run has it, or `to` does not end in .html, cannot be written, or is another file and `force` is
            not given.
    """
    if not runs:
        raise RecipeError("report: expected at least one run")
    folders = [Path(run) if isinstance(run, str | Path) else run.folder for run in runs]
    page = page_path(folders, None if to is None else Path(to))
    if page.suffix != ".html":
        raise RecipeError(
            f"--to {page}: expected a name that ends in .html; the same name in .md lies beside it"
        )
    sources = read_sources(folders)
    sections = report_sections(sources, against)
    title = _title(sources)
    paths, stamp = [page, page.with_suffix(".md")], stamp_of(folders, page)
    with writing(page, "--to"):
        if not force:
            check_replaceable(paths, stamp)
        make_folder(page.parent)
        for path in paths:
            template = _templates().get_template(f"page{path.suffix}")
            text = template.render(
                title=title,
                sections=sections,
                dashes=DASHES,
                colours=len(SERIES),
                file=page.name,
                stamp=stamp,
            )
            remove_unfinished(path.parent, path.name)
            atomic_write(path, text)
    return paths


def report_sections(sources: Sources, against: Sequence[str] = ()) -> list[Section]:
    """The page's sections, in order.

    Args:
        sources: what was read.
        against: what the headline is drawn over, as `report` has it.

    Raises:
        RecipeError: an axis is none, or no run has it.
    """
    compared = [comparison_section(path.resolve().name, text) for path, text in sources.comparisons.items()]
    searched = [search_section(search) for search in sources.searches]
    if not sources.runs:  # a search none of whose trials has a value
        return searched
    made = [make(sources.runs) for make in RUN_SECTIONS]
    made.insert(1, against_section(sources.runs, against))  # below the metrics by round
    rest = [section for section in made if section is not None]
    return [*searched, runs_section(sources.runs), *compared, *rest]


def _title(sources: Sources) -> str:
    if sources.comparisons:
        titles = {study_title(text) or path.resolve().name for path, text in sources.comparisons.items()}
        return ", ".join(sorted(titles))
    if sources.searches:
        return ", ".join(search.folder.resolve().name for search in sources.searches)
    if len(sources.runs) > 3:
        return f"{len(sources.runs)} runs"
    return ", ".join(run.label for run in sources.runs)


def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"slug": _slug, "markdown": escaped}
    environment.tests["photo"] = _is_photo
    return environment


def _is_photo(title: str) -> bool:
    """Whether a run's picture shows images, whose colours a dark page must not invert."""
    return title.startswith(("samples-", "class_means-"))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
