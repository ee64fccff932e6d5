"""The sections `checkpoint`, `faults` and `results`: what is kept, and what is done about faults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rayfed_kd.recipe.strict import MOST, PathText, Strict


class CheckpointRecipe(Strict):
    """When a run's whole state is written down; Ctrl-C and SIGTERM always do."""

    every: int | None = Field(
        10, ge=1, le=MOST, description="rounds between checkpoints; null: none by rounds"
    )
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
        "stop",
        description="a reply with NaN or of a wrong size ends the run, or is left out and counted",
    )
    durable: bool = Field(
        False, description="replies and states get a second copy on the server's machine, to outlive theirs"
    )


class ResultsRecipe(Strict):
    """Where a run leaves what it found."""

    folder: PathText | None = Field(None, description="the run's own folder; null: runs/NAME-DATE-TIME")

    @property
    def path(self) -> Path | None:
        """The named folder's absolute path."""
        return None if self.folder is None else Path(self.folder).expanduser().resolve()
