"""A figure that needs no pyplot to be seen in a notebook."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that a notebook shows. matplotlib's own formatter is there only after pyplot was imported."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=100)
        return stream.getvalue()
