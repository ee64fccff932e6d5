"""A run's own folder: create it, lock it, and describe in it what runs.

A run begins and goes on in a locked folder with `write_description`. Tables, pictures and the summary come
later, from `rayfed_kd.results.recorder`.
"""

from __future__ import annotations

import platform
import secrets
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayfed_kd.data.cache import content_hashes
from rayfed_kd.errors import DataError, RecipeError, shown
from rayfed_kd.files.folders import new_folder, writing
from rayfed_kd.files.whole import atomic_write, read_json, remove_unfinished, write_json, write_parquet
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.yaml_documents import yaml_text
from rayfed_kd.results.schemas import CONFIG, DESCRIPTION
from rayfed_kd.setting.attacks import attackers
from rayfed_kd.setting.code_identity import code_of, named_files, own_code, package_version, texts
from rayfed_kd.setting.setting import Setting

# Packages of which another version can change a result's last bits: a resumed run must have the same ones.
DECISIVE = ("rayfed-kd", "torch", "numpy")
PACKAGES = ("rayfed-kd", "torch", "torchvision", "ray", "numpy", "pyarrow", "pydantic", "tensorboard")


def write_description(folder: Path, recipe: Recipe, setting: Setting, engine: str, *, resume: bool) -> None:
    """Describe a run that begins or goes on in its folder, which this process has locked.

    config.yaml is written last: a folder without it holds no run, and the same command works again. A folder
    with it holds a run that `resume` goes on with. Two runs are never mixed in one folder: the caller has
    asked `check_unused` of rayfed_kd/experiment/resumability.py.

    Args:
        folder: the run's.
        recipe: the run's recipe; rounds and placement of one that goes on may have changed.
        setting: what the recipe was made into.
        engine: `local` or `ray`, noted in environment.json.
        resume: the run goes on, and only missing files are written beside config.yaml. Those of a run that
            begins are of another recipe, whose run was killed before it began.

    Raises:
        RecipeError: the folder cannot be written.
    """
    with writing(folder, "results.folder"):
        for place in (folder, folder / "figures"):
            remove_unfinished(place)
        for name in () if resume else DESCRIPTION:
            (folder / name).unlink(missing_ok=True)
        for name, write in _description_writers(recipe, setting, engine).items():
            if not (folder / name).exists():
                write(folder / name)
        # What `local.vectorise: by_shape` came to, by which a resumed run goes.
        size = setting.groups.size
        write_recipe(folder, _vectorising(recipe, "off" if size == 1 else size))


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write config.yaml, with the comment that the recipe's file begins with."""
    text = yaml_text(recipe.model_dump())
    header = f"{recipe.header}\n" if recipe.header else ""
    atomic_write(folder / CONFIG, header + text)


def begun_recipe(folder: Path, recipe: Recipe) -> Recipe:
    """The recipe of the run in a folder; if by_shape is asked for, that again in place of what it came to."""
    begun = load_recipe(folder / CONFIG)
    return _vectorising(begun, "by_shape") if recipe.local.vectorise == "by_shape" else begun


def _vectorising(recipe: Recipe, vectorise: str | int) -> Recipe:
    return recipe.model_copy(update={"local": recipe.local.model_copy(update={"vectorise": vectorise})})


def _description_writers(recipe: Recipe, setting: Setting, engine: str) -> dict[str, Callable[[Path], None]]:
    """File -> what writes it: all that is known before the first round, but for the recipe."""

    def write_options(path: Path) -> None:
        options = yaml_text(_resolved_options(recipe, setting))
        atomic_write(path, f"# As they were, with all defaults.\n{options}")

    def write_environment(path: Path) -> None:
        inputs = {**fingerprints(recipe, setting), "notes": setting.dataset.notes}
        write_json(path, {**environment(engine), **inputs, "id": secrets.token_hex(8)})

    writers: dict[str, Callable[[Path], None]] = {
        "environment.json": write_environment,
        "options.yaml": write_options,
        "partition.parquet": setting.partition.save,
        "classes.parquet": partial(_save_class_counts, setting),
    }
    if setting.devices is not None:
        writers["devices.parquet"] = setting.devices.save
    return writers


