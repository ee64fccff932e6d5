"""Whether a run's folder can be gone on with, decided before anything in it changes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.result import Tell
from rayfed_kd.files import read_parquet

if TYPE_CHECKING:
    from rayfed_kd.setting.setting import Setting


def check_resumable(folder: Path, setting: Setting, *, restart: bool, tell: Tell) -> None:
    """Check that the run in a folder is this setting's, and that it has a checkpoint or nothing to lose.

    Args:
        folder: the run's, locked by this process. Nothing in it is changed.
        setting: made of the folder's recipe.
        restart: without a usable checkpoint the recorded rounds may go.
        tell: called with a line if they do.

    Raises:
        RecipeError: partition or devices are others than the folder's, or there is no usable checkpoint,
            `restart` is false and rounds would be lost.
    """
    from cluster.server.checkpoints import Checkpointer
    from rayfed_kd.results.tables import read_table

    _check_partition(folder, setting)
    _check_devices(folder, setting)
    faults: list[str] = []
    if Checkpointer(folder, setting.recipe.checkpoint).newest(faults.append, folder / "tables") is not None:
        return
    rounds = read_table(folder / "tables", "rounds").num_rows
    if not rounds:
        return
    recorded = "1 recorded round" if rounds == 1 else f"{rounds} recorded rounds"
    if not restart:
        why = "".join(f"\n{fault}" for fault in faults)
        raise RecipeError(
            f"{folder} has no usable checkpoint, so the run would begin again at round 1, and its {recorded} "
            f"would be deleted. `rayfed-kd resume {shlex.quote(str(folder))} --restart` does so{why}"
        )
    tell(f"no usable checkpoint: the run begins again at round 1, without its {recorded}")


def _check_partition(folder: Path, setting: Setting) -> None:
    from rayfed_kd.data.partition import Partition

    path = folder / "partition.parquet"
    if not path.exists():  # it is written again, as the recipe gives it
        return
    ours = setting.partition
    saved = Partition.load(path, len(setting.dataset.train.labels))
    # Not strict: another number of clients is a difference to report, two lines below.
    pairs = [*zip(ours.train, saved.train, strict=False), *zip(ours.test, saved.test, strict=False)]
    pairs.append((ours.public, saved.public))
    if len(ours.train) != len(saved.train) or any((a.shape != b.shape) or (a != b).any() for a, b in pairs):
        raise RecipeError(f"{folder}: its partition is another than its recipe and the data give now")


def _check_devices(folder: Path, setting: Setting) -> None:
    devices, path = setting.devices, folder / "devices.parquet"
    if devices is not None and path.exists() and not devices.table().equals(read_parquet(path)):
        raise RecipeError(f"{folder}: its devices are others than its recipe and clock.file give now")
