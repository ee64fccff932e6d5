"""The sections `checkpoint`, `faults`, `results` and `stop`: what is kept, faults, and an end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rayfed_kd.recipe.strict import MOST, ByName, Count, PathText, Strict


class CheckpointRecipe(Strict):
    """When a run's whole state is written down; Ctrl-C and SIGTERM always do."""

    every: Count | None = Field(10, description="rounds between checkpoints; null: none by rounds")
    minutes: float | None = Field(None, gt=0, description="minutes between checkpoints; null: none by time")
    keep: int = Field(2, ge=1, le=MOST, description="how many are kept")


class FaultsRecipe(Strict):
    """What is done about what goes wrong on the way."""

    max_retries: int = Field(
        3, ge=0, le=MOST, description="a step whose host was lost is run again, so often"
    )
    step_timeout_s: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        "auto",
        description="a longer step counts as a lost host; auto: 20 times the longest such step so far, at "
        "least ten minutes, and six hours for the first; null: never",
    )
    bad_replies: Literal["stop", "drop"] = Field(
        "stop", description="a reply with NaN or of a wrong size ends the run, or is left out and counted"
    )
    durable: bool = Field(
        False, description="replies and states get a second copy on the server's machine, to outlive theirs"
    )


class ResultsRecipe(Strict):
    """Where a run leaves what it found, and who else is told."""

    folder: PathText | None = Field(None, description="the run's folder; null: runs/METHOD-DATA-DATE-TIME")
    trackers: list[ByName] = Field(
        ["tensorboard"],
        validate_default=True,
        description="who is told of the run as it goes, each a name or a name with its options; []: nobody",
    )
    group: str | None = Field(
        None, description="what trackers are told that the run belongs to; `compare` and `tune` set it"
    )

    @property
    def path(self) -> Path | None:
        """The named folder's absolute path."""
        return None if self.folder is None else Path(self.folder).expanduser().resolve()


class StopRecipe(Strict):
    """When a run ends before its last round: after the first evaluation at which one of these holds."""

    metric: str | None = Field(
        None, description="what `at` and `patience` look at: amp, ua, wlp, server_accuracy or official_NAME"
    )
    model: str | None = Field(
        None, description="the evaluated model that has it; null: the last that the method lists"
    )
    at: float | None = Field(
        None, allow_inf_nan=False, description="a value that is enough; accuracies are fractions of 1"
    )
    patience: int | None = Field(
        None, ge=1, le=MOST, description="evaluations in a row without a better value than before"
    )
    bytes: int | None = Field(None, ge=1, description="bytes of all messages, up and down")
    sim_seconds: float | None = Field(None, gt=0, description="simulated seconds; needs a clock")
    seconds: float | None = Field(
        None, gt=0, description="real seconds; where such a run ends does not repeat"
    )

    def contradictions(self) -> Iterator[str]:
        looks = self.at is not None or self.patience is not None
        if not looks and (self.bytes, self.sim_seconds, self.seconds) == (None, None, None):
            yield "expected one or more of at, patience, bytes, sim_seconds and seconds"
        if looks and self.metric is None:
            yield "at and patience need a metric, as {metric: amp, at: 0.9}"
        if not looks and (self.metric or self.model):
            yield "a metric needs `at` or `patience`, as {metric: amp, at: 0.9}"
