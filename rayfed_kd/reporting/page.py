"""Write the page of `rayfed-kd report`: HTML that needs no other file, and its tables as Markdown.

It says where the page goes, and which files it may replace.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from rayfed_kd.comparison.writers.all_tables import escaped
from rayfed_kd.errors import RecipeError
from rayfed_kd.files.folders import writing
from rayfed_kd.files.whole import atomic_write, make_folder, remove_unfinished
from rayfed_kd.reporting import cost_sections, result_sections
from rayfed_kd.reporting.reading import Run, Sources, read_sources
from rayfed_kd.reporting.run_sections import recipes_section, runs_section
from rayfed_kd.reporting.sections import SERIES, Section
from rayfed_kd.reporting.study_sections import (
    against_section,
    comparison_section,
    search_section,
    study_title,
)
from rayfed_kd.results.charts.figure import DASHES

if TYPE_CHECKING:
    from rayfed_kd.comparison.compare import ComparisonResult
    from rayfed_kd.experiment.result import Result
    from rayfed_kd.tuning.search_result import SearchResult

NAME = "report.html"
MARK = "rayfed-kd-report"  # stands before a page's stamp in the file
HEAD = 4000  # characters of a file, among which a page has its stamp


def stamp_of(folders: Sequence[Path], page: Path) -> str:
    """What tells a page apart from one about other folders: it stays the same if all of them are moved.

    Args:
        folders: what the page is about.
        page: its file.
    """
    here = page.parent.resolve()
    places = sorted({os.path.relpath(folder.resolve(), here) for folder in folders})
    return f"{MARK} {hashlib.sha256(os.fsencode(os.linesep.join(places))).hexdigest()[:16]}"


def check_replaceable(paths: Sequence[Path], stamp: str) -> None:
    """Check that nothing is lost: a file is replaced only if it is the page of the same folders.

    Args:
        paths: the files that are to be written.
        stamp: the page's.

    Raises:
        RecipeError: one of them is there, and is another page, or none.
    """
    for path in paths:
        if path.is_file() and stamp not in path.read_text(encoding="utf8", errors="replace")[:HEAD]:
            raise RecipeError(
                f"{path} is there, and is no report about the same folders; "
                "expected another name under --to, or --force to replace it"
            )


# In this order; a section is left out where the runs have nothing for it.
RUN_SECTIONS: Sequence[Callable[[Sequence[Run]], Section | None]] = (
    result_sections.metrics_section,
    result_sections.clients_section,
    result_sections.partition_section,
    cost_sections.bytes_section,
    cost_sections.privacy_section,
    cost_sections.time_section,
    cost_sections.hosts_section,
    result_sections.logged_section,
    cost_sections.faults_section,
    recipes_section,
)


def report(
    *runs: str | Path | Result | ComparisonResult | SearchResult,
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
    if to is None:
        to = folders[0] / NAME if len({folder.resolve() for folder in folders}) == 1 else NAME
    page = Path(to)
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
    sections = [make(sources.runs) for make in RUN_SECTIONS]
    sections.insert(1, against_section(sources.runs, against))  # below the metrics by round
    rest = [section for section in sections if section is not None]
    return [*searched, runs_section(sources.runs), *compared, *rest]


def _title(sources: Sources) -> str:
    titles = sorted({study_title(text) or path.resolve().name for path, text in sources.comparisons.items()})
    titles = titles or [search.folder.resolve().name for search in sources.searches]
    if not titles and len(sources.runs) > 3:
        return f"{len(sources.runs)} runs"
    return ", ".join(titles or [run.label for run in sources.runs])


def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "slug": lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"),
        "markdown": escaped,
    }
    # Runs' pictures of images, whose colours a dark page must not invert.
    environment.tests["photo"] = lambda title: title.startswith(("samples-", "class_means-"))
    return environment
