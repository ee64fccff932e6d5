"""The recipe: a strict model of all its sections, and what must hold between them.

What stands under `method`, `model`, `data` and `partition` beside the frame's own keys are options of the
named thing, checked by `rayfed_kd.setting.setting`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, PrivateAttr

from rayfed_kd.recipe.sections.client_models import ClientModelsRecipe
from rayfed_kd.recipe.sections.data import DataRecipe, PartitionRecipe
from rayfed_kd.recipe.sections.evaluation import EvaluationRecipe
from rayfed_kd.recipe.sections.local_training import LocalRecipe
from rayfed_kd.recipe.sections.on_the_way import AttackRecipe, CodecRecipe, PrivacyRecipe
from rayfed_kd.recipe.sections.placement import PlacementRecipe
from rayfed_kd.recipe.sections.safety import CheckpointRecipe, FaultsRecipe, ResultsRecipe, StopRecipe
from rayfed_kd.recipe.strict import MOST_ROUNDS, Named, Strict

# The sections that say where, how safely and into which folder a run runs; what it finds is the same.
EXECUTION = ("placement", "checkpoint", "faults", "results")


class SamplingRecipe(Strict):
    """How many clients a round dispatches."""

    fraction: float | None = Field(None, gt=0, le=1, description="share of the clients, C")
    count: int | None = Field(None, ge=1, description="number of clients")
    poisson: bool = Field(
        False, description="each client joins a round by itself with that probability; a cohort may be empty"
    )

    def contradictions(self) -> Iterator[str]:
        if (self.fraction is None) == (self.count is None):
            yield "give exactly one of fraction and count; sampling={count: 5} takes the place of a fraction"


class Recipe(Strict):
    """One experiment."""

    method: Named
    model: Named = Named(name="lenet5")
    client_models: ClientModelsRecipe | None = None
    data: DataRecipe = DataRecipe()
    partition: PartitionRecipe = PartitionRecipe()
    local: LocalRecipe = LocalRecipe()
    rounds: int = Field(100, ge=1, le=MOST_ROUNDS, description="rounds, T")
    sampling: SamplingRecipe = SamplingRecipe(fraction=0.2)
    schedule: Named = Named(name="sync")
    clock: Named = Named(name="none")
    codec: CodecRecipe = CodecRecipe()
    placement: PlacementRecipe = PlacementRecipe()
    evaluation: EvaluationRecipe = EvaluationRecipe()
    stop: StopRecipe | None = None
    checkpoint: CheckpointRecipe = CheckpointRecipe()
    faults: FaultsRecipe = FaultsRecipe()
    attack: AttackRecipe | None = None
    privacy: PrivacyRecipe | None = None
    results: ResultsRecipe = ResultsRecipe()
    deterministic: bool = Field(True, description="on GPU: only kernels that repeat bit for bit")
    seed: int = Field(1, ge=0, lt=2**63, description="the run's seed")
    _header: str = PrivateAttr("")
    _fraction_fault: str = PrivateAttr("")

    @property
    def header(self) -> str:
        """The comment at the top of the file that the recipe was read from; kept in a run's config.yaml.

        Empty if an override has put another method in the place of the file's.
        """
        return self._header

    @property
    def shared_model(self) -> Named:
        """What the method knows as the model: `model`, its features as long as those of `client_models`."""
        return self.model if self.client_models is None else self.client_models.projected(self.model)

    @property
    def fraction_fault(self) -> str:
        """Why `data.fraction` may not be meant: it was chosen for other data. Empty if nothing is wrong.

        A recipe does not know the names of data; what opens them refuses this after a name that is none.
        """
        return self._fraction_fault

    def contradictions(self) -> Iterator[str]:
        clients, fraction, rates = self.partition.clients, self.sampling.fraction, self.local.lr_schedule
        counts = {"sampling.count": self.sampling.count, "evaluation.clients": self.evaluation.clients}
        for key, count in counts.items():
            if count is not None and count > clients:
                yield f"{key} = {count}: more than partition.clients = {clients}"
        if fraction is not None and fraction * clients < 1 - 1e-9:
            yield (
                f"sampling.fraction = {fraction:g} of partition.clients = {clients} "
                f"is {fraction * clients:g} clients a round; expected 1 or more"
            )
        if self.stop is not None and self.stop.sim_seconds is not None and self.clock.name == "none":
            yield "stop.sim_seconds: clock.name = none has no simulated seconds; expected a clock"
        if self.sampling.poisson and self.schedule.name != "sync":
            yield (
                f"schedule.name = {self.schedule.name!r}: sampling.poisson draws a whole cohort at the start "
                "of a round and waits for all of it; expected sync"
            )
        for name, schedule, length in (
            ("rounds", rates and rates.rounds, self.rounds),
            ("epochs", rates and rates.epochs, self.local.epochs or 0),
        ):
            if schedule and schedule.warmup >= length:
                yield (
                    f"local.lr_schedule.{name}.warmup = {schedule.warmup}: the rate would rise to the end; "
                    f"expected fewer than the {name}, {length}"
                )
        if self.local.precision == "tf32" and self.placement.client.num_gpus == 0:
            yield (
                "local.precision = tf32: tf32 is arithmetic of NVIDIA GPUs, and placement.client.num_gpus is "
                "0; expected a GPU for all clients, or fp32 or bf16"
            )
        for key, section in (("client_models", self.client_models), ("attack", self.attack)):
            if section is not None and (fault := section.fault(clients)):
                yield f"{key}.{fault}"
