"""Study files: several recipes with several seeds, and the paper's table that they are held against.

title: "CIFAR-10, N 50"
base: configs/kdia/cifar10.yaml       # beside this file or below the current folder
overrides: [rounds=50]
seeds: [1, 2]
folder: runs/kdia-cifar10
tables:                               # one table and one folder each; without it there is one
  beta 0.1: {overrides: [partition.alpha=0.1], where: {beta: 0.1}}
  beta 0.5:
    overrides: [partition.alpha=0.5]  # of all its rows; `base` is possible, too
    runs: {KDIA: [method.lambda_gen=1.0]}
    without: [FedAvg under PAF]
    where: {beta: 0.5}                # which of the paper's records belong to it
runs:
  - {label: KDIA, overrides: [method.tau=2.0], published: {student: KDIA (S), teacher: KDIA (T)}}
  - {label: FedAvg, base: configs/fedavg/cifar10.yaml, published: FedAvg}
  - {label: FedAvg under PAF, overrides: ["attack={name: paf}"], against: FedAvg}   # relative change
models: {student: S, teacher: T}      # evaluated models shown, and how they are called
last: 10                              # evaluated rounds in "mean of the last"
headline: ua                          # the metric of best, "mean of the last" and target;
                                      # default: official test, AMP or UA, the first that there is
target: {run: FedAvg}                 # rounds and bytes to this run's best; or a number in [0, 1]
published:
  - {paper: kdia, table: "2", where: {dataset: CIFAR-10}, metric: accuracy, statistic: last}
quick:                                # `quick=true`: what two cores do in their time
  title: "10 % of the training images, 20 clients"
  overrides: [data.fraction=0.1, partition.clients=20]
  seeds: [1, 2]
  tables: [beta 0.1]
  runs: {KDIA: [method.generator.width=32]}
  differs: "10 % of the training images, 20 clients for 100"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from rayfed_kd.errors import RecipeError, naming, nearest
from rayfed_kd.files import file_name
from rayfed_kd.recipe.loading import load_yaml, overridden, yaml_line
from rayfed_kd.recipe.validation import validate

Metric = Literal["amp", "fm", "wlp", "ua", "server_accuracy"]
Statistic = Literal["last", "best", "mean of last"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StudyRun(_Strict):
    """One row's recipe, and what the paper calls it: for all its evaluated models, or model by model."""

    label: str
    base: str | None = None
    overrides: list[str] = []
    against: str | None = None
    published: str | dict[str, str] | None = None

    def own(self, key: str) -> list[Any]:
        """The value that the row's overrides give `key.path`, in a list; an empty one if they give none."""
        value: Any = {}
        for override in self.overrides:
            value = overridden(value, override)
        for step in key.split("."):
            if not isinstance(value, Mapping) or step not in value:
                return []
            value = value[step]
        return [value]


class Published(_Strict):
    """A paper's table, or those of its rows that `where` names, and how ours is held against it.

    `metric` is the printed one that stands beside our rows and that they are ranked by; `ours` and
    `statistic` say which of our numbers (default: the headline, after the last round); `rows` and `models`
    limit what is held against it to rows of these labels and evaluated models.
    """

    paper: str
    table: str
    where: dict[str, Any] = {}
    differs: str = ""
    metric: str | None = None
    ours: Metric | None = None
    statistic: Statistic = "last"
    rows: list[str] = []
    models: list[str] = []


class TargetRun(_Strict):
    """The accuracy to reach: the best of this run, seed by seed."""

    run: str


class StudyTable(_Strict):
    """One of a study's tables: what all its rows share, and which of the paper's records belong to it.

    `runs` are overrides of single rows, `without` the rows that this table does not have.
    """

    base: str | None = None
    overrides: list[str] = []
    runs: dict[str, list[str]] = {}
    without: list[str] = []
    where: dict[str, Any] = {}


class Quick(_Strict):
    """A study's small version: overrides for all rows, then for single ones, after the study's own."""

    title: str = Field(min_length=1)
    overrides: list[str] = []
    seeds: list[int] | None = Field(None, min_length=1)
    tables: list[str] | None = Field(None, min_length=1)
    runs: dict[str, list[str]] = {}
    differs: str = ""


