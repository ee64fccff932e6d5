"""The setting of a run: the method, the data, the partition, and the builders of the modules, as objects.

A `Blueprint` holds the plain values from which any process builds the same setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn

from rayfed_kd.data.batches import DeviceData, PublicShare
from rayfed_kd.data.client_parts import Array, ClientParts
from rayfed_kd.data.dataset import Dataset
from rayfed_kd.data.partition import Partition
from rayfed_kd.errors import RecipeError, shortened
from rayfed_kd.features.codecs.loading import Codecs, Wires, check_codecs, make_wires
from rayfed_kd.features.privacy.covered_parts import check_privacy, known_sizes
from rayfed_kd.features.privacy.mechanism import ClientPrivacy
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.models.vectors import Layout
from rayfed_kd.protocol import Method, ServerContext, ServerFacts
from rayfed_kd.protocol.declared import check_declared
from rayfed_kd.protocol.wrapping import innermost
from rayfed_kd.recipe.registry import blaming
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.seeds import numpy_stream
from rayfed_kd.setting.attacks import check_attack
from rayfed_kd.setting.client_groups import Groups, decide_groups
from rayfed_kd.setting.method_needs import (
    check_epochs,
    check_generated,
    check_label_options,
    check_public,
    check_sampling,
    check_summed_replies,
    never_begun,
)
from rayfed_kd.setting.modules.architectures import Architectures
from rayfed_kd.setting.modules.training_trial import Outcome
from rayfed_kd.timing import Clock, Devices, Schedule
from rayfed_kd.timing.reading import Timing, check_schedule, replies_of
from rayfed_kd.toolbox.layers import Layers
from rayfed_kd.toolbox.robust import AggregationOptions

# Seconds of a small model's batch of few samples on a fast machine; most take ten times as long.
LEAST_BATCH_S = 1e-4


@dataclass(frozen=True)
class Setting:
    """The objects that a run is made of, in this process.

    Attributes:
        recipe: the validated recipe.
        method: the method with its options.
        timing: the schedule and the clock, their options parsed.
        codecs: how parts travel, by direction and kind; those of other kinds as they are.
        dataset: the decoded, memory-mapped data.
        partition: each client's samples.
        devices: the clients' devices in simulated time; None without it.
        outcomes: of the trials of modules that another process made, as `Architectures` has them.
    """

    recipe: Recipe
    method: Method[Any, Any]
    timing: Timing
    codecs: Codecs
    dataset: Dataset
    partition: Partition
    devices: Devices | None = None
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)

    @cached_property
    def architectures(self) -> Architectures:
        """The method's, the recipe's and the clients' own."""
        shape, classes = self.dataset.shape, self.dataset.classes
        return Architectures(self.recipe, self.method, shape, classes, self.outcomes)

    @property
    def builders(self) -> Mapping[str, Callable[[], nn.Module]]:
        """Architecture name -> what makes the module."""
        return self.architectures.builders

    @cached_property
    def models_by_client(self) -> tuple[str, ...]:
        """[K] each client's architecture by name."""
        clients = len(self.partition.train)
        if self.recipe.client_models is None:  # perhaps a million clients
            return ("model",) * clients
        return tuple(map(self.architectures.of_client, range(clients)))

    @cached_property
    def evaluated_clients(self) -> Array:
        """The clients whose test parts and own models are evaluated, ascending: the same in all rounds."""
        wanted, clients = self.recipe.evaluation.clients, len(self.partition.train)
        if wanted is None:
            return np.arange(clients)
        stream = numpy_stream(self.recipe.seed, "evaluated clients")
        return np.sort(stream.choice(clients, wanted, replace=False))

    @cached_property
    def tested(self) -> ClientParts:
        """Each client's samples that models are evaluated on; none for clients that are not evaluated."""
        if self.recipe.evaluation.clients is None:
            return self.partition.test
        return self.partition.test.only(self.evaluated_clients)

    @cached_property
    def groups(self) -> Groups:
        """Which clients train as one program."""
        return decide_groups(self.recipe, self.method, self.schedule, self.partition.sizes, self.builders)

    @property
    def notes(self) -> list[str]:
        """What the user should know before the first round, a sentence each."""
        late = never_begun(innermost(self.method).options, self.recipe.rounds)
        ours = (late, self.groups.note, self._unreached(), self._long_step())
        return [*self.dataset.notes, *filter(None, [self.method_note, *ours])]

    @cached_property
    def method_note(self) -> str:
        """What `Method.check` wants the user to know. Raises: RecipeError if it refuses the setting."""
        with blaming(f"method.name: check of {self.recipe.method.name}"):
            return str(self.method.check(self.server_context()) or "")

    def _unreached(self) -> str:
        """A note on clients' parameters that weight decay alone changes; empty if there are none."""
        pairs = self.architectures.outcomes.items()
        names = [name for path, trial in pairs if not path.startswith("method.") for name in trial.unreached]
        if not names or not self.recipe.local.optimizer.weight_decay:
            return ""
        return (
            f"no gradient reaches {shortened(', '.join(names), 100)}, and local.optimizer.weight_decay "
            "shrinks it all the same, where torch's optimisers skip it; requires_grad=False keeps it"
        )

    def _long_step(self) -> str:
        """Said where a client's local training takes an hour or more on any machine: no round would end."""
        local, most = self.recipe.local, int(self.partition.sizes.max())
        batches = local.steps_of(most)
        if batches * LEAST_BATCH_S < 3600:
            return ""
        return (
            f"warning: local.{local.length} are {batches:,} batches a round at the largest "
            f"client, {batches * LEAST_BATCH_S / 3600:,.0f} hours at {LEAST_BATCH_S:g} s each; --estimate "
            "measures them"
        )

    @property
    def schedule(self) -> Schedule:
        """Samples clients, and decides when an update is complete."""
        return self.timing.schedule

    @cached_property
    def clock(self) -> Clock:
        """How long clients take, and when they are available."""
        return self.timing.make_clock(self.devices)

    @cached_property
    def borders(self) -> Mapping[int, int]:
        """Length of an architecture's vector -> how many of its first elements are parameters."""
        module_pool, parameters = self.module_pool(), dict[int, int]()
        for name in self.builders:
            flat = module_pool.lend(name, module_pool.initial_vector(name))
            length = flat.num_elements
            # Of architectures of one length: what is a buffer in one of them is taken as a buffer in all.
            parameters[length] = min(flat.num_parameters, parameters.get(length, length))
        return parameters

    def module_pool(self, device: torch.device | str = "cpu") -> ModulePool:
        """A pool of this setting's modules."""
        return ModulePool(self.builders, self.recipe.seed, device)

    def device_data(
        self, device: torch.device | str = "cpu", streamed: Callable[[], bool] = lambda: False
    ) -> DeviceData:
        """The data for a device, with the public set if the recipe has one: the same for all who hold it.

        Args:
            device: where batches are wanted.
            streamed: asked if nobody holds the data yet: whether samples go there batch by batch.
        """
        data = self._device_data.get(str(device))
        if data is None:
            public = self.recipe.partition.public
            share = None if public is None else PublicShare(self.partition.public, public.labels)
            data = DeviceData(self.dataset, device, share, streamed=streamed())
            self._device_data[str(device)] = data
        return data

    @cached_property
    def _device_data(self) -> WeakValueDictionary[str, DeviceData]:
        # Weak: a setting may outlive its run, and a GPU has no memory for the data of runs that are over.
        return WeakValueDictionary()

    @cached_property
    def wires(self) -> Wires:
        """How the method's parts travel."""
        return make_wires(self.method, self.recipe, self.codecs, self._layouts)

    def _layouts(self) -> Mapping[int, Layout]:
        """Length of a vector -> its tensors: of the models, and of their first and their last layers.

        Of two vectors of one length the whole model's counts, else the first: server and clients take the
        same one, so that a wrong one only makes scales less fitting.
        """
        module_pool, layouts = self.module_pool(), dict[int, Layout]()
        modules = [module_pool.lend(name, module_pool.initial_vector(name)) for name in self.builders]
        for layout in (
            *(module.layout for module in modules),
            *(part for module in modules for part in _parts(module)),
        ):
            layouts.setdefault(layout.size, layout)
        return layouts

    def reply_features(self, module_pool: ModulePool) -> list[ClientPrivacy]:
        """What the recipe asks to be done to each reply before it is encoded, in order.

        Args:
            module_pool: of all architectures.
        """
        if self.recipe.privacy is None:
            return []
        return [ClientPrivacy(self.recipe, self.method, module_pool, self.builders)]

    def server_facts(self, round_index: int) -> ServerFacts:
        """The facts that the server knows in a round; of round 0 before the first."""
        rounds, local = self.recipe.rounds, self.recipe.local.in_round(round_index, self.recipe.rounds)
        sizes = tuple(known_sizes(self.recipe, self.partition.sizes.tolist()))
        return ServerFacts(round_index, rounds, sizes, local, self.models_by_client)

    def server_context(self, round_index: int = 0) -> ServerContext:
        """What the server's part of a round may read, on the CPU, with modules of its own."""
        facts = self.server_facts(round_index)
        return ServerContext(self.module_pool(), self.device_data(), facts, self.recipe.seed)

    def check(self) -> None:
        """Builds every module once, tries its generators, and asks the method whether it can run.

        Raises: RecipeError
        """
        if self.recipe.client_models is not None and not self.method.heterogeneous:
            raise RecipeError(
                f"client_models: {self.recipe.method.name} combines its clients' weights and needs one "
                "architecture for all; expected no client_models, only `model`"
            )
        method = self.method
        check_declared(self.recipe.method.name, method, method.architectures())
        check_public(self.recipe, method)
        check_epochs(self.recipe, method)
        check_sampling(self.recipe, method)
        check_label_options(self.recipe, method, self.dataset.classes)
        if method.generates:
            check_generated(self.recipe.method.name, method.generates, self.dataset)
        away = self.devices is not None and not self.devices.always_available
        few = "sampling.poisson" if self.recipe.sampling.poisson else "devices that are away" * away
        check_attack(self.recipe, self.method, self.schedule, any_number=bool(few))
        check_privacy(self.recipe, self.method, self.devices, self.codecs)
        check_summed_replies(self.recipe, self.method, self.codecs)
        sizes = self.partition.sizes.tolist()
        if not all(sizes):
            raise RecipeError(
                f"partition: client {sizes.index(0)} has no training sample, as {sizes.count(0)} of "
                f"{len(sizes)} clients; expected one or more for each, as partition.min_size=1 gives them"
            )
        check_schedule(self.schedule, self.clock, self.method, self.recipe, sizes)
        options = innermost(method).options
        if isinstance(options, AggregationOptions) and options.aggregation != "mean":
            used = replies_of(self.schedule, self.recipe.rounds, past_deadline=True)
            few = few or "faults.bad_replies = drop" * (self.recipe.faults.bad_replies == "drop")
            options.check_clients(used, late=not self.schedule.drops_late, few=few)
        module_pool = self.module_pool()
        for name in self.builders:
            module_pool.initial_vector(name)
        self.architectures.try_generators(module_pool)
        check_codecs(self.method, self.recipe.method.name, self.wires.values())
        _ = self.method_note
        _ = self.groups  # refuses a number where the schedule has no groups


def _parts(module: FlatModule) -> Iterator[Layout]:
    """The layouts of a classifier's first layers and of its last ones, for every border between them."""
    with suppress(RecipeError):  # no layers, or not in the vector's order: no method sends some of them
        layers = Layers(module)
        for border in range(1, len(layers)):
            yield module.layout.within(layers.places(0, border))
            yield module.layout.within(layers.places(border, len(layers)))