def _resolved_options(recipe: Recipe, setting: Setting) -> dict[str, Any]:
    """What config.yaml does not hold: defaults, which may change one day, the method's paper, attackers."""
    options: dict[str, Any] = {
        "method": {"name": recipe.method.name, **setting.method.options.model_dump(mode="json")},
        "paper": setting.method.paper,
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
    write_parquet(path, pa.table(columns))


NAMING_FILES = {"model", "client_models", "method", "partition", "clock"}  # the sections that may


def fingerprints(recipe: Recipe, setting: Setting) -> dict[str, dict[str, str]]:
    """Hashes of what a run is of beside its recipe: the user's own modules, the files it names, its data."""
    return {
        "own_code": own_code(recipe),
        "files": named_files(texts(recipe.model_dump(include=NAMING_FILES))),
        "data": content_hashes(setting.dataset),
    }


def chosen_folder(recipe: Recipe) -> Path:
    """The run's folder, absolute: that of `results.folder`, else a new one below runs/, which is made here.

    Its name is made of method, data and time.

    Raises:
        RecipeError: it cannot be made.
    """
    if recipe.results.path is not None:
        return recipe.results.path
    # A method or data of the user's own is named as package.module:Object.
    method, data = (location.rpartition(":")[2] for location in (recipe.method.name, recipe.data.name))
    name = f"{method}-{data}-{datetime.now():%Y%m%d-%H%M%S}"
    return new_folder(Path("runs").resolve() / name, "results.folder")


def environment(engine: str) -> dict[str, Any]:
    """What a result depends on beside the recipe.

    Args:
        engine: `local`, `ray`, or `none` where nothing runs.

    Returns: command, engine, versions of Python and packages, machine, system, instruction set of torch's
        kernels, names of the GPUs, and the time.
    """
    import torch

    return {
        "command": sys.argv,
        "engine": engine,
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "system": platform.platform(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def check_data(folder: Path, setting: Setting) -> None:
    """Raises: RecipeError if a run's data are others than when it was begun."""
    begun, now = read_environment(folder).get("data", {}), content_hashes(setting.dataset)
    changed = [part for part in sorted(begun.keys() | now.keys()) if begun.get(part) != now.get(part)]
    if begun and changed:
        raise RecipeError(
            f"{folder}: its data, {setting.dataset.name}, are others than when it was begun, or in another "
            f"order: {', '.join(changed)} changed. Give the data as they were, or a new folder"
        )


def changed_inputs(folder: Path) -> list[str]:
    """The user's own modules and the named files that are others than when the run was begun.

    Args:
        folder: a run's folder.

    Returns: a text for each, as `another weights.pt`; none if the folder does not say what they were.
    """
    begun = read_environment(folder)
    code, named = begun.get("own_code", {}), begun.get("files", {})
    code_now, files_now = code_of(code), named_files(named)
    modules = [module for module, digest in code.items() if code_now.get(module) != digest]
    changed = [f"another {name}" for name, digest in named.items() if files_now.get(name, digest) != digest]
    return [f"another {module}.py, or none that is found from this folder" for module in modules] + changed


def read_environment(folder: Path) -> dict[str, Any]:
    """What `environment` gave when the run began; empty if the folder has no environment.json.

    Args:
        folder: a run's folder.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / "environment.json"
    content = read_json(path)
    kinds: dict[str, type[Any]] = dict.fromkeys(("packages", "own_code", "files", "data"), dict)
    kinds |= dict.fromkeys(("command", "gpus", "notes"), list)
    for key, kind in kinds.items():
        value = content.get(key, kind())
        if not isinstance(value, kind) or not all(isinstance(name, str) for name in value):
            raise DataError(f"{path} is damaged: {key} is {shown(value)}")
    return content


def changed_packages(folder: Path) -> list[str]:
    """The packages, the user's own modules and named files that differ from those the run was begun with.

    Args:
        folder: a run's folder.

    Returns: a text for each, as `torch 2.1, now 2.2`; empty if nothing changed or
        the folder has no environment.json.
    """
    return changed_inputs(folder) + [
        f"{name} {version}, now {package_version(name)}"
        for name, version in read_environment(folder).get("packages", {}).items()
        if name in DECISIVE and version != package_version(name)
    ]
