"""What a recipe says about local training: epochs, batches, optimiser, learning rates, clipping."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from rayfed_kd.recipe.sections.learning_rates import LearningRates, Pace
from rayfed_kd.recipe.sections.torch_optimizers import OPTIMIZERS, OptimizerName, check_options, defaults
from rayfed_kd.recipe.strict import MOST, Count, Strict


class OptimizerRecipe(Strict):
    """A client's optimiser; made afresh in each round unless the method says otherwise."""

    model_config = ConfigDict(extra="allow")
    other_options: ClassVar[str] = "the options that its class in torch.optim has, by the same names"
    name: OptimizerName = Field("sgd", description="the optimiser")
    lr: float = Field(0.01, gt=0, description="learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum (sgd, rmsprop)")
    nesterov: bool = Field(False, description="Nesterov's form of momentum (sgd)")
    weight_decay: float = Field(0.0, ge=0, description="L2 weight decay; decoupled for adamw")

    @model_validator(mode="before")
    @classmethod
    def _torchs_defaults(cls, raw: Any) -> Any:
        """All of an optimiser's options: a run's recipe says them, whatever torch's defaults become."""
        if not isinstance(raw, Mapping):
            return raw
        name = raw.get("name", cls.model_fields["name"].default)
        if name != cls.model_fields["name"].default:
            raw = {"momentum": 0.0, **raw}  # another optimiser's is not that of the class
        # SGD and Adam have defaults of our own.
        if not isinstance(name, str) or name not in OPTIMIZERS or name in ("sgd", "adam"):
            return raw
        return {**defaults(name), **raw}

    def contradictions(self) -> Iterator[str]:
        if self.name not in ("sgd", "rmsprop") and self.momentum:
            yield f"momentum belongs to sgd and rmsprop, not to {self.name}"
        if self.name != "sgd" and self.nesterov:
            yield f"nesterov belongs to sgd, not to {self.name}"
        if self.nesterov and not self.momentum:
            yield "nesterov needs a momentum above 0"
        if not self.is_plain:
            check_options(self.name, self.torch_options)

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD or Adam with no other options than those that stand here."""
        return self.name in ("sgd", "adam") and not self.model_extra

    @property
    def torch_options(self) -> dict[str, Any]:
        """The arguments of its constructor in `torch.optim`; a pair is a list."""
        # These fields are those of every optimiser; 0 and false say nothing where one has no such option.
        fields = {"momentum": self.momentum, "nesterov": self.nesterov, "weight_decay": self.weight_decay}
        options = {name: value for name, value in fields.items() if value or name in defaults(self.name)}
        return {"lr": self.lr, **options, **(self.model_extra or {})}


class ClipRecipe(Strict):
    """The largest gradient of a step of local training: exactly one of the two."""

    norm: float | None = Field(None, gt=0, description="largest Euclidean norm of an optimiser's gradient")
    value: float | None = Field(None, gt=0, description="largest absolute value of a coordinate")

    def contradictions(self) -> Iterator[str]:
        if (self.norm is None) == (self.value is None):
            yield "give exactly one of norm and value"


class LocalOptimizer(OptimizerRecipe):
    """The optimiser of one client's local training, as its context has it.

    Attributes:
        pace: how the learning rate changes from step to step; None: not at all.
        clip: how gradients are bounded; None: not at all.
    """

    pace: Pace | None = None
    clip: ClipRecipe | None = None


Epochs = Annotated[int | float, Field(gt=0, le=MOST)]


class LocalRecipe(Strict):
    """A client's local training."""

    epochs: Epochs | None = Field(
        10,
        description="local epochs, E, passes over a client's samples; a part of one is so many of its "
        "batches, rounded up; null with `steps`",
    )
    steps: Count | None = Field(
        None,
        description="batches of a client's local training, pass after pass, in place of `epochs`; null: as "
        "`epochs` says",
    )
    batch_size: int = Field(64, ge=1, le=MOST, description="batch size, B")
    last_batch: Literal["keep", "drop", "join"] = Field(
        "keep",
        description="a last batch with fewer samples, of a pass over samples in training: keep trains on it, "
        "drop leaves it out, join makes one batch of it and the one before it",
    )
    optimizer: OptimizerRecipe = OptimizerRecipe()
    lr_schedule: LearningRates | None = Field(
        None, description="how the learning rate changes, over rounds and within local training; null: not"
    )
    clip: ClipRecipe | None = Field(None, description="clipping of gradients; null: none")
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of a label that goes evenly to all classes, in the loss on labels"
    )
    class_weights: list[Annotated[float, Field(gt=0)]] | Literal["balanced"] | None = Field(
        None,
        description="weight of each class in the loss on labels: balanced, n_k / (C n_k^c) of the client's "
        "own counts, or a list in the classes' order; null: all the same",
    )
    vectorise: Literal["by_shape", "off"] | Annotated[int, Field(ge=2, le=MOST)] = Field(
        "by_shape",
        description="how many clients of one architecture train together as one batched program, at most; "
        "by_shape: 25 where clients are tiny (equally many samples, at most 32 steps, at most 2^20 products "
        "a step, linear layers only), else off; decided before the first round, and written to the run's "
        "config.yaml; part of what makes bits equal",
    )
    sum_replies: Literal["off"] | Annotated[int, Field(ge=2, le=MOST)] = Field(
        "off",
        description="how many clients in a row have their replies added, weighted, at their host, and the "
        "server fetches one sum for all of them; part of what makes bits equal",
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32",
        description="arithmetic of clients' steps: fp32; tf32, in which a GPU multiplies with 10 bits of "
        "mantissa; or bf16, which models compute in while weights and optimiser stay in fp32. The server's "
        "steps and evaluations are in fp32 always",
    )

    @field_validator("vectorise", "sum_replies", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # what YAML makes of a plain `off`

    @model_validator(mode="before")
    @classmethod
    def _steps_in_place_of_epochs(cls, raw: Any) -> Any:
        """Without `epochs` of its own, a recipe with `steps` has none."""
        return {"epochs": None, **raw} if isinstance(raw, Mapping) and raw.get("steps") is not None else raw

    def contradictions(self) -> Iterator[str]:
        if self.epochs is None and self.steps is None:
            yield "epochs = null: expected a number, or one for steps"
        if self.epochs is not None and self.steps is not None:
            both = f"epochs = {self.epochs} and steps = {self.steps}"
            yield f"{both}: expected one of the two, as local.epochs=null"
        rates = self.lr_schedule
        if rates and rates.epochs and not isinstance(self.epochs, int):
            yield f"lr_schedule.epochs counts whole epochs, and {self.length}; expected lr_schedule.steps"
        if rates and self.optimizer.name == "rprop" and (rates.epochs or rates.steps):
            yield "rprop reads its learning rate in a first step alone; expected lr_schedule.rounds"

    @property
    def length(self) -> str:
        """How long local training is, in words: as `epochs = 10`."""
        return f"epochs = {self.epochs:,}" if self.steps is None else f"steps = {self.steps:,}"

    def steps_of(self, samples: int) -> int:
        """How many batches a client's local training has.

        Args:
            samples: the client's training samples.
        """
        batches = len(self.batch_sizes(samples))
        if self.epochs is None:
            return self.steps or 0 if batches else 0
        # Rounded before it is rounded up: 0.07 * 100 is 7.000000000000001.
        return math.ceil(round(self.epochs * batches, 9))

    def passes_of(self, samples: int) -> int:
        """How many passes over a client's samples local training begins."""
        return -(-self.steps_of(samples) // max(1, len(self.batch_sizes(samples))))

    def samples_of(self, samples: int) -> int:
        """How many samples the batches of a client's local training hold, counted in each pass."""
        sizes = self.batch_sizes(samples)
        passes, further = divmod(self.steps_of(samples), max(1, len(sizes)))
        return passes * sum(sizes) + sum(sizes[:further])

    def batch_sizes(self, samples: int, size: int | None = None) -> list[int]:
        """The sizes of one pass's batches, in order; a pass of fewer samples than a batch is one batch.

        Args:
            samples: how many the pass is over.
            size: of a whole batch, where a method has one of its own; None: `batch_size`.
        """
        size = size or self.batch_size
        full, rest = divmod(samples, size)
        sizes = [size] * full
        if rest and (not sizes or self.last_batch == "keep"):
            sizes.append(rest)
        elif rest and self.last_batch == "join":
            sizes[-1] += rest
        return sizes

    def in_round(self, round_index: int, rounds: int) -> LocalRecipe:
        """What holds in a round: the optimiser has the learning rate of that round.

        Args:
            round_index: from 1; 0, before the first, is as the first.
            rounds: T.
        """
        schedule = self.lr_schedule.rounds if self.lr_schedule else None
        if schedule is None:
            return self
        lr = self.optimizer.lr * schedule.at(max(0, round_index - 1), rounds)
        return self.model_copy(update={"optimizer": self.optimizer.model_copy(update={"lr": lr})})

    def of_client(self, samples: int) -> LocalRecipe:
        """What holds at a client: the optimiser has its pace and its bound on gradients.

        Args:
            samples: those that its local training passes over.
        """
        rates, pace = self.lr_schedule, None
        if rates is not None and (rates.epochs or rates.steps):
            steps, a_pass = self.steps_of(samples), max(1, len(self.batch_sizes(samples)))
            pace = Pace(rates, self.passes_of(samples), a_pass, steps)
        if pace is None and self.clip is None:
            return self
        # Not checked again: a client's every step would check the options of torch's class.
        values = {**dict(self.optimizer), **(self.optimizer.model_extra or {})}
        optimizer = LocalOptimizer.model_construct(**{**values, "pace": pace, "clip": self.clip})
        return self.model_copy(update={"optimizer": optimizer})