class Study(_Strict):
    """A study file."""

    title: str = ""
    base: str | None = None
    overrides: list[str] = []
    seeds: list[int] = Field([1], min_length=1)
    folder: str
    tables: dict[str, StudyTable] = {}
    runs: list[StudyRun] = Field(min_length=1)
    models: dict[str, str] = {}
    last: int = Field(10, ge=1)
    headline: Metric | None = None
    target: Annotated[float, Field(ge=0, le=1)] | TargetRun | None = None
    published: list[Published] = []
    quick: Quick | None = None
    _source: str = PrivateAttr("")

    @property
    def source(self) -> str:
        """The file that it was read from; "" without one."""
        return self._source

    def shortened(self) -> Study:
        """The quick version, in a folder of its own, with what differs said of every published table.

        Raises: RecipeError if there is none, or it names a row or table that is not there.
        """
        quick = self.quick
        if quick is None:
            raise RecipeError("quick=true: this study has no quick version")
        _known("quick.tables", quick.tables or (), self.tables)
        published = [
            named.model_copy(update={"differs": "; ".join(filter(None, (named.differs, quick.differs)))})
            for named in self.published
        ]
        tables = {name: table for name, table in self.tables.items() if name in (quick.tables or self.tables)}
        changes = {
            "title": "; ".join(filter(None, (self.title, f"quick: {quick.title}"))),
            "overrides": [*self.overrides, *quick.overrides],
            "seeds": quick.seeds or self.seeds,
            "folder": f"{self.folder}-quick",
            "tables": tables,
            "runs": self._changed("quick.runs", quick.runs),
            "published": published,
            "quick": None,
        }
        return self.model_copy(update=changes)

    def _tabled(self, names: Sequence[str]) -> Study:
        """With the tables of these names; all for none."""
        if names and not self.tables:
            raise RecipeError(f"--table {names[0]!r}: this study has one table, without a name")
        _known("--table", names, self.tables)
        tables = {name: table for name, table in self.tables.items() if name in (names or self.tables)}
        return self.model_copy(update={"tables": tables})

    def split(self) -> list[Study]:
        """One study per table, each in a folder of its own; itself if it has no tables.

        Raises: RecipeError if a table names a row that is not there.
        """
        if not self.tables:
            return [self]
        return [self._one(name, table) for name, table in self.tables.items()]

    def _one(self, name: str, table: StudyTable) -> Study:
        _known(f"tables.{name}.without", table.without, [run.label for run in self.runs])
        runs = self._changed(f"tables.{name}.runs", table.runs)
        changes: dict[str, Any] = {
            "title": "; ".join(filter(None, (self.title, name))),
            "base": table.base or self.base,
            # After the study's own, and after the quick version's: a table is told by them.
            "overrides": [*self.overrides, *table.overrides],
            "folder": str(Path(self.folder) / file_name(name)),
            "runs": runs,
            "published": [
                named.model_copy(update={"where": {**named.where, **table.where}}) for named in self.published
            ],
            "tables": {},
        }
        return self.model_copy(update=changes)._without(table.without)

    def changed(
        self,
        overrides: Sequence[str] = (),
        seeds: int | None = None,
        *,
        only: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> Study:
        """What a command line makes of it; the title and what differs of every published table say so.

        Args:
            overrides: of every row, after the row's own.
            seeds: 1 to this many instead of the study's.
            only: labels of the rows to keep; empty: all.
            without: labels of rows to leave out.
        Raises: RecipeError if an override sets a run's folder.
        """
        asked = next((change for change in overrides if change.startswith("results.")), None)
        if asked is not None:
            raise RecipeError(
                f"override {asked!r}: a comparison gives each run its folder; expected --folder"
            )
        labels = [run.label for run in self.runs]
        left_out = [label for label in labels if label in without or label not in (only or labels)]
        study, missed = self._without(left_out)._unreferred(left_out)
        told = [override + study._beaten(override) for override in overrides]
        seeds_now = self.seeds if seeds is None else list(range(1, seeds + 1))
        if seeds_now != self.seeds:
            told.append(f"seeds {_listed(seeds_now)} for {_listed(self.seeds)}")
        if left_out and only:
            told.append(f"of {len(labels)} rows only {in_words([run.label for run in study.runs])}")
        elif left_out:
            told.append(f"without {in_words(left_out)}")
        runs = [run.model_copy(update={"overrides": [*run.overrides, *overrides]}) for run in study.runs]
        return study.model_copy(update={"seeds": seeds_now, "runs": runs})._told([*told, *missed])

    def _without(self, labels: Sequence[str]) -> Study:
        """Without these rows, and without printed tables that are about them alone."""
        kept = [run for run in self.runs if run.label not in labels]
        published = []
        for named in self.published:
            rows = [label for label in named.rows if label not in labels]
            if rows or not named.rows:  # an empty list would stand for all rows
                published.append(named.model_copy(update={"rows": rows}))
        return self.model_copy(update={"runs": kept, "published": published})

    def _unreferred(self, labels: Sequence[str]) -> tuple[Study, list[str]]:
        """Without what is held against rows that are left out, and what that is."""
        told, target = [], self.target
        if isinstance(target, TargetRun) and target.run in labels:
            told.append(f"no target, which was {target.run}'s best")
            target = None
        runs = []
        for run in self.runs:
            if run.against in labels:
                told.append(f"no relative change of {run.label}, which was to {run.against}")
            runs.append(run.model_copy(update={"against": None}) if run.against in labels else run)
        return self.model_copy(update={"target": target, "runs": runs}), told

    def _beaten(self, override: str) -> str:
        """Which rows' own settings an override on the command line takes the place of, in brackets."""
        key, _, text = override.partition("=")
        asked = StudyRun(label="command line", overrides=[override]).own(key)
        rows: dict[str, list[str]] = {}
        for run in self.runs:
            with naming(f"{self.source or 'study'}, row {run.label}"):
                rows_own = run.own(key)
            if rows_own and rows_own != asked:
                rows.setdefault(yaml_line(rows_own[0]), []).append(run.label)
        told = [
            f"{'rows' if len(labels) > 1 else 'row'} {in_words(labels)}: {own} -> {text}"
            for own, labels in rows.items()
        ]
        return f" ({'; '.join(told)})" if told else ""

    def _told(self, changes: Sequence[str]) -> Study:
        if not changes:
            return self
        told = f"changed on the command line: {', '.join(changes)}"
        published = [
            named.model_copy(update={"differs": "; ".join(filter(None, (named.differs, told)))})
            for named in self.published
        ]
        title = "; ".join((self.title or "Comparison", told))
        return self.model_copy(update={"title": title, "published": published})

    def _changed(self, path: str, overrides: Mapping[str, list[str]]) -> list[StudyRun]:
        """The rows with further overrides, by label."""
        _known(path, overrides, [run.label for run in self.runs])
        return [
            run.model_copy(update={"overrides": [*run.overrides, *overrides.get(run.label, [])]})
            for run in self.runs
        ]


def _known(path: str, named: Iterable[str], there: Iterable[str]) -> None:
    for name in named:
        if name not in there:
            listed = list(there)
            raise RecipeError(f"{path}: {name!r}: there are {', '.join(listed)}.", hint=nearest(name, listed))


def read_study(path: Path) -> Study:
    """The study file.

    Raises: RecipeError
    """
    if not path.is_file():
        raise RecipeError(f"{path}: no such study file")
    with naming(path):
        study = validate(Study, load_yaml(path.read_text(encoding="utf8")))
    study._source = str(path)
    return study


def studies_of(
    sources: Sequence[str],
    overrides: Sequence[str] = (),
    *,
    seeds: int | None = None,
    folder: str | None = None,
    quick: bool = False,
    tables: Sequence[str] = (),
    only: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Study]:
    """What a command line names: one study file, or recipes, each a row. One study per table.

    Args:
        sources: files.
        overrides, seeds, only, without: as `Study.changed` takes them; a table without a row is left out.
        folder: in place of the study's.
        quick: the study's quick version.
        tables: names of those to keep; empty: all.
    Raises: RecipeError
    """
    if len(sources) == 1 and "runs" in (_raw(sources[0]) or {}):
        study = read_study(Path(sources[0]))
    else:
        names = [_label(source, sources) for source in sources]
        runs = [{"label": name, "base": source} for name, source in zip(names, sources, strict=True)]
        content = {
            "runs": runs,
            "folder": f"runs/compare-{'-'.join(names)}",
            "seeds": list(range(1, (seeds or 1) + 1)),
        }
        study = Study.model_validate(content)
    with naming(study.source or None):
        if quick:
            study.split()  # a name that is wrong in a table which is left out is wrong, too
            study = study.shortened()
        if folder is not None:
            study = study.model_copy(update={"folder": folder})
        labels = [run.label for run in study.runs]
        _known("--only", only, labels)
        _known("--without", without, labels)
        asked = study._tabled(tables).split()
        changed = [table.changed(overrides, seeds, only=only, without=without) for table in asked]
        if not any(table.runs for table in changed):
            raise RecipeError("--only, --without: they leave no row")
        return [table for table in changed if table.runs]


def in_words(labels: Sequence[str]) -> str:
    """Labels in a sentence, as `A, "B, server" and C`: in quotes where they have a comma of their own."""
    shown = [f'"{label}"' if "," in label else label for label in labels]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _raw(source: str) -> Any:
    path = Path(source)
    if not path.is_file():
        raise RecipeError(f"{source}: no such file")
    return load_yaml(path.read_text(encoding="utf8"))


def _label(source: str, sources: Sequence[str]) -> str:
    """A file's name without its ending; with its folder's where two files are called the same."""
    path = Path(source)
    same = [other for other in sources if Path(other).stem == path.stem]
    return path.stem if len(same) == 1 else f"{path.parent.name}-{path.stem}"
