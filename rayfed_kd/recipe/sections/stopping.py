"""The section `stop`: when a run ends before its last round."""

from __future__ import annotations

from pydantic import Field, model_validator

from rayfed_kd.recipe.strict import MOST, Strict


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

    @model_validator(mode="after")
    def _says_when(self) -> StopRecipe:
        looks = self.at is not None or self.patience is not None
        if not looks and (self.bytes, self.sim_seconds, self.seconds) == (None, None, None):
            raise ValueError("expected one or more of at, patience, bytes, sim_seconds and seconds")
        if looks and self.metric is None:
            raise ValueError("at and patience need a metric, as {metric: amp, at: 0.9}")
        if not looks and (self.metric or self.model):
            raise ValueError("a metric needs `at` or `patience`, as {metric: amp, at: 0.9}")
        return self
