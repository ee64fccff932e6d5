"""The one place where a run's parts are put together, whatever the engine and wherever the server runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cluster.engine.interface import Engine
from cluster.server.checkpoints import Checkpointer, Snapshot
from cluster.server.grouping import Grouping
from cluster.server.simulation import Recorder, Simulation, StoppedError
from rayfed_kd.errors import RayfedError, RunError
from rayfed_kd.protocol import Array, shared_vectors
from rayfed_kd.results.recorder import RunRecorder
from rayfed_kd.setting.setting import Setting


@dataclass(frozen=True)
class AssembledRun:
    """A run that can begin.

    Attributes:
        simulation: the server's loop.
        recorder: writes what it finds.
        start: where it goes on; None: at its very start.
    """

    simulation: Simulation
    recorder: RunRecorder
    start: Snapshot | None

    def run(self) -> dict[str, Any]:
        """All rounds; gives the summary. Tables are closed whatever happens.

        Raises: RunError, or what a method raised.
        """
        return run_recorded(self.simulation, self.recorder, self.start)

    def models(self) -> dict[str, Array]:
        """The shared models that were evaluated last, name -> [P] float32."""
        vectors = shared_vectors(self.simulation.models)
        return {name: vector.cpu().numpy() for name, vector in vectors.items()}


def assemble(
    setting: Setting,
    engine: Engine,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    resume: bool = False,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> AssembledRun:
    """A run of a setting on an engine.

    Args:
        folder: the run's, where tables, checkpoints and decisions of `vectorise: auto` lie.
        device: what the server computes on.
        resume: go on from the newest checkpoint in the folder.
        on_event: called with what happened in each round.
        tell: called with a line about what a user should know.
    Raises: RecipeError if the folder's checkpoints are of another version.
    """
    checkpointer = Checkpointer(folder, setting.recipe.checkpoint)
    start = checkpointer.latest(engine.publish, device, tell) if resume else None
    # Rows of rounds that are run again go; a run without a whole checkpoint starts afresh.
    after_round = None if not resume else 0 if start is None else start.round
    recorder = RunRecorder(folder, setting, on_event, after_round)
    grouping = Grouping(setting, engine, folder, tell)
    simulation = Simulation(setting, engine, recorder, device, checkpointer, grouping)
    return AssembledRun(simulation, recorder, start)


def run_recorded(simulation: Simulation, recorder: Recorder, start: Snapshot | None = None) -> dict[str, Any]:
    """Runs a simulation, from a snapshot if there is one, and closes its recorder whatever happens.

    Returns: the summary.
    """
    status = "failed"
    try:
        try:
            simulation.run(start)
            status = "finished"
        except (StoppedError, KeyboardInterrupt):
            status = "interrupted"
        finally:
            summary = recorder.close(status)
    except OSError as error:
        raise RunError(_unwritten(error)) from error
    return summary


def _unwritten(error: OSError) -> str:
    """A full disk, a share that is gone: what, and what the run had failed with before, if it had."""
    before = error.__context__
    first = f"{before}\nThen: " if isinstance(before, RayfedError) else ""
    return f"{first}the run's folder cannot be written ({error}); what was written before is there"
