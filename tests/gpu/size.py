"""What a section is told of the device and of its time, and what all sections use."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Row = dict[str, Any]


class LeftOutError(Exception):
    """Why a section cannot be on this machine."""


@dataclass(frozen=True)
class Size:
    """How large a section may be.

    Attributes:
        device: cuda or cpu.
        toy: as small as it can be: it is the section that is tried, not the device.
        seconds: after which the section is stopped.
    """

    device: str
    toy: bool
    seconds: float

    def of(self, full: T, toy: T) -> T:
        """One of two sizes."""
        return toy if self.toy else full

    @property
    def placement(self) -> dict[str, Any]:
        """Overrides by which clients and server of the local engine compute on the device."""
        share = 0 if self.device == "cpu" else 0.5
        return {"placement.client.num_gpus": share, "placement.server.num_gpus": share}

    def set_up(self) -> None:
        """Sets the device up as a deterministic run does, where a section makes rounds of its own."""
        import torch

        from rayfed_kd.cluster.engine.device import gpu

        torch.set_num_threads(1)
        if self.device != "cpu":
            gpu(deterministic=True)

    def wait(self) -> None:
        """Until the device has done what it was given."""
        import torch

        if self.device != "cpu":
            torch.cuda.synchronize()


def rows_of(key: str, cases: Mapping[str, Callable[[], Row]]) -> Iterator[Row]:
    """A row for each case; what fails is printed, and its row has the fault.

    Args:
        key: the first column, which has the case's name.
        cases: name -> what gives the rest of its row.
    """
    for name, measured in cases.items():
        try:
            yield {key: name, **measured()}
        except Exception as error:  # of any kind: the next case may be well
            traceback.print_exc()
            yield {key: name, "fault": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def needs_ray() -> None:
    """Raises: LeftOutError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise LeftOutError("Ray is not installed")
