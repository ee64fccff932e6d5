"""Exports a run's model as files that are readable without this project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from rayfed_kd.cluster.engine.calls import PersonalCall
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.engine.running import personal_model
from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.cluster.server.client_records import ClientRecord
from rayfed_kd.errors import RecipeError, optional_package, shown
from rayfed_kd.experiment.exported_model import (
    DESCRIPTION,
    ArchitectureName,
    ExportedModel,
    ModelDescription,
    Unchecked,
    described_model,
)
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.files.folders import no_folder, writing
from rayfed_kd.files.whole import atomic_write, make_folder, remove_unfinished, written_aside
from rayfed_kd.models.base import blank
from rayfed_kd.protocol import Completing, Evaluated, Personal
from rayfed_kd.recipe.sample_shapes import shape_details
from rayfed_kd.recipe.sections.client_models import TORCHVISION
from rayfed_kd.recipe.seeds import global_stream
from rayfed_kd.recipe.yaml_documents import yaml_text
from rayfed_kd.results.folder import check_data
from rayfed_kd.results.names import nearest_model
from rayfed_kd.results.schemas import CONFIG
from rayfed_kd.setting.modules.module_checks import drawn_samples
from rayfed_kd.setting.setting import Setting

RECIPE_MARK = "# of the run with this recipe:\n"
BEHIND = "behind each client's own first layers"
ENDINGS = (".safetensors", ".yaml", ".onnx")
NEEDED_BY_ONNX = ("onnx", "onnxscript")  # torch.onnx imports them, and torch does not install them


def export(
    folder: str | Path, model: str, to: str | Path, client: int | None = None, *, onnx: bool = False
) -> list[Path]:
    """Write a run's model as safetensors, with the recipe.

    The safetensors file stands alone: its metadata say what `rayfed_kd.load` builds and how images are
    normalised.

    Args:
        folder: the run's folder; its newest checkpoint is read.
        model: name of one of the evaluated models, such as "oca".
        to: a file name; the files are called so with .safetensors, .yaml and .onnx behind it, in place of one
            of these endings if it has one.
        client: id of the client, if `model` is the clients' own; else None.
        onnx: write an ONNX file as well, with the normalisation in it. It takes `images`, [n, channels,
            height, width] float32 in [0, 1], and gives `logits`. The extra `onnx` installs what this needs.
    Returns: the paths, in this order.
    Raises: RecipeError if there is no checkpoint or no such model, a package for ONNX is missing, or a file
        of that name is no export's.
    """
    if onnx:
        for name in NEEDED_BY_ONNX:
            with optional_package(f"ONNX: {name}", "onnx"):
                import_module(name)
    to = Path(to)
    if not (name := to.stem if to.suffix in ENDINGS else to.name):  # .1 of alpha0.1 is no ending
        raise RecipeError(f"--to {to}: expected the name of a file")
    paths = [to.with_name(name + ending) for ending in ENDINGS[: 2 + onnx]]
    there = [path for path in paths if path.is_file()]
    if there and not (paths[1] in there and RECIPE_MARK.encode() in paths[1].read_bytes()):
        raise RecipeError(f"--to {to}: {there[0]} is there, and not of an export; expected another name")
    description, state = read_model(folder, model, client)
    metadata = description.metadata()
    header = "".join(f"# {line}\n" for line in yaml_text(json.loads(metadata[DESCRIPTION])).splitlines())
    recipe = Path(folder, CONFIG).read_text(encoding="utf8")
    with writing(to, "--to"):
        make_folder(paths[0].parent)
        for path in paths:
            remove_unfinished(path.parent, path.name)
        atomic_write(paths[1], f"{header}{RECIPE_MARK}{recipe}")  # first, as by it an export is known
        atomic_write(paths[0], save(state, metadata=metadata))
        if onnx:
            with written_aside(paths[2]) as aside:
                _write_onnx(described_model(description, state), aside)
    return paths


def read_model(
    folder: str | Path, model: str, client: int | None = None
) -> tuple[ModelDescription, dict[str, Tensor]]:
    """A run's model as its newest checkpoint has it.

    Args:
        folder, model, client: as `export` takes them.
    Returns: what it is, and its module's state_dict.
    Raises: RecipeError if there is no checkpoint or no such model, or the data are others now.
    """
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise no_folder(folder)
    if not (folder / CONFIG).is_file():
        raise RecipeError(f"{folder} holds no run: there is no {CONFIG}; expected a run's folder")
    prepared = prepare(folder / CONFIG, ["results.trackers=[]"])  # of another machine, or program
    setting, warned = prepared.setting, list[str]()
    check_data(folder, setting)  # else a normalisation would be exported that the run has not had
    host = Host(setting)
    publish = LocalEngine(host).publish
    snapshot = Checkpointer(folder, prepared.recipe.checkpoint).latest(publish, "cpu", warned.append)
    if snapshot is None:
        raise RecipeError(
            f"{folder} has no checkpoint to export from{': ' + '; '.join(warned) if warned else ''}"
        )
    models = setting.method.evaluated(snapshot.server)
    if model not in models:
        raise RecipeError(
            f"no model is called {shown(model)}; this run evaluates {', '.join(models)}.",
            hint=nearest_model(model, models),
        )
    chosen = models[model]
    if isinstance(chosen, Personal):
        clients = len(setting.partition.train)
        if client is None or not 0 <= client < clients:
            raise RecipeError(
                f"client {client}: {model} is each client's own model; expected a client, 0 to {clients - 1} "
                "(--client)"
            )
        record = snapshot.records.get(client, ClientRecord())
        chosen = personal_model(host, PersonalCall(client, record.state, record.version, "local"))
    elif client is not None:
        what = f"{BEHIND}, and that part alone is written" if isinstance(chosen, Completing) else "for all"
        raise RecipeError(f"client {client}: {model} is one model {what}; expected no client")
    evaluated = Evaluated.of(chosen)
    if evaluated.is_composite:
        raise RecipeError(f"{model} is several models that predict together; expected a name of one alone")
    module = setting.module_pool().lend(evaluated.architecture, evaluated.vector).module
    whom = model if client is None else f"{model}, client {client}"
    whom += f", the part {BEHIND}" * isinstance(chosen, Completing)
    description = _description(setting, evaluated.architecture, f"{whom}, round {snapshot.round}")
    # safetensors takes neither tensors that share memory, as views of a flat vector do, nor other orders of
    # elements, as channels-last convolutions have.
    state = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    _check_whole(module, description, state)
    return description, state


def _check_whole(module: nn.Module, description: ModelDescription, state: dict[str, Tensor]) -> None:
    """Refuse a model that computes with something that its state_dict does not hold.

    Raises: RecipeError
    """
    samples, logits = drawn_samples(description.shape, 0), []
    module.eval()
    for model in (module, described_model(description, state).module):
        with torch.no_grad(), global_stream(0, "export"):
            logits.append(model(samples))
    # Kernels may round differently, as a vector's convolutions are channels-last.
    scale = float(logits[0].abs().max())
    if not torch.allclose(logits[0], logits[1], rtol=0, atol=1e-3 * scale, equal_nan=True):
        raise RecipeError(
            "a model with these weights computes something else, as part of it is drawn anew each time and "
            "in no state_dict: expected a persistent buffer, not an attribute or persistent=False"
        )


def _description(setting: Setting, architecture: str, weights: str) -> ModelDescription:
    named, dataset = setting.architectures.described(architecture), setting.dataset
    shape = setting.architectures.input_shape(named)
    of_data = named.space == "images" and named.cut is None  # else it takes maps or features of another model
    return ModelDescription(
        weights=weights,
        architecture=ArchitectureName(
            kind=named.kind, name=named.name, options=_without_files(named.name, named.options)
        ),
        input_shape=tuple(shape),
        sample=shape_details(shape),
        outputs=named.classes or dataset.classes,
        class_names=dataset.class_names,
        pixels=of_data and dataset.train.images.dtype == "uint8",
        mean=dataset.mean,
        std=dataset.std,
    )


def _without_files(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """An architecture's options, at any depth without torchvision's `weights`: the state has these."""
    return {
        key: _without_files(str(value.get("name")), value) if isinstance(value, Mapping) else value
        for key, value in options.items()
        if key != "weights" or not name.startswith(TORCHVISION)
    }


def _write_onnx(model: ExportedModel, path: Path) -> None:
    # Two: a size of one would become a constant of the graph.
    images = blank(model.description.shape, 2)
    program = torch.onnx.export(
        Unchecked(model).eval(),
        (images,),
        input_names=["images" if model.description.pixels else "features"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("n")},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None  # of this exporter; the older one writes a file itself
    program.model.metadata_props.update(model.description.metadata())
    program.save(path)
