"""The schema of a study file: recipes, seeds, and the paper's table that they are held against.

Every key, in an example:

title: "CIFAR-10, N 50"
base: kdia/cifar10                    # a name of `rayfed-kd recipes`, or a file below the current folder
overrides: [rounds=50]
seeds: [1, 2]                         # or how many: 2
folder: runs/kdia-cifar10
tables:                               # one table and one folder each; without it there is one
  beta 0.1: {overrides: [partition.alpha=0.1], where: {beta: 0.1}}
  beta 0.5:
    overrides: [partition.alpha=0.5]  # of all its rows; `base` is possible, too
    runs: {KDIA: [method.lambda_gen=1.0]}
    without: [FedAvg under PAF]
    where: {beta: 0.5}                # which of the paper's records belong to it
    target: 0.5                       # in place of the study's
runs:
  - {label: KDIA, overrides: [method.tau=2.0], published: {student: KDIA (S), teacher: KDIA (T)}}
  - {label: FedAvg, base: fedavg/cifar10, published: FedAvg}   # a name alone is of all models of the row
  - label: FedProx                    # what a space file holds, or its name; its samples do not count
    overrides: ["method={name: fedprox}"]
    search: {metric: ua/global, space: {method.mu: {loguniform: [0.001, 1.0]}}}
  - {label: FedAvg under PAF, overrides: ["attack={name: paf}"], against: FedAvg}   # its difference is to
models: {student: S, teacher: T}      # evaluated models shown, and how they are called
last: 10                              # evaluated rounds in "mean of the last"; default: 10
headline: ua                          # the metric of best, "mean of the last" and target;
                                      # default: official test, AMP or UA, the one that most rows have
target: {run: FedAvg}                 # rounds and bytes to this run's best; or a number in [0, 1]
totals: true                          # also the real seconds of a run, and curves over them and MiB
against: [bytes, epsilon]             # curves of the headline over these: bytes, bytes_up, bytes_down,
                                      # epsilon, local_epsilon, sim_s, wall_s
baseline: FedAvg                      # what the others' paired differences are to; default: the first row
baselines: {personal: Stand-alone}    # another row for rows of these evaluated models
claims:                               # each gets a verdict: shown, not shown, contradicted
  - {says: T above S, higher: {run: KDIA, model: teacher}, lower: {run: KDIA, model: student}}
  - {says: S above FedAvg, higher: {run: KDIA, model: student}, lower: FedAvg}
  - {says: T no worse than FedAvg, higher: KDIA, lower: FedAvg, margin: 1.0}   # by a point, as in the table
  - {says: T ends above FedAvg, higher: KDIA, lower: FedAvg, metric: ua, statistic: last}
                                      # default: the headline's mean of the last; statistic also best and
                                      # mean of all; metric also bytes
search: {seeds: [101, 102], samples: 8}   # rows with `search` are searched first: so many configurations
                                      # each, on seeds on which nothing is judged; then the best one runs
controls: all                         # rows that are added to methods on public labels: labels (the
                                      # default) adds `labels alone`; all adds `teacher at chance` and
                                      # `no labels`, too; none adds none, and a sentence says so
paper:                                # with it, or `--paper`: files for a paper, in the folder's `paper`
  rows: [KDIA, FedAvg]                # default: all
  columns: [ua, difference]           # metrics, `difference` and `published`; default: headline, difference
  width: 3.25                         # inches of a column; figures are PDF and SVG
  style: paper.mplstyle               # a style file of matplotlib's; default: none
published:
  - paper: kdia
    table: "2"
    where: {dataset: CIFAR-10}
    metric: accuracy                  # the paper's, if the table prints several
    ours: server_accuracy             # our metric that is ranked against it; default: the headline
    statistic: last                   # or best, or mean of last
    rows: [KDIA, FedAvg]              # held against it; default: all
    models: [student, global]         # of them; default: all
    differs: "50 clients for 100"     # from the paper's setting, in the table's heading
quick:                                # `quick=true`: what two cores do in their time; it has these keys
  title: "10 % of the training images, 20 clients"
  overrides: [data.fraction=0.1, partition.clients=20]   # not what a table sets itself
  seeds: [1, 2]
  tables: [beta 0.1]                  # these alone run; or {beta 0.1: [rounds=5], beta 0.5: []}, with
                                      # changes to all rows of a table, after the table's own
  runs: {KDIA: [method.generator.width=32]}
  differs: "10 % of the training images, 20 clients for 100"   # from the paper, beside its values
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from rayfed_kd.comparison.curves import AxisName
from rayfed_kd.errors import RecipeError, naming, nearest, quoted
from rayfed_kd.files.folders import plain_folder
from rayfed_kd.recipe.loading import overridden
from rayfed_kd.recipe.strict import Closed, PathText
from rayfed_kd.recipe.validation import validate
from rayfed_kd.recipe.yaml_documents import read_yaml
from rayfed_kd.results.summary import known_metric
from rayfed_kd.tuning.space import MOST_TRIALS

MOST_SEEDS = 10_000  # by number
MOST_CHARACTERS = 150  # of a label: it is a part of its runs' folder names
Metric = Annotated[str, AfterValidator(known_metric)]
Claimed = Annotated[str, AfterValidator(lambda name: name if name == "bytes" else known_metric(name))]
Statistic = Literal["last", "best", "mean of last"]
ClaimStatistic = Literal["last", "best", "mean of last", "mean of all"]


class StudyRun(Closed):
    """One row's recipe, and what the paper calls it: for all its evaluated models, or model by model.

    Attributes:
        label: the row's name; no other row has it.
        base: the recipe's file or name, or the recipe itself; None: the study's.
        overrides: changes to the recipe, as KEY=VALUE.
        against: the label of the row that this one's difference is to; None: the study's baseline.
        published: the paper's name of the system, or evaluated model -> name.
        search: a space's file, or what it holds: what is searched before the row is judged; None: nothing.
    """

    label: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    base: str | dict[str, Any] | None = None
    overrides: list[str] = []
    against: str | None = None
    published: str | dict[str, str] | None = None
    search: str | dict[str, Any] | None = None

    def own_values(self, key: str) -> list[Any]:
        """The value that the row's overrides give a recipe key.

        Args:
            key: as `method.tau`.

        Returns: a list with the value; an empty one if they give none, as None is a value, too.
        """
        value: Any = reduce(overridden, self.overrides, dict[str, Any]())
        for step in key.split("."):
            if not isinstance(value, Mapping) or step not in value:
                return []
            value = value[step]
        return [value]

    def with_overrides(self, overrides: Iterable[str]) -> StudyRun:
        """The row with further overrides, which win over its own."""
        return self.model_copy(update={"overrides": [*self.overrides, *overrides]})


class Published(Closed):
    """A paper's table, or some of its rows, and which of our numbers stands beside it.

    Attributes:
        paper, table: as in rayfed_kd/comparison/published.
        where: keys and values that the paper's records must have.
        differs: what differs here from the paper's setting; the table's heading says it.
        metric: the printed metric that stands beside our rows; needed if the table prints several.
        ours: our metric that is ranked against it; None: the headline.
        statistic: which of our numbers: after the last round, the best, or the mean of the last.
        rows, models: labels and evaluated models that are held against it; empty: all.
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

    def with_difference(self, difference: str) -> Published:
        """The same table, with one more thing that differs here."""
        return self.model_copy(update={"differs": joined(self.differs, difference)})


