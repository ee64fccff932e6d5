"""MkDocs hook: what a method's page has from code and tables, and not from its author.

A page says `<!-- generated: PART -->`, and in its head in which group it stands, and which names the tables
give the method:

    group: Personal models      # one of GROUPS
    systems: [FedPer]           # names in published tables and on the pages of `MEASURED`
    command: fedgems/cifar10 method.name=fedgem      # only where no recipe names the method

`python docs/hooks/methods.py NAME` prints a page; without a name it writes the tables of docs/methods.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

import yaml

# MkDocs imports a hook with its folder on the path.
from reference import ROOT, markdown_table, option_table

from rayfed_kd.algorithms import METHODS
from rayfed_kd.cli.listing import by_default, public_data, schedules
from rayfed_kd.comparison.studies import Study, StudyRun, read_study
from rayfed_kd.errors import in_words
from rayfed_kd.protocol import Declaration, Method
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.recipe.shipped import last_part, purpose, shipped_files

FOLDER = "methods/"
LIST = ROOT / "docs/methods.md"
GROUPS = (
    "The five papers",
    "Averages",
    "After another method",
    "Generated samples",
    "One exchange",
    "Public data",
    "Prototypes and outputs by class",
    "A shared model beside a private one",
    "A server behind features",
    "Personal models",
    "References",
)
PUBLISHED = ROOT / "rayfed_kd/comparison/published"
# Pages of docs/ with tables of real runs -> what a reader must know of all tables on the page.
MEASURED = {
    "measured/results.md": "",
    "measured/leaderboard.md": "",
    "measured/tables.md": " (smaller: the page says how)",
}
# The tables in which a paper compares methods by their accuracy.
MAIN_TABLES = {
    "fedkf": ("V", "VI", "VII"),
    "kdia": ("2",),
    "dafkd": ("1",),
    "fedd2s": ("2",),
    "fedgems": ("2",),
}
VALUES = ("metric", "mean", "std", "method", "side")
PAPERS = {"fedkf": "FedKF", "kdia": "KDIA", "dafkd": "DaFKD", "fedd2s": "FedD2S", "fedgems": "FedGEMS"}

AnyMethod = type[Method[Any, Any]]
Meta = Mapping[str, Any]


def options(name: str, meta: Meta) -> str:
    """Every option with its default, what it takes and what it means."""
    return option_table(_method(name).options_model())


def travels(name: str, meta: Meta) -> str:
    """What is declared of the messages, the states, public data and schedules."""
    method = _method(name)
    default = by_default(method)
    rows = [*_parts("down", default.down), *_parts("up", default.up)]
    table = markdown_table([("", "part", "kind"), *rows]) if rows else "Nothing travels."
    facts = {
        "The server keeps": method.server_keeps,
        "A client keeps": method.client_keeps,
        "Public data": public_data(method),
        "Schedules": schedules(method),
        "Models": "clients may have their own" if method.heterogeneous else "one architecture for all",
    }
    return "\n".join([table, "", *(f"- {fact}: {text or 'not said'}" for fact, text in facts.items())])


def _parts(direction: str, declared: Declaration) -> Iterator[Sequence[str]]:
    for part, kind in declared.items():
        yield direction, f"`{part}`", str(kind)


def recipes(name: str, meta: Meta) -> str:
    """The commands that run the method, from the recipes and studies that have it; then a recipe itself."""
    files = shipped_files("recipe")
    of_method = {recipe: path for recipe, path in files.items() if _named(recipe) == name}
    parts = ["\n".join(f"- `rayfed-kd run {recipe}`: {purpose(path)}" for recipe, path in of_method.items())]
    if "command" in meta:
        parts = [f"    rayfed-kd run {meta['command']}"]
    rows = [f"    rayfed-kd compare {last_part(study)} {only}".rstrip() for study, only in _rows(name)]
    if rows:
        parts.append("\n".join(["Rows of comparisons:", "", *rows]))
    for recipe, path in list(of_method.items())[:1]:
        parts.append(f"`configs/{recipe}.yaml`:\n\n```yaml\n{path.read_text('utf8')}```")
    return "\n\n".join(parts)


def _rows(name: str) -> Iterator[tuple[str, str]]:
    """Every study with rows of the method, and `--only` for these rows unless they are all that it has."""
    for study_name in shipped_files("study"):
        study = _study(study_name)
        labels = [run.label for run in study.runs if _method_of(run, study) == name]
        if labels:
            shown = [f"'{label}'" if re.search(r"[^\w.-]", label) else label for label in labels]
            yield (
                study_name,
                "" if len(labels) == len(study.runs) else " ".join(f"--only {label}" for label in shown),
            )


@cache
def _study(name: str) -> Study:
    return read_study(name)


def _method_of(run: StudyRun, study: Study) -> str:
    """A row's method: what its overrides say, else its base recipe's."""
    base = run.base or study.base or next(table.base for table in study.tables.values() if table.base)
    return str(next(iter(run.own_values("method.name")), _named(base)))


@cache
def _named(recipe: str) -> str:
    return str(yaml.safe_load(shipped_files("recipe")[recipe].read_text("utf8"))["method"]["name"])


def published(name: str, meta: Meta) -> str:
    """The method's rows in the papers' main tables: a row per setting, a column per system and metric.

    A page whose head has `published: SENTENCE` and `systems: []` is of a method that these papers lack.
    Its `rows` are those of our own tables.
    """
    if "published" in meta:
        return str(meta["published"])
    parts = []
    for paper, ids in meta.get("tables", MAIN_TABLES).items():
        content = paper_tables(paper)
        tables = [table for table in content["tables"] if table["id"] in ids]
        rows = [
            (f"{table['id']}", row)
            for table in tables
            for row in table["rows"]
            if row.get("method") in meta["systems"]
        ]
        if rows:
            source = "{authors} {year}".format(**content["paper"])
            about, caption = "Table", tables[0]["caption"]
            if len(ids) > 1:  # they differ in the data set, which stands last in their captions
                about, caption = "Tables", caption.rpartition(" on ")[0]
            heading = f"{PAPERS[paper]}, {source}, {about} {', '.join(ids)} ({caption}):"
            parts.append(f"{heading}\n\n{_published_table(rows)}")
    return "\n\n".join(parts)


@cache
def paper_tables(paper: str) -> Mapping[str, Any]:
    """A paper and its tables, as rayfed_kd/comparison/published has them."""
    content: Mapping[str, Any] = yaml.safe_load((PUBLISHED / f"{paper}.yaml").read_text("utf8"))
    return content


def _published_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    keys = [key for key in rows[0][1] if key not in VALUES]
    many_tables, systems = len({table for table, _ in rows}) > 1, {row.get("method") for _, row in rows}
    columns: list[str] = []
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for table, row in rows:
        words = [row["method"] if len(systems) > 1 else "", str(row.get("side", "")), row["metric"]]
        column = ", ".join(filter(None, words))
        if column not in columns:
            columns.append(column)
        setting = (*([table] if many_tables else []), *(str(row[key]) for key in keys))
        lines.setdefault(setting, {})[column] = _value(row)
    heading = [*(["table"] if many_tables else []), *keys, *columns]
    return markdown_table(
        [heading, *([*setting, *(cells.get(c, "") for c in columns)] for setting, cells in lines.items())]
    )


def _value(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return ""
    return f"{row['mean']:g}" if row.get("std") is None else f"{row['mean']:g} ± {row['std']:g}"


def measured(name: str, meta: Meta) -> str:
    """The curve of a real run, if there is one, and the method's rows in the tables of `MEASURED`."""
    picture = Path("images/methods") / f"{name}.png"
    parts = [f"![Accuracy of {name} by round](../{picture})"] if (ROOT / "docs" / picture).is_file() else []
    for page, caveat in MEASURED.items():
        heading, table = "", list[str]()
        for line in [*(ROOT / "docs" / page).read_text("utf8").splitlines(), ""]:
            if line.startswith("#"):
                heading = line.lstrip("# ")
            elif line.startswith("|"):
                table.append(line)
            elif table:
                chosen = _rows_of(table, meta.get("rows", meta["systems"]))
                if chosen:
                    link = f"[{heading}](../{page}#{_anchor(heading)})"
                    parts.append("\n".join([f"{link}{caveat}:", "", *table[:2], *chosen]))
                table = []
    return "\n\n".join(parts)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _rows_of(table: Sequence[str], systems: Sequence[str | None]) -> list[str]:
    """A table's rows of some systems; a row in bold, which heads those below it, only before one of them."""
    chosen, group = list[str](), ""
    names = "|".join(re.escape(system) for system in systems if system is not None)  # None: Table IV's
    wanted = re.compile(rf"(?:{names})(?:$|'s|,| \()")
    for row in table[2:]:
        label = row.strip("|").split("|")[0].strip()
        if label.startswith("**"):
            group = row
        elif names and wanted.match(label):
            chosen += [*filter(None, [group]), row]
            group = ""
    return chosen


