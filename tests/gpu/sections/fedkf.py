"""FedKF's step in parts, and its round over FedAvg's at the paper's width, 128 (Table X: 1.8 to 1.9)."""

from __future__ import annotations

from collections.abc import Iterator

from fedkf import parts, round_seconds
from size import Row, Size


def rows(size: Size) -> Iterator[Row]:
    """A row for each part of a step, then the rounds."""
    size.set_up()
    width, rounds = size.of((128, 5), (4, 1))
    generator = {"name": "dafl_image", "width": width}
    for name, milliseconds in parts(generator, size.device).items():
        yield {"what": f"width {width}: {name}", "value": milliseconds, "unit": "ms"}
    kf, avg, ratio = round_seconds(generator, rounds, size.device)
    yield {"what": "a round of FedKF", "value": kf, "unit": "s"}
    yield {"what": "a round of FedAvg", "value": avg, "unit": "s"}
    yield {"what": "FedKF over FedAvg, median of pairs", "value": ratio, "unit": ""}