class TargetRun(Closed):
    """The accuracy to reach: the best of this row, seed by seed."""

    run: str


Target = Annotated[float, Field(ge=0, le=1)] | TargetRun | None


class RowModel(Closed):
    """A row of the table: one evaluated model of a run.

    Attributes:
        run: the run's label.
        model: None: the first of the study's models that the run has.
    """

    run: str
    model: str | None = None


def _row_model(written: Any) -> Any:
    return {"run": written} if isinstance(written, str) else written


def _unchanged(written: Any) -> Any:
    """Tables without changes, where a list has their names."""
    named = isinstance(written, list) and all(isinstance(name, str) for name in written)
    return {name: [] for name in written} if named else written


def _first_seeds(written: Any) -> Any:
    """The seeds 1 to a number, as `--seeds` has them; what is no such number is left to the schema."""
    if isinstance(written, bool) or not isinstance(written, int) or not 1 <= written <= MOST_SEEDS:
        return written
    return list(range(1, written + 1))


Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), BeforeValidator(_first_seeds)]


class Claim(Closed):
    """A claim of a paper: one row lies above another one.

    Attributes:
        says: the claim in words.
        higher, lower: the rows; a label stands for its first model.
        metric: None: the headline. `bytes`: all that was sent, in MiB.
        statistic: which of a run's numbers; `mean of all` evaluations is high where a run learns fast; it is
            over the rounds of the shorter of the two runs.
        margin: by how much the higher row may lie below the lower one, for a claim of `at least`, in the unit
            of the table: points of accuracy, MiB, or that of a metric that is not in percent.
    """

    says: str = Field(min_length=1)
    higher: Annotated[RowModel, BeforeValidator(_row_model)]
    lower: Annotated[RowModel, BeforeValidator(_row_model)]
    metric: Claimed | None = None
    statistic: ClaimStatistic = "mean of last"
    margin: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _effective(self) -> Claim:
        if self.metric == "bytes" and "statistic" in self.model_fields_set:
            raise ValueError("statistic: bytes are those of the whole run; expected none")
        return self


class StudyTable(Closed):
    """One of a study's tables.

    Attributes:
        base: the recipe of its rows that name none; None: the study's.
        overrides: changes to all its rows, after the study's.
        runs: label -> changes to this row, after its own.
        without: labels of the rows that this table does not have.
        where: which of the paper's records belong to it.
        target: in place of the study's.
    """

    base: str | dict[str, Any] | None = None
    overrides: list[str] = []
    runs: dict[str, list[str]] = {}
    without: list[str] = []
    where: dict[str, Any] = {}
    target: Target = None


