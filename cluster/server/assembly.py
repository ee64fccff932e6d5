"""The one place where a run's parts are put together, whatever the engine and wherever the server runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.cluster.server.run_state import Snapshot
from rayfed_kd.cluster.server.simulation import Simulation, StoppedError
from rayfed_kd.errors import RayfedError, RunError
from rayfed_kd.protocol import Array, shared_vectors
from rayfed_kd.results.recorder import RunRecorder
from rayfed_kd.results.telling import Event
from rayfed_kd.setting.setting import Setting


@dataclass(frozen=True)
class AssembledRun:
    """A run that can begin.

    Attributes:
        simulation: the server's loop.
        recorder: writes the run's tables and its summary.
        start: the checkpoint that the run continues from; None: the run starts afresh.
    """

    simulation: Simulation
    recorder: RunRecorder
    start: Snapshot | None

    def run(self, rounds_over: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Run all rounds. The tables are closed also after an error.

        Args:
            rounds_over: called after the last round, when nothing is asked of the engine any more, and before
                the last pictures are drawn.
        Returns: the summary, as in summary.json.
        Raises: RunError, as if the folder cannot be written, or what a method raised.
        """
        status = "failed"
        try:
            try:
                self.simulation.run(self.start)
                status = "finished"
                rounds_over()
            except (StoppedError, KeyboardInterrupt):
                status = "interrupted"
            finally:
                summary = self.recorder.close(status)
        # From a round's record, a checkpoint, or `close`, which writes the last rows.
        except OSError as error:
            if error is self.recorder.listeners_error:
                raise
            # For a full disk or a lost network share. The run's own earlier error comes first.
            before = error.__context__
            first = f"{before}\nThen: " if isinstance(before, RayfedError) else ""
            raise RunError(
                f"{first}the run's folder cannot be written ({error}); what was written before is there"
            ) from error
        return summary

    def models(self) -> dict[str, Array]:
        """The shared models of the last evaluated round: name -> [P] float32."""
        vectors = shared_vectors(self.simulation.models)
        return {name: vector.cpu().numpy() for name, vector in vectors.items()}


def assemble(
    setting: Setting,
    engine: Engine,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    gpu_share: float = 1.0,
    resume: bool = False,
    on_event: Callable[[Event], None] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> AssembledRun:
    """Assemble a run of a setting on an engine.

    Args:
        setting: method, data and partition.
        engine: runs the clients' steps.
        folder: the run's folder, with its tables and checkpoints.
        device: what the server computes on.
        gpu_share: the part of its memory that the server may take: on Ray its request, else what is free.
        resume: continue from the newest checkpoint in the folder.
        on_event: called after each round with its figures.
        tell: called with each line that the user should read.
    Returns: the run, not yet started.
    Raises: RecipeError if another version of this project wrote the folder's checkpoints.
    """
    checkpoints, start = setting.recipe.checkpoint, None
    if resume:
        # Before the recorder, which deletes rows: an unreadable format is refused with all rows in place.
        start = Checkpointer(folder, checkpoints).latest(engine.publish, device, tell, folder / "tables")
    # Rounds after the checkpoint run again, so the recorder drops their rows. Without a usable checkpoint
    # (0) it drops all rows. None: a new run has no rows.
    after_round = None if not resume else 0 if start is None else start.round
    recorder = RunRecorder(folder, setting, on_event, after_round, tell)
    checkpointer = Checkpointer(folder, checkpoints, recorder.flush)
    if after_round is not None:
        checkpointer.tidy(after_round)
    simulation = Simulation(
        setting,
        engine,
        recorder,
        device,
        checkpointer,
        tell=tell,
        why_ended=recorder.why_ended,
        gpu_share=gpu_share,
    )
    return AssembledRun(simulation, recorder, start)
