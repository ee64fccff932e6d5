"""How long a recipe takes on this machine, measured in short rounds on a part of its data.

print(rayfed_kd.estimate("fedkf/cifar10"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from rayfed_kd.cluster.server.event_queue import Dispatch
from rayfed_kd.cluster.server.round_tables import RoundRecord
from rayfed_kd.cluster.server.run_state import Snapshot
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.data.dataset import Split
from rayfed_kd.errors import RecipeError, counted, naming
from rayfed_kd.experiment.engines import InProcess
from rayfed_kd.experiment.preparation import Prepared, make_ready
from rayfed_kd.experiment.result import Tell
from rayfed_kd.recipe.loading import RecipeSource, load_recipe
from rayfed_kd.recipe.overrides import Overrides, override_lines
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.screen import clock_text

# Batches of an average client in an epoch of the two measurements: as few as give a slope.
FEW_BATCHES = (2, 4)
STEADY = 0.05  # a rise of seconds from the first to the second, over the first, that is none

# A process's own part of a GPU beside its tensors: CUDA's context and loaded kernels. What is missing on the
# GPU may be others', too, so no more than this is taken for it.
MOST_OF_A_CONTEXT = 1024.0


@dataclass(frozen=True)
class HostMemory:
    """What a host takes of a GPU, measured.

    Attributes:
        needed_mb: what torch holds for it and the context of its process, in MiB.
        total_mb: the GPU's memory, in MiB.
    """

    needed_mb: float
    total_mb: float

    @property
    def share(self) -> float:
        """The least `num_gpus`, in hundredths, whose part of the GPU has room for a host."""
        return ceil(100 * self.needed_mb / self.total_mb) / 100

    def __str__(self) -> str:
        taken = f"a host takes {self.needed_mb:,.0f} of the GPU's {self.total_mb:,.0f} MiB"
        if self.share > 1:
            return f"{taken}, more than there is"
        # Ray fits as many as their shares' sum allows, counted in hundredths.
        hosts = 100 // round(100 * self.share)
        return f"{taken}: placement.client.num_gpus={self.share:g} lets {hosts} share it"


@dataclass(frozen=True)
class Estimate:
    """Seconds of a recipe's run on one core or one GPU.

    Attributes:
        clients_s: all clients' steps of a round, one after another.
        server_s: the server's part of a round.
        evaluation_s: an evaluation.
        rounds: rounds of the run.
        evaluations: evaluated rounds of the run.
        measured: the shares of the data with which rounds were measured; the recipe's own alone if they are
            short as they are.
        memory: what a host takes of the GPU that was measured on; None: clients compute on the CPU.
    """

    clients_s: float
    server_s: float
    evaluation_s: float
    rounds: int
    evaluations: int
    measured: tuple[float, ...]
    memory: HostMemory | None = None

    @property
    def run_s(self) -> float:
        """Seconds of the run."""
        return self.rounds * (self.clients_s + self.server_s) + self.evaluations * self.evaluation_s

    def __str__(self) -> str:
        shares = " and ".join(f"{share:.2g}" for share in self.measured)
        return (
            f"about {clock_text(self.run_s)} on one core or GPU: {self.rounds} rounds of "
            f"{self.clients_s:.2f} s at the clients, one after another, and {self.server_s:.2f} s at the "
            f"server, and {self.evaluations} evaluations of {self.evaluation_s:.2f} s; measured in round "
            f"{self.rounds} with data.fraction {shares}"
        ) + (f"\n{self.memory}" if self.memory else "")


def estimate(
    recipe: RecipeSource, overrides: Overrides = (), *, tell: Tell = lambda line: None, **keys: Any
) -> Estimate:
    """Estimate how long a recipe takes on this machine, in this process.

    Two runs of the recipe's first and last round, without those between, measure the last one with one local
    epoch of about two and four batches for an average client, or with all epochs if the method needs more
    than one, and its evaluation with the same shares of the official test set. What grows with the clients'
    samples is continued along the line through both, to all samples; what does not, such as a server that
    trains a generator for a given number of batches, is measured as it is. A third run with one epoch more
    says what each further local epoch takes, as not all of a client's work is done in `local.epochs`. So an
    estimate takes six rounds of the server's own work.

    All rounds count as the last: those of a warm-up, as FedL2G's, count as later ones, and what only the
    first rounds do, as DaFKD with `generator_rounds`, is not seen. Nor is what comes with the state of many
    rounds, as FedCOG's images from `generation_from_round` on.

    Args:
        recipe, overrides, keys: as in `run`.
        tell: called with a line before each measurement.

    Raises:
        RecipeError, DataError: the recipe cannot be run.
        RunError: a measured round failed.
    """
    with naming(recipe):
        lines = override_lines(overrides, keys)
        resolved = load_recipe(recipe, lines)
        mean_size = float(make_ready(resolved).setting.partition.sizes.mean())
        fractions = _fractions(resolved, mean_size)
        epochs = _measured_epochs(recipe, lines, resolved)
        measured = [_measure(recipe, lines, fraction, epochs, tell) for fraction in fractions]
        last, further_s = measured[-1], 0.0
        whole_epochs = resolved.local.epochs
        if isinstance(whole_epochs, int) and epochs and (further := whole_epochs - epochs):
            longer = _measure(recipe, lines, fractions[-1], epochs + 1, tell)
            further_s = further * max(0.0, longer.clients_s - last.clients_s)
    samples = last.clients * mean_size

    def continued(name: str) -> float:
        return _continued([(run.samples, getattr(run, name)) for run in measured], samples)

    # No samples: no client works in the last round, as datafree's.
    clients_s = continued("clients_s") + further_s * samples / max(last.samples, 1.0)
    server_s, evaluation_s = continued("server_s"), continued("evaluation_s")
    evaluations = ceil(resolved.rounds / resolved.evaluation.every)
    return Estimate(
        clients_s,
        server_s,
        evaluation_s,
        resolved.rounds,
        evaluations,
        tuple(fractions),
        _memory(resolved, fractions[-1], last),
    )


@dataclass(frozen=True)
class _Measured:
    """Seconds of one round, how many training samples its clients hold, and what was held of the GPU.

    Attributes:
        data_mb: MiB of the data set, as it was measured.
        gpu_mb: MiB; None: clients computed on the CPU.
    """

    clients: int
    samples: float
    clients_s: float
    server_s: float
    evaluation_s: float
    data_mb: float = 0.0
    gpu_mb: float | None = None


def _memory(recipe: Recipe, fraction: float, last: _Measured) -> HostMemory | None:
    """What a host takes of the GPU with all data of the recipe; only a part of them was on it."""
    if last.gpu_mb is None:
        return None
    left_out_mb = last.data_mb * (recipe.data.fraction / fraction - 1)
    return host_memory(last.gpu_mb, 0.0 if recipe.placement.gpu_data == "batches" else left_out_mb)


def _fractions(recipe: Recipe, mean_size: float) -> list[float]:
    """The values of data.fraction that are measured; the recipe's own if its clients have few batches."""
    shares = [min(1.0, batches * recipe.local.batch_size / mean_size) for batches in FEW_BATCHES]
    fraction, public = recipe.data.fraction, recipe.partition.public
    # A saved partition, and a public set by number, are of all samples.
    whole = recipe.partition.file is not None or (public is not None and public.fraction is None)
    return [fraction] if whole or shares[0] == 1.0 else [share * fraction for share in shares]


