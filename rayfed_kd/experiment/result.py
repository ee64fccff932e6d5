"""The result of a run, and the types of what a run reports meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.files.whole import read_json
from rayfed_kd.results.telling import Event

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from matplotlib.figure import Figure

    from rayfed_kd.experiment.exported_model import ExportedModel


OnEvent = Callable[[Event], None]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """The result of a run. Printed, and as the last line of a notebook's cell, it shows its summary.

    Attributes:
        folder: the run's folder.
        summary: the content of summary.json.
        tables: name -> Arrow table: rounds, metrics, clients, scores, messages, hosts, and
            privacy where the recipe has it.
        models: name -> [P] float32, the shared models evaluated in the last round, as flat vectors; none if
            the run had ended before this call. `load` makes a module of one, in either case.
    """

    folder: Path
    summary: Mapping[str, Any] = field(repr=False)
    tables: Mapping[str, pa.Table] = field(repr=False)
    models: Mapping[str, np.ndarray[Any, Any]] = field(repr=False)

    def table(self, name: str = "metrics") -> pa.Table:
        """One of the run's tables, as Arrow; `.to_pandas()` of it is a pandas.DataFrame.

        Args:
            name: rounds, metrics, clients, scores, messages, privacy or hosts.

        Raises:
            RecipeError: there is no such table.
        """
        from rayfed_kd.results.schemas import check_table_name

        check_table_name(name)
        return self.tables[name]

    def plot(self) -> Figure:
        """The curves of the run: AMP, FM, WLP and the official test by round, a line for each model.

        Returns: a figure that belongs to nobody: `figure.savefig("curves.png")` saves it, and a notebook
            shows it.

        Raises:
            RecipeError: the run evaluated no model, or on no samples.
        """
        from rayfed_kd.results.charts.lines import curves_figure

        figure = curves_figure(self.tables["metrics"])
        if figure is None:
            raise RecipeError(f"{self.folder}: no round was evaluated, so there is no curve")
        return figure

    def load(self, model: str, client: int | None = None) -> ExportedModel:
        """One of the run's models as a module that takes images, in eval mode.

        The weights are those of the newest checkpoint, which a run writes when it ends.

        Args:
            model: name of one of the evaluated models, such as "oca".
            client: id of the client, if `model` is the clients' own; else None.

        Raises:
            RecipeError: there is no such model, or no checkpoint.
        """
        from rayfed_kd.experiment.exported_model import described_model
        from rayfed_kd.experiment.exporting import read_model

        return described_model(*read_model(self.folder, model, client))

    def __str__(self) -> str:
        from rayfed_kd.results.screen_table import table_text
        from rayfed_kd.results.summary_table import summary_notes, summary_tables

        lines = [*map(table_text, summary_tables(self.summary)), *summary_notes(self.summary)]
        return "\n".join([*lines, f"folder: {self.folder}"])

    def _repr_html_(self) -> str:
        from rayfed_kd.results.screen_table import preformatted

        return preformatted(str(self))


def read_summary(folder: Path) -> dict[str, Any]:
    """The content of a run folder's summary.json; empty if there is none, as of a run that was killed.

    Raises: DataError if the file is damaged.
    """
    path = folder / "summary.json"
    summary = read_json(path)
    if summary and not (isinstance(summary.get("rounds"), int) and isinstance(summary.get("status"), str)):
        raise DataError(f"{path} is damaged: expected the keys status and rounds")
    return summary
