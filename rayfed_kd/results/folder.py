"""A run's own folder: made, locked, and told what ran in it."""

from __future__ import annotations

import json
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

from rayfed_kd.errors import RecipeError
from rayfed_kd.files import locked_folder, unwritable, write_json
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.setting.attacks import attackers
from rayfed_kd.setting.code_identity import package_version

if TYPE_CHECKING:
    from rayfed_kd.setting.setting import Setting

# What results depend on.
DECISIVE = ("rayfed-kd", "torch", "numpy")
PACKAGES = ("rayfed-kd", "torch", "torchvision", "ray", "numpy", "pyarrow", "pydantic", "tensorboard")


@contextmanager
def run_folder(recipe: Recipe, setting: Setting, engine: str, *, resume: bool = False) -> Iterator[Path]:
    """Makes the run's folder with config.yaml, environment.json, partition, classes, devices; locks it.

    `resume`: goes on in the folder as it is; only config.yaml is written, as rounds and placement may change.

    Raises: RecipeError if another run lies or works there: two runs are never mixed.
    """
    folder = _chosen(recipe)
    with locked_folder(folder, "results.folder", "running"):
        if not resume and (folder / "config.yaml").exists():
            raise RecipeError(f"results.folder: {folder} holds a run already; give another folder")
        try:
            _describe(folder, recipe, setting, engine, begun=resume)
        except OSError as error:
            raise unwritable(folder, "results.folder", error) from None
        yield folder


def _describe(folder: Path, recipe: Recipe, setting: Setting, engine: str, *, begun: bool) -> None:
    """Writes what is known before the first round; of a run that was begun only the recipe."""
    text = yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)
    header = f"{recipe.header}\n" if recipe.header else ""
    (folder / "config.yaml").write_text(header + text, encoding="utf8")
    if begun:
        return
    write_json(folder / "environment.json", environment(engine))
    resolved = yaml.safe_dump(_resolved_options(recipe, setting), sort_keys=False, allow_unicode=True)
    (folder / "options.yaml").write_text(f"# As they were, with all defaults.\n{resolved}", encoding="utf8")
    setting.partition.save(folder / "partition.parquet")
    _save_class_counts(setting, folder / "classes.parquet")
    if setting.devices is not None:
        setting.devices.save(folder / "devices.parquet")


def _resolved_options(recipe: Recipe, setting: Setting) -> dict[str, Any]:
    """What config.yaml leaves to defaults that may change one day, and who was drawn to attack."""
    found: dict[str, Any] = {
        "method": {"name": recipe.method.name, **setting.method.options.model_dump(mode="json")}
    }
    if recipe.attack is not None:
        found["attackers"] = sorted(attackers(recipe.attack, recipe.partition.clients, recipe.seed))
    return found


def _save_class_counts(setting: Setting, path: Path) -> None:
    """A row per client and class: the partition in numbers that can be read without the data."""
    dataset = setting.dataset
    counts = setting.partition.counts(np.asarray(dataset.train.labels), dataset.classes)
    clients, classes = counts.shape
    columns = {
        "client": np.repeat(np.arange(clients), classes),
        "class": list(dataset.class_names) * clients,
        "samples": counts.ravel(),
    }
    pq.write_table(pa.table(columns), path)


def _chosen(recipe: Recipe) -> Path:
    if recipe.results.folder is not None:
        return Path(recipe.results.folder).expanduser().resolve()
    name = recipe.method.name.rpartition(":")[2]
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    folder = Path("runs") / f"{name}-{recipe.data.name.rpartition(':')[2]}-{stamp}"
    attempt = 1
    while folder.exists():
        attempt += 1
        folder = folder.with_name(f"{name}-{recipe.data.name.rpartition(':')[2]}-{stamp}-{attempt}")
    return folder.resolve()


def environment(engine: str) -> dict[str, Any]:
    """What a result depends on beside the recipe: versions, machine, instruction set, command."""
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


def changed_packages(folder: Path) -> list[str]:
    """Packages whose version is another than when the run in `folder` was begun, with both."""
    path = folder / "environment.json"
    begun = json.loads(path.read_text(encoding="utf8")).get("packages", {}) if path.is_file() else {}
    return [
        f"{name} {version}, now {package_version(name)}"
        for name, version in begun.items()
        if name in DECISIVE and version != package_version(name)
    ]
