"""All files of a comparison, written into one folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.writers.latex import render_latex
from rayfed_kd.comparison.writers.markdown import render_markdown
from rayfed_kd.comparison.writers.parquet import comparison_table
from rayfed_kd.files import atomic_write, written_aside


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write comparison.md, .tex and .parquet, a picture of curves per metric, and TensorBoard's files.

    What an earlier comparison wrote under the same names is replaced.

    Args:
        comparison: what is written.
        folder: made if it is not there.

    Returns: the paths of all files but TensorBoard's.
    """
    # Torch and matplotlib take seconds to load: not before there is something to write.
    from rayfed_kd.comparison.writers.pictures import write_pictures
    from rayfed_kd.comparison.writers.tensorboard import write_tensorboard

    folder.mkdir(parents=True, exist_ok=True)
    markdown, latex, parquet = (folder / f"comparison.{suffix}" for suffix in ("md", "tex", "parquet"))
    atomic_write(markdown, render_markdown(comparison) + "\n")
    atomic_write(latex, render_latex(comparison) + "\n")
    with written_aside(parquet) as aside:
        pq.write_table(comparison_table(comparison), aside)
    pictures = write_pictures(comparison, folder)
    write_tensorboard(comparison, folder / "tensorboard")
    return [markdown, latex, parquet, *pictures]