def _measured_epochs(recipe: RecipeSource, lines: Sequence[str], resolved: Recipe) -> int | None:
    """Local epochs to measure: one; None: the recipe's.

    All are measured of a method that needs more, as FedRep's epochs of the head, and where the recipe has
    steps or parts of an epoch.
    """
    if not isinstance(resolved.local.epochs, int):
        return None
    try:
        make_ready(load_recipe(recipe, [*lines, "local.epochs=1"]))
    except RecipeError:  # the recipe itself can be run
        return None
    return 1


def _measure(
    recipe: RecipeSource, lines: Sequence[str], fraction: float, epochs: int | None, tell: Tell
) -> _Measured:
    """Run the first and the last round, of so many local epochs, on a share of the data; the last counts.

    The first builds modules and gives states, such as the teachers of a method that has no others later.
    """
    named = "all local training" if epochs is None else counted(epochs, "local epoch")
    full = load_recipe(recipe, lines)
    tell(f"measuring {counted(min(2, full.rounds), 'round')} with data.fraction {fraction:.2g} and {named}")
    short = [f"data.fraction={fraction}", f"evaluation.every={full.rounds}"]
    short += [] if epochs is None else [f"local.epochs={epochs}"]
    short += ["partition.min_size=0"] * ("min_size" in full.partition.options)  # of fewer samples
    prepared = make_ready(load_recipe(recipe, [*lines, *short]), measured=True)
    prepared = _fewer_tested(prepared, fraction / full.data.fraction)
    launcher, records = InProcess(), _Kept()
    launcher.check_device(prepared.recipe)
    try:
        with launcher.computing(prepared.setting) as (engine, device):
            simulation = Simulation(prepared.setting, engine, records, device)
            start = simulation.begin()
            if full.rounds > 1:
                server = simulation.round(1, start.server)
                start = _before_round(full.rounds, simulation.snapshot(1, server))
            simulation.run(start)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("an estimate that is not finished leaves nothing") from None
    return _last_round(prepared, records)


