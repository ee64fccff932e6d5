"""The recipe: strict models of its keys, overrides, and errors that say what, where and the nearest.

This file knows the frame of a recipe. What stands under `method`, `model`, `data` and `partition`
beside the frame's own keys are options of the named thing, checked by `rayfed_kd.setting.setting`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    model_validator,
)

from rayfed_kd.errors import nearest
from rayfed_kd.files import path_fault
from rayfed_kd.recipe.learning_rates import MOST
from rayfed_kd.recipe.local_training import LocalRecipe
from rayfed_kd.recipe.model_groups import GROUP_FEATURES, GROUPS
from rayfed_kd.recipe.privacy import PrivacyRecipe
from rayfed_kd.recipe.roles import Better
from rayfed_kd.recipe.strict import Named, Strict

# The sections that say where, how safely and into which folder a run runs; what it finds is the same.
EXECUTION = ("placement", "checkpoint", "faults", "results")
_LABEL = r"[0-9A-Za-z](?:[0-9A-Za-z_.-]*[0-9A-Za-z])?"
SELECTOR = re.compile(rf"!?{_LABEL}|!?in\({_LABEL}(?:, ?{_LABEL})*\)")


# More than any data set, machine or person has: beyond them a number is a slip, and would take all memory.
MOST_CLIENTS = MOST_ROUNDS = 10_000_000
MOST_THREADS = 4096
TORCHVISION = "torchvision:"
PROJECTED = "projected"


def _possible_path(text: str) -> str:
    if fault := path_fault(text):
        raise ValueError(fault)
    return text


PathText = Annotated[str, AfterValidator(_possible_path)]


class DataRecipe(Named):
    """Which images."""

    name: str = Field("digits", description="a registered source or package.module:Object")
    folder: PathText | None = Field(
        None, description="where the files lie; null: $RAYFED_KD_DATA, else ./data"
    )
    fraction: float = Field(1.0, gt=0, le=1, description="share of each class's training images that is kept")
    augment: str = Field("none", description="augmentation of training batches")
    pixels: Literal["standard", "symmetric"] = Field(
        "standard", description="scaled by the data set's mean and deviation, or to [-1, 1]"
    )


class PublicRecipe(Strict):
    """Training images that server and clients all have, set apart before the partition or not."""

    fraction: float | None = Field(None, gt=0, lt=1, description="share of the training images")
    count: int | None = Field(None, ge=1, description="number of training images")
    keep: int | None = Field(None, ge=1, description="so many of them are used; null: all (FedGEMS Fig. 4)")
    labels: bool = Field(True, description="whether their labels are known")
    apart: bool = Field(True, description="no client has them; false: of the clients' own training images")

    @model_validator(mode="after")
    def _one_of_two(self) -> PublicRecipe:
        if (self.fraction is None) == (self.count is None):
            raise ValueError("give exactly one of fraction and count")
        return self


class PartitionRecipe(Named):
    """Which client holds which images."""

    name: str = Field("dirichlet", description="a registered scheme or package.module:Object")
    clients: int = Field(20, ge=1, le=MOST_CLIENTS, description="number of clients, K")
    test: Literal["local", "official"] = Field(
        "local", description="evaluate on each client's own test part, or on the official test set"
    )
    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of a client's images kept for its test")
    file: PathText | None = Field(None, description="a saved partition.parquet to use instead of drawing one")
    public: PublicRecipe | None = Field(None, description="a public set; clients share what is left")


class ClientModelsRecipe(Strict):
    """Clients' own architectures, for methods whose clients need not share one."""

    models: list[Named] = Field([], description="models, as under `model`")
    group: str | None = Field(None, description="a named group of models in place of a list")
    features: Annotated[int, Field(ge=1)] | Literal["auto", "own"] = Field(
        "auto",
        description="a common length of features, to which each model is projected; own: each has its own; "
        "auto: 512 in a group, own in a list",
    )
    form: Literal["linear", "adaptive_pool"] = Field(
        "linear", description="how: a linear layer, or HtFLlib's pooling, which repeats or averages values"
    )
    weights: dict[str, PathText] = Field(
        {}, description="files of weights by the name of a torchvision model, as resnet18; none is downloaded"
    )
    assign: Literal["cycle"] | list[Annotated[int, Field(ge=0)]] = Field(
        "cycle", description="client k has the (k mod n)-th of the n models, or those listed by client"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> ClientModelsRecipe:
        if bool(self.models) == (self.group is not None):
            raise ValueError("expected either models, one at least, or a group")
        if self.group is not None and self.group not in GROUPS:
            near = nearest(self.group, GROUPS)
            hint = f". Did you mean {near}?" if near else ""
            raise ValueError(f"group = {self.group!r}: expected one of {', '.join(GROUPS)}{hint}")
        named = [entry.name.removeprefix(TORCHVISION) for entry in self.entries]
        if unknown := sorted(set(self.weights) - set(named)):
            raise ValueError(f"weights.{unknown[0]}: none of these models; there are {', '.join(named)}")
        return self

    def path(self, place: int) -> str:
        """Where in the recipe the model at that place stands."""
        return f"client_models.{'models' if self.group is None else 'group'}.{place}"

    @property
    def entries(self) -> list[Named]:
        """The models as they are listed, or the group's."""
        return self.models or [Named(**entry) for entry in GROUPS[str(self.group)]]

    @property
    def members(self) -> list[Named]:
        """The models that clients get, with their weights, and projected where a common length is asked for.

        A group's models are without dropout, also with features of their own length.
        """
        return [self.projected(self._weighted(entry)) for entry in self.entries]

    def projected(self, model: Named) -> Named:
        """A model with features of the common length; as it is if there is no such."""
        if model.name == PROJECTED or (self.group is None and self.features in ("auto", "own")):
            return model
        lengths: dict[Any, int | None] = {"auto": GROUP_FEATURES, "own": None}
        length = lengths.get(self.features, self.features)
        return Named(name=PROJECTED, base=model.model_dump(), features=length, form=self.form)

    def _weighted(self, entry: Named) -> Named:
        file = self.weights.get(entry.name.removeprefix(TORCHVISION))
        return entry if file is None else Named(name=entry.name, **{**entry.options, "weights": file})

    def of(self, client: int) -> int:
        """Which of the models a client has."""
        return client % len(self.entries) if self.assign == "cycle" else self.assign[client]

    def fault(self, clients: int) -> str | None:
        """Why this cannot be for so many clients; None if it can."""
        count, key = len(self.entries), "models" if self.group is None else "group"
        if self.assign == "cycle":
            return f"{key}: {count} for {clients} clients" if count > clients else None
        if len(self.assign) != clients:
            return f"assign: {len(self.assign)} entries for {clients} clients"
        beyond = [place for place in self.assign if place >= count]
        return f"assign: {beyond[0]} is no place in a list of {count} models" if beyond else None


class SamplingRecipe(Strict):
    """How many clients a round dispatches."""

    fraction: float | None = Field(None, gt=0, le=1, description="share of the clients, C")
    count: int | None = Field(None, ge=1, description="number of clients")
    poisson: bool = Field(
        False, description="each client joins a round by itself with that probability; a cohort may be empty"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> SamplingRecipe:
        if (self.fraction is None) == (self.count is None):
            raise ValueError(
                "give exactly one of fraction and count; sampling={count: 5} takes the place of a fraction"
            )
        return self


class ResourceRecipe(Strict):
    """What Ray reserves for one actor."""

    num_cpus: float = Field(1.0, ge=0, le=MOST, description="CPU cores, also a fraction")
    num_gpus: float = Field(0.0, ge=0, le=MOST, description="GPUs; a fraction below 1, or a whole number")
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="the cluster's own resources, by name"
    )
    label_selector: dict[str, str] = Field(
        {}, description="labels that its machine must have: value, !value, in(a, b) or !in(a, b)"
    )

    @model_validator(mode="after")
    def _selectors_are_sayable(self) -> ResourceRecipe:
        for label, wanted in self.label_selector.items():
            if not SELECTOR.fullmatch(wanted):
                raise ValueError(
                    f"label_selector.{label} = {wanted!r}: expected a value, !value, in(a, b) or !in(a, b)"
                )
        return self

    @model_validator(mode="after")
    def _whole_gpus(self) -> ResourceRecipe:
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise ValueError("num_gpus above 1 must be a whole number: Ray does not split across GPUs")
        return self


class ClientResourceRecipe(ResourceRecipe):
    """What Ray reserves for an actor that runs these clients."""

    clients: list[Annotated[int, Field(ge=0)]] = Field(min_length=1, description="their ids")


class AttackRecipe(Strict):
    """Clients that lie about what they send: their parts are replaced when an exchange's replies are in."""

    name: Literal["paf", "lie", "ofom"]
    clients: list[Annotated[int, Field(ge=0)]] | None = Field(None, description="the attackers' ids")
    fraction: float | None = Field(None, ge=0, lt=1, description="share of the clients, drawn once")
    scale: float = Field(10.0, description="how far theta' lies, in every coordinate (paf, ofom)")
    theta: Literal["constant", "random"] = Field(
        "constant",
        description="theta': `scale` itself, or times normal numbers drawn once; softmax sees no constant",
    )
    z: float | Literal["baruch", "fedgems"] = Field(
        1.5, description="deviations from the mean (lie), or the formula that gives them"
    )
    parts: list[str] | None = Field(None, description="what is poisoned; null: all weights and logits")

    @model_validator(mode="after")
    def _one_of_two(self) -> AttackRecipe:
        if self.clients is not None and self.fraction is not None:
            raise ValueError("give at most one of clients and fraction")
        return self

    def count(self, clients: int) -> int:
        """How many attackers; where nothing is said, as FedGEMS has them: two for ofom, else one."""
        if self.clients is not None:
            return len(self.clients)
        if self.fraction is not None:
            return round(self.fraction * clients)
        return 2 if self.name == "ofom" else 1

    def fault(self, clients: int) -> str | None:
        """Why this cannot be among so many clients; None if it can."""
        named, count = self.clients or [], self.count(clients)
        wrong = sorted({client for client in named if client >= clients or named.count(client) > 1})
        if wrong:
            return f"clients: {wrong[0]}: expected each of 0 to {clients - 1} at most once"
        if count >= clients:
            return f"clients: {count} attackers for {clients} clients; expected an honest one at least"
        if self.name == "ofom" and count not in (0, 2):
            return f"clients: ofom has two attackers, one far and one mean; these are {count}"
        return None


class PlacementRecipe(Strict):
    """How clients lie on actors."""

    clients_per_actor: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST)] = Field(
        "auto", description="1: each client is an actor; n: n share one; auto: as many actors as fit"
    )
    client: ResourceRecipe = ResourceRecipe()
    server: ResourceRecipe = ResourceRecipe()
    overrides: list[ClientResourceRecipe] = Field([], description="more, or less, for some clients' actors")
    strategy: Literal["pack", "spread"] = Field(
        "pack", description="actors on as few machines as possible, or over as many"
    )
    max_inflight: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="calls at a time that client actors have; null: two each while more wait",
    )
    data: Literal["auto", "shared", "ship"] = Field(
        "auto",
        description="how machines get the decoded data: from the path where it was decoded (shared), through "
        "Ray's object store into their own caches (ship), or that where some do not see the path (auto)",
    )
    threads: int = Field(
        1, ge=1, le=MOST_THREADS, description="torch threads per actor; part of what makes bits equal"
    )