def _method(name: str) -> AnyMethod:
    method: AnyMethod = load_object(METHODS[name], "method")
    return method


PARTS: Mapping[str, Callable[[str, Meta], str]] = {
    "options": options,
    "travels": travels,
    "recipes": recipes,
    "published": published,
    "measured": measured,
}


def written(name: str, markdown: str, meta: Meta) -> str:
    """A method's page with every `<!-- generated: PART -->` replaced by that part.

    Raises: KeyError if there is no such part.
    """
    return re.sub(r"<!-- generated: (\w+) -->", lambda match: PARTS[match[1]](name, meta), markdown)


def parted(text: str) -> tuple[Meta, str]:
    """A page's head and its Markdown, as MkDocs parts them."""
    _, head, markdown = re.split(r"^---\n", text, maxsplit=2, flags=re.MULTILINE)
    return yaml.safe_load(head), markdown


def grouped() -> dict[str, dict[str, str]]:
    """Group -> method -> its page's heading, both in order."""
    groups: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    for name in METHODS:
        meta, markdown = parted((ROOT / f"docs/{FOLDER}{name}.md").read_text("utf8"))
        groups[meta["group"]][name] = markdown.partition("\n")[0].lstrip("# ")
    return groups


def method_list() -> str:
    """The tables of docs/methods.md, and which methods take clients' architectures or need images."""
    parts, methods = [], {name: _method(name) for name in METHODS}
    for group, titles in grouped().items():
        rows = [("name", "what it is", "paper", "public data", "schedules")]
        for name in titles:
            method = methods[name]
            facts = (method.summary, method.paper, public_data(method), schedules(method))
            rows.append((f"[`{name}`]({FOLDER}{name}.md)", *facts))
        parts += [f"### {group}", markdown_table(rows)]
    own = [f"`{name}`" for name, method in methods.items() if method.heterogeneous]
    generating = [f"`{name}`" for name, method in methods.items() if by_default(method).generates]
    told = [
        f"**Architectures of the clients' own** (`client_models`) are possible with {in_words(own)}. "
        "All others need one for all clients.",
        f"**Images are needed** by {in_words(generating)}, which generate such, or crop them. "
        "All others take texts and tables as well.",
    ]
    return "\n\n".join([*parts, *(fill(one, 100, break_on_hyphens=False) for one in told)])


def with_list(page: str) -> str:
    """docs/methods.md with the tables that the methods say."""
    start, end = "<!-- methods -->\n", "\n<!-- end -->"
    return page[: page.index(start)] + f"{start}\n{method_list()}\n" + page[page.index(end) :]


def on_config(config: Any) -> Any:
    """Called by MkDocs first: the navigation gets the methods' pages."""
    (methods,) = (entry["Methods"] for entry in config["nav"] if "Methods" in entry)
    for group, titles in grouped().items():
        methods.append({group: [{title: f"{FOLDER}{name}.md"} for name, title in titles.items()]})
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with each page's Markdown."""
    name = Path(page.file.src_uri).stem
    return written(name, markdown, page.meta) if page.file.src_uri.startswith(FOLDER) else markdown


if __name__ == "__main__":
    if len(sys.argv) == 1:
        LIST.write_text(with_list(LIST.read_text("utf8")), "utf8")
        sys.exit()
    meta, markdown = parted((ROOT / f"docs/{FOLDER}{sys.argv[1]}.md").read_text("utf8"))
    sys.stdout.write(written(sys.argv[1], markdown, meta))