class Quick(Closed):
    """A study's small version: overrides for all rows, then for single ones, after the study's own.

    Attributes:
        title: what is small about it; stands in the table's title.
        overrides: changes to all rows.
        seeds: in place of the study's.
        tables: names of the tables that it has, or name -> changes to all rows of this table; None: all.
        runs: label -> changes to this row.
        differs: what differs from the paper's setting.
    """

    title: str = Field(min_length=1)
    overrides: list[str] = []
    seeds: Seeds | None = None
    tables: Annotated[dict[str, list[str]] | None, Field(min_length=1), BeforeValidator(_unchanged)] = None
    runs: dict[str, list[str]] = {}
    differs: str = ""


class StudySearch(Closed):
    """The budget of each searched row: configurations drawn at random, each with each of the seeds.

    Attributes:
        seeds: none on which the study judges.
        samples: configurations of a row.
    """

    seeds: Seeds
    samples: int = Field(ge=1, le=MOST_TRIALS)


class Paper(Closed):
    """Which part of a comparison goes into a paper, and how.

    Attributes:
        rows: labels; empty: all.
        columns: metrics, `difference` to the baseline, and `published`; empty: headline and difference.
        width: of a figure, inches.
        style: a style file of matplotlib's, from the folder in which the command runs; None: none.
    """

    rows: list[str] = []
    columns: list[Literal["difference", "published"] | Metric] = []
    width: float = Field(3.3, gt=0, le=30)
    style: PathText | None = None


class Study(Closed):
    """A study file. The example at the top of this module explains every key."""

    called: ClassVar[str] = "a study"

    title: str = ""
    base: str | dict[str, Any] | None = None
    overrides: list[str] = []
    seeds: Seeds = [1]
    folder: Annotated[PathText, AfterValidator(plain_folder)]
    tables: dict[str, StudyTable] = {}
    runs: list[StudyRun] = Field(min_length=1)
    models: dict[str, str] = {}
    last: int = Field(10, ge=1)
    headline: Metric | None = None
    target: Target = None
    totals: bool = False
    against: Annotated[list[AxisName], BeforeValidator(lambda x: [x] if isinstance(x, str) else x)] = []
    baseline: str | None = None
    baselines: dict[str, str] = {}
    claims: list[Claim] = []
    search: StudySearch | None = None
    controls: Literal["labels", "all", "none"] = "labels"
    paper: Paper | None = None
    published: list[Published] = []
    quick: Quick | None = None
    _source: str = PrivateAttr("")
    _changes: tuple[str, ...] = PrivateAttr(())
    _found: tuple[str, ...] = PrivateAttr(())

    @property
    def changes(self) -> Sequence[str]:
        """What the command line changed of the study, as its title says it; empty: nothing."""
        return self._changes

    @property
    def found(self) -> Sequence[str]:
        """What rows' searches found, a sentence each."""
        return self._found

    @property
    def source(self) -> str:
        """The file that the study was read from; "" if it was made of recipes on a command line."""
        return self._source

    @property
    def labels(self) -> list[str]:
        """The rows' labels, in the study's order."""
        return [run.label for run in self.runs]

    def runs_with(self, path: str, overrides: Mapping[str, list[str]]) -> list[StudyRun]:
        """The rows with further overrides.

        Args:
            path: where in the study the overrides stand, for the error.
            overrides: label -> overrides of this row.

        Raises:
            RecipeError: a label is no row's.
        """
        check_names(path, overrides, self.labels)
        return [run.with_overrides(overrides.get(run.label, [])) for run in self.runs]


def read_study(path: str | Path, folder: str | None = None) -> Study:
    """Read a study file.

    Args:
        path: a YAML file, or the name of a study that comes with the package.
        folder: that of a study which names none.

    Raises:
        RecipeError: there is no such file, or it has a key or value that no study has.
    """
    with naming(path):
        study = validate(Study, with_folder(read_yaml(path, "study"), folder))
    study._source = str(path)
    return study


def with_folder(content: Any, folder: str | None) -> Any:
    """A study's content with a folder, if it names none itself.

    Args:
        content: as it was written; what is no mapping stays as it is.
        folder: None: none.
    """
    if folder is None or not isinstance(content, Mapping) or "folder" in content:
        return content
    return {**content, "folder": folder}


def check_names(path: str, names: Iterable[str], valid: Iterable[str]) -> None:
    """Check that every name is a valid one.

    Args:
        path: which option or key has the names, for the error.
        names: what was written.
        valid: what may be written.

    Raises:
        RecipeError: a name is not valid; it lists the valid ones and suggests the nearest. Or the names are
            one text, which would be read letter by letter.
    """
    if isinstance(names, str):
        raise RecipeError(f"{path} = {names!r}: expected a list, as [{names!r}]")
    valid = list(valid)
    for name in names:
        if name not in valid:
            raise RecipeError(
                f"{path}: {name!r} is unknown; expected one of {', '.join(map(quoted, valid))}.",
                hint=nearest(name, valid),
            )


def joined(*texts: str) -> str:
    """The texts that are not empty, with semicolons between them."""
    return "; ".join(filter(None, texts))