def _before_round(last: int, first: Snapshot) -> Snapshot:
    """The first round's snapshot as that of the last but one, in which what is under way was sent."""

    def sent(dispatch: Dispatch) -> Dispatch:
        facts = replace(dispatch.call.facts, round=last - 1)
        return replace(dispatch, call=replace(dispatch.call, facts=facts))

    return replace(first, round=last - 1, under_way=[sent(dispatch) for dispatch in first.under_way])


class _Kept(list[RoundRecord]):
    """The records of the rounds, in memory."""

    record = list.append


def _fewer_tested(prepared: Prepared, share: float) -> Prepared:
    """The same with a share of the official test set: 16 clients' ResNets take minutes for all of it."""
    dataset = prepared.setting.dataset
    if dataset.test is None:
        return prepared
    # Evenly over the set, which may be sorted by class.
    chosen = np.linspace(0, len(dataset.test) - 1, ceil(share * len(dataset.test))).astype(np.int64)
    fewer = Split(dataset.test.images[chosen], dataset.test.labels[chosen])
    return replace(prepared, setting=replace(prepared.setting, dataset=replace(dataset, test=fewer)))


def _last_round(prepared: Prepared, records: Sequence[RoundRecord]) -> _Measured:
    (last,), messages = (records[-1].tables[name] for name in ("rounds", "messages"))
    # Those that worked in this round: under an asynchronous schedule its replies may be of earlier work.
    down, up = ({r["client"] for r in messages if r["direction"] == way} for way in ("down", "up"))
    clients = sorted(down or up)
    sizes = prepared.setting.partition.sizes
    # Clients that send nothing, as stand-alone ones, stand in no table: they count as average ones.
    number = len(clients) or last["cohort"]
    samples = float(sizes[clients].sum()) or number * float(sizes.mean())
    hosts = [row for record in records for row in record.tables["hosts"]]
    measured_mb = [row["gpu_mb"] for row in hosts if row.get("gpu_mb") is not None]
    train = prepared.setting.dataset.train
    return _Measured(
        number,
        samples,
        last["client_s"],
        last["server_s"],
        last["evaluate_s"],
        data_mb=(train.images.nbytes + train.labels.nbytes) / 2**20,
        gpu_mb=max(measured_mb, default=None),
    )


def _continued(points: Sequence[tuple[float, float]], x: float) -> float:
    """The line through two points, at `x`; see the tests. One point alone stands for itself.

    It never falls, as more data takes no less time, and is never below 0. A rise by less than a twentieth is
    the clock's noise, which a line to all samples would multiply: `y` is then the same everywhere.
    """
    (x1, y1), (x2, y2) = points[0], points[-1]
    rises = x2 > x1 and y2 - y1 > STEADY * y1
    return max(0.0, y2 + (y2 - y1) / (x2 - x1) * (x - x2)) if rises else y2


def host_memory(held_mb: float, missing_mb: float) -> HostMemory | None:
    """What a host takes of this process's first GPU; None without one.

    Args:
        held_mb: what torch held for it when it was measured.
        missing_mb: what it did not have then and needs, as data that were left out.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(0)
    context_mb = (total - free - torch.cuda.memory_reserved(0)) / 2**20
    own_mb = min(max(context_mb, 0.0), MOST_OF_A_CONTEXT)
    return HostMemory(held_mb + missing_mb + own_mb, total / 2**20)