class StageRecipe(Named):
    """One codec of a chain: a name, or a name with its options."""

    feedback: bool = Field(
        False, description="whether what receivers did not get is added to the next time's"
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, written: Any) -> Any:
        return {"name": written} if isinstance(written, str) else written


def _chain(written: Any) -> Any:
    return written if isinstance(written, list) else [written]


ChainRecipe = Annotated[list[StageRecipe], BeforeValidator(_chain), Field(min_length=1)]


class CodecRecipe(Strict):
    """How parts travel: for each direction and kind a codec, or a list of codecs one after another."""

    up: dict[str, ChainRecipe] = Field({}, description="kind of part -> codecs of replies")
    down: dict[str, ChainRecipe] = Field({}, description="kind of part -> codecs of messages")
    buffers: Literal["exact", "coded"] = Field(
        "exact", description="whether codecs with a loss leave BatchNorm's statistics as they are"
    )

    @property
    def chains(self) -> dict[str, list[StageRecipe]]:
        """Where in the recipe a chain stands, as `codec.up.weights` -> its codecs."""
        directions = {"up": self.up, "down": self.down}
        return {
            f"codec.{way}.{kind}": chain for way, kinds in directions.items() for kind, chain in kinds.items()
        }


def _plain_title(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,59}", text):
        raise ValueError(f"{text!r}: expected a letter, then at most 59 letters, digits and _")
    return text


