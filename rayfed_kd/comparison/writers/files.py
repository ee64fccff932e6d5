"""All files of a comparison, written into one folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.writers.latex import render_latex
from rayfed_kd.comparison.writers.markdown import render_markdown
from rayfed_kd.comparison.writers.parquet import comparison_table
from rayfed_kd.files import atomic_write, locked_folder, remove_unfinished, written_aside

WAIT_S = 60.0  # for another comparison that writes to the same folder


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write comparison.md, .tex and .parquet, and pictures of curves.

    What an earlier comparison wrote under the same names is replaced.

    Args:
        comparison: what is written.
        folder: made if it is not there.

    Returns: the paths of all files.

    Raises:
        RecipeError: the folder cannot be written, or another process has been writing to it for a minute.
    """
    # Matplotlib takes a second to load: not before there is something to write.
    from rayfed_kd.comparison.writers.pictures import write_pictures

    markdown, latex, parquet = (folder / f"comparison.{suffix}" for suffix in ("md", "tex", "parquet"))
    with locked_folder(folder, "--folder", "writing a comparison", WAIT_S):
        remove_unfinished(folder)
        atomic_write(markdown, render_markdown(comparison) + "\n")
        atomic_write(latex, render_latex(comparison) + "\n")
        with written_aside(parquet) as aside:
            pq.write_table(comparison_table(comparison), aside)
        pictures = write_pictures(comparison, folder)
    return [markdown, latex, parquet, *pictures]
