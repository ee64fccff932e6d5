"""A run's own folder: create it, lock it, and describe in it what runs.

The engines enter `run_folder` before the first round; a resumed run enters the same folder again. Tables,
pictures and the summary come later, from `rayfed_kd.results.recorder`.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rayfed_kd.errors import DataError, RecipeError, shown
from rayfed_kd.files import (
    atomic_write,
    locked_folder,
    read_json,
    remove_unfinished,
    unwritable_folder,
    write_json,
    written_aside,
)
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.setting.attacks import attackers
from rayfed_kd.setting.code_identity import package_version

if TYPE_CHECKING:
    from rayfed_kd.setting.setting import Setting

# Packages of which another version can change a result's last bits: a resumed run must have the same ones.
DECISIVE = ("rayfed-kd", "torch", "numpy")
PACKAGES = ("rayfed-kd", "torch", "torchvision", "ray", "numpy", "pyarrow", "pydantic", "tensorboard")


@contextmanager
def run_folder(recipe: Recipe, setting: Setting, engine: str, *, resume: bool = False) -> Iterator[Path]:
    """Create and lock the run's folder while the block runs.

    A new folder gets config.yaml, environment.json, options.yaml, partition.parquet, classes.parquet and, if
    the clock has devices, devices.parquet. Two runs are never mixed in one folder.

    Args:
        recipe: the run's recipe; `results.folder` names the folder, else its name is made of method, data
            and time.
        setting: what the recipe was made into.
        engine: `local` or `ray`, noted in environment.json.
        resume: go on in the folder as it is. Only config.yaml is written, as rounds and placement may change.

    Yields: the folder's absolute path.

    Raises:
        RecipeError: the folder holds another run, another process works in it, or it cannot be written.
    """
    folder = _chosen_folder(recipe)
    with locked_folder(folder, "results.folder", "running"):
        if not resume and (folder / "config.yaml").exists():
            raise RecipeError(f"results.folder: {folder} holds a run already; give another folder")
        try:
            for place in (
                folder,
                folder / "figures",
            ):  # safe: this process holds the lock
                remove_unfinished(place)
            _write_recipe(folder, recipe)
            if not resume:
                _write_description(folder, recipe, setting, engine)
        except OSError as error:
            raise unwritable_folder(folder, "results.folder", error) from None
        yield folder


def _write_recipe(folder: Path, recipe: Recipe) -> None:
    text = yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)
    header = f"{recipe.header}\n" if recipe.header else ""
    atomic_write(folder / "config.yaml", header + text)


def _write_description(folder: Path, recipe: Recipe, setting: Setting, engine: str) -> None:
    """Write all that is known before the first round, but for the recipe."""
    write_json(folder / "environment.json", environment(engine))
    options = yaml.safe_dump(_resolved_options(recipe, setting), sort_keys=False, allow_unicode=True)
    atomic_write(folder / "options.yaml", f"# As they were, with all defaults.\n{options}")
    setting.partition.save(folder / "partition.parquet")
    _save_class_counts(setting, folder / "classes.parquet")
    if setting.devices is not None:
        setting.devices.save(folder / "devices.parquet")


def _resolved_options(recipe: Recipe, setting: Setting) -> dict[str, Any]:
    """The defaults that config.yaml does not hold and that may change one day, and the attackers drawn."""
    options: dict[str, Any] = {
        "method": {"name": recipe.method.name, **setting.method.options.model_dump(mode="json")}
    }
    if recipe.attack is not None:
        options["attackers"] = sorted(attackers(recipe.attack, recipe.partition.clients, recipe.seed))
    return options


def _save_class_counts(setting: Setting, path: Path) -> None:
    """Write a row per client and class: the partition in numbers that can be read without the data."""
    dataset = setting.dataset
    counts = setting.partition.counts(np.asarray(dataset.train.labels), dataset.classes)
    clients, classes = counts.shape
    columns = {
        "client": np.repeat(np.arange(clients), classes),
        "class": list(dataset.class_names) * clients,
        "samples": counts.ravel(),
    }
    with written_aside(path) as aside:
        pq.write_table(pa.table(columns), aside)


def _chosen_folder(recipe: Recipe) -> Path:
    """The folder that the recipe names, else a new one below runs/."""
    if recipe.results.folder is not None:
        return Path(recipe.results.folder).expanduser().resolve()
    # A method or data of the user's own is named as package.module:Object.
    method, data = (location.rpartition(":")[2] for location in (recipe.method.name, recipe.data.name))
    name = f"{method}-{data}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, attempt = Path("runs") / name, 1
    while folder.exists():  # two runs that begin in the same second
        attempt += 1
        folder = folder.with_name(f"{name}-{attempt}")
    return folder.resolve()


def environment(engine: str) -> dict[str, Any]:
    """What a result depends on beside the recipe.

    Args:
        engine: `local`, `ray`, or `none` where nothing runs.

    Returns: command, engine, versions of Python and packages, machine, system, instruction set of torch's
        kernels, names of the GPUs, and the time.
    """
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": sys.argv,
        "engine": engine,
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "system": platform.platform(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "gpus": gpus,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def read_environment(folder: Path) -> dict[str, Any]:
    """What `environment` gave when the run began; empty if the folder has no environment.json.

    Args:
        folder: a run's folder.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / "environment.json"
    content = read_json(path)
    for key, kind in {"packages": dict, "command": list, "gpus": list}.items():
        value = content.get(key, kind())
        if not isinstance(value, kind) or not all(isinstance(name, str) for name in value):
            raise DataError(f"{path} is damaged: {key} is {shown(value)}")
    return content


def changed_packages(folder: Path) -> list[str]:
    """The packages whose version differs from the one with which the run was begun.

    Args:
        folder: a run's folder.

    Returns: a text per package with both versions, as `torch 2.1, now 2.2`; empty if nothing changed or
        the folder has no environment.json.
    """
    return [
        f"{name} {version}, now {package_version(name)}"
        for name, version in read_environment(folder).get("packages", {}).items()
        if name in DECISIVE and version != package_version(name)
    ]