class MetricRecipe(Named):
    """One more metric of every evaluated model."""

    label: Annotated[str, AfterValidator(_plain_title)] | None = Field(
        None, description="its name in tables; null: the part of `name` behind the colon"
    )
    better: Better | None = Field(
        None, description="which of two values is the better one; null: as the metric's author says"
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, written: Any) -> Any:
        return {"name": written} if isinstance(written, str) else written

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.label or self.name.rpartition(":")[2]


class EvaluationRecipe(Strict):
    """When and what is evaluated."""

    every: int = Field(
        1, ge=1, le=MOST, description="rounds between evaluations; the last is always evaluated"
    )
    samples: bool = Field(True, description="draw generated samples in evaluated rounds")
    metrics: list[MetricRecipe] = Field(
        [], description="more metrics, each a name or a name with its options"
    )

    @model_validator(mode="after")
    def _titles_differ(self) -> EvaluationRecipe:
        titles = [metric.title for metric in self.metrics]
        twice = next((title for title in titles if titles.count(title) > 1), None)
        if twice is not None:
            raise ValueError(
                f"two metrics are called {twice}; a label tells them apart, as "
                f"{{name: ..., label: {twice}_2}}"
            )
        return self


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

    @model_validator(mode="after")
    def _cohort_fits(self) -> Recipe:
        count = self.sampling.count
        if count is not None and count > self.partition.clients:
            raise ValueError(
                f"sampling.count = {count}: more than partition.clients = {self.partition.clients}"
            )
        fraction, clients = self.sampling.fraction, self.partition.clients
        if fraction is not None and fraction * clients < 1 - 1e-9:
            raise ValueError(
                f"sampling.fraction = {fraction:g} of partition.clients = {clients} "
                f"is {fraction * clients:g} clients a round; expected 1 or more"
            )
        return self

    @model_validator(mode="after")
    def _poisson_in_rounds(self) -> Recipe:
        if self.sampling.poisson and self.schedule.name != "sync":
            raise ValueError(
                f"schedule.name = {self.schedule.name!r}: sampling.poisson draws a whole cohort at the start "
                "of a round and waits for all of it; expected sync"
            )
        return self

    @model_validator(mode="after")
    def _warmup_ends(self) -> Recipe:
        rates = self.local.lr_schedule
        for name, schedule, length in (
            ("rounds", rates and rates.rounds, self.rounds),
            ("epochs", rates and rates.epochs, self.local.epochs),
        ):
            if schedule and schedule.warmup >= length:
                raise ValueError(
                    f"local.lr_schedule.{name}.warmup = {schedule.warmup}: the rate would rise to the end; "
                    f"expected fewer than the {name}, {length}"
                )
        return self

    @model_validator(mode="after")
    def _lists_fit_the_clients(self) -> Recipe:
        clients = self.partition.clients
        fault = None if self.client_models is None else self.client_models.fault(clients)
        if fault:
            raise ValueError(f"client_models.{fault}")
        fault = None if self.attack is None else self.attack.fault(clients)
        if fault:
            raise ValueError(f"attack.{fault}")
        named = [client for override in self.placement.overrides for client in override.clients]
        wrong = sorted({client for client in named if client >= clients or named.count(client) > 1})
        if wrong:
            raise ValueError(
                f"placement.overrides: client {wrong[0]}: expected each of 0 to {clients - 1} at most once"
            )
        return self
