"""Exports a run's model as files that are readable without this project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.files import atomic_write, remove_unfinished, tensors_written_aside, writing, written_aside

if TYPE_CHECKING:
    from rayfed_kd.setting.setting import Setting


def export(folder: str | Path, model: str, to: str | Path, client: int | None = None) -> list[Path]:
    """Write a run's model as safetensors and as a torch state_dict, with the recipe.

    Args:
        folder: the run's folder; its newest checkpoint is read.
        model: name of one of the evaluated models, such as "oca".
        to: a file name; its ending is replaced by .safetensors, .pt and .yaml.
        client: id of the client, if `model` is the clients' own; else None.
    Returns: the three paths.
    Raises: RecipeError if there is no checkpoint or no such model.
    """
    import torch
    import yaml
    from safetensors.torch import save_file

    from cluster.engine.calls import PersonalCall
    from cluster.engine.host import Host
    from cluster.engine.local import LocalEngine
    from cluster.server.checkpoints import Checkpointer
    from cluster.server.client_records import ClientRecord
    from rayfed_kd.protocol import Evaluated, Personal

    folder = Path(folder).resolve()
    prepared = prepare(folder / "config.yaml")
    setting, warned = prepared.setting, list[str]()
    host = Host(setting)
    publish = LocalEngine(host).publish
    snapshot = Checkpointer(folder, prepared.recipe.checkpoint).latest(publish, "cpu", warned.append)
    if snapshot is None:
        raise RecipeError(
            f"{folder} has no checkpoint to export from{': ' + '; '.join(warned) if warned else ''}"
        )
    models = setting.method.evaluated(snapshot.server)
    if model not in models:
        raise RecipeError(f"--model {model}: this run evaluates {', '.join(models)}")
    chosen = models[model]
    if isinstance(chosen, Personal):
        whose = _exported_client(model, client, setting)
        record = snapshot.records.get(whose, ClientRecord())
        chosen = host.personal(PersonalCall(whose, record.state, record.version, "local"))
    elif client is not None:
        raise RecipeError(f"--client {client}: {model} is one model for all; expected no --client")
    found = chosen if isinstance(chosen, Evaluated) else Evaluated(chosen, "model")
    module = setting.module_pool().lend(found.architecture, found.vector).module
    # safetensors takes neither tensors that share memory, as views of a flat vector do, nor other orders of
    # elements, as channels-last convolutions have.
    state = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    paths = [Path(to).with_suffix(ending) for ending in (".safetensors", ".pt", ".yaml")]
    whom = model if client is None else f"{model}, client {client}"
    kind, options = setting.described(found.architecture)
    told = {"weights": f"{whom}, round {snapshot.round}", "architecture": {"name": kind, **options}}
    header = "".join(f"# {line}\n" for line in yaml.safe_dump(told, sort_keys=False).splitlines())
    recipe = (folder / "config.yaml").read_text(encoding="utf8")
    with writing(Path(to), "--to"):
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        for path in paths:
            remove_unfinished(path.parent, path.name)
        with tensors_written_aside(paths[0]) as aside:
            save_file(state, aside, metadata={"model": model, "round": str(snapshot.round)})
        with written_aside(paths[1]) as aside:
            torch.save(state, aside)
        atomic_write(paths[2], f"{header}# of the run with this recipe:\n{recipe}")
    return paths


def _exported_client(model: str, client: int | None, setting: Setting) -> int:
    clients = len(setting.partition.train)
    if client is None:
        raise RecipeError(f"--model {model} is each client's own: expected --client, 0 to {clients - 1}")
    if not 0 <= client < clients:
        raise RecipeError(f"--client {client}: expected 0 to {clients - 1}")
    return client
