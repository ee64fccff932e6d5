"""The setting of a run: the method, the data, the partition, and the builders of the modules, as objects.

A `Blueprint` holds the plain values from which any process builds the same setting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from rayfed_kd.data.batches import DeviceData, PublicShare
from rayfed_kd.data.client_parts import Array, ClientParts
from rayfed_kd.data.dataset import Dataset
from rayfed_kd.data.partition import Partition
from rayfed_kd.errors import RecipeError
from rayfed_kd.models import CLASSIFIERS, GENERATORS, HEADS
from rayfed_kd.models.base import layer_shape
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.protocol import (
    RECIPE_MODEL,
    Architecture,
    Clock,
    Devices,
    Method,
    Schedule,
    ServerContext,
    ServerFacts,
)
from rayfed_kd.recipe.registry import blaming, load_function, options_model
from rayfed_kd.recipe.roles import MODEL_BUILDER
from rayfed_kd.recipe.sample_shapes import is_image, samples_called
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.local_training import LocalRecipe
from rayfed_kd.recipe.strict import Named
from rayfed_kd.recipe.timing import cohort_size
from rayfed_kd.recipe.validation import validate
from rayfed_kd.seeds import numpy_stream
from rayfed_kd.setting.attacks import check_attack
from rayfed_kd.setting.client_privacy.covered_parts import check_privacy, known_sizes
from rayfed_kd.setting.message_codecs import Codecs, Wires, check_codecs, make_wires
from rayfed_kd.setting.module_checks import Trials, check_module_size, checked_module
from rayfed_kd.setting.public_data import check_public
from rayfed_kd.setting.spaces import ModelSpaces, shown_sides
from rayfed_kd.setting.summed_replies import check_summed_replies
from rayfed_kd.setting.timing import Timing, check_schedule
from rayfed_kd.setting.vector_layouts import vector_borders
from rayfed_kd.toolbox.robust import AggregationOptions

REGISTRIES: Mapping[str, Mapping[str, str]] = {
    "classifier": CLASSIFIERS,
    "generator": GENERATORS,
    "head": HEADS,
}


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
    """

    recipe: Recipe
    method: Method[Any, Any]
    timing: Timing
    codecs: Codecs
    dataset: Dataset
    partition: Partition
    devices: Devices | None = None

    @cached_property
    def builders(self) -> dict[str, Callable[[], nn.Module]]:
        """Architecture name -> what makes the module.

        Raises: RecipeError if a name or an option is unknown.
        """
        return {name: self._builder(*entry) for name, entry in self._architectures.items()}

    @cached_property
    def _measured(self) -> set[str]:
        """Where the recipe names the architectures whose size was checked."""
        return set()

    @cached_property
    def _trials(self) -> Trials:
        return Trials()

    @cached_property
    def _architectures(self) -> dict[str, tuple[Architecture, str]]:
        """Architecture name -> what it is, and where the recipe says so."""
        shared = self.recipe.shared_model
        model = Architecture("classifier", shared.name, shared.options)
        wanted = {"model": (model, "model")}
        for name, architecture in self.method.architectures().items():
            named = architecture
            if architecture.name == RECIPE_MODEL:
                named = replace(architecture, name=model.name, options=model.options)
            wanted[name] = (named, f"method.{name}")
        wanted |= self._own_models
        return wanted

    def described(self, name: str) -> Architecture:
        """What an architecture's name stands for."""
        return self._architectures[name][0]

    def input_shape(self, architecture: Architecture) -> tuple[int, ...]:
        """Shape of one input: a sample, or maps or features of the recipe's model."""
        if architecture.cut is None:
            return self.spaces[architecture.space]
        return self._shape_at(architecture.cut)

    @cached_property
    def _own_models(self) -> dict[str, tuple[Architecture, str]]:
        """Clients' own architectures, by a name that says what they are: equal ones are one."""
        listed = self.recipe.client_models
        if listed is None:
            return {}
        architectures = {}
        for place, model in enumerate(listed.members):
            named = Architecture("classifier", model.name, model.options)
            architectures[_own_name(model, self.recipe.shared_model)] = (named, listed.path(place))
        architectures.pop("model", None)  # clients with the recipe's own model share its architecture
        return architectures

    def model_of(self, client: int) -> str:
        """The name of a client's architecture: "model", or one of `client_models`."""
        listed = self.recipe.client_models
        if listed is None:
            return "model"
        return _own_name(listed.members[listed.of(client)], self.recipe.shared_model)

    @cached_property
    def client_architectures(self) -> tuple[str, ...]:
        """The clients' architectures by name, each once."""
        return tuple(dict.fromkeys(self._models_by_client))

    @cached_property
    def _models_by_client(self) -> tuple[str, ...]:
        clients = len(self.partition.train)
        if self.recipe.client_models is None:  # perhaps a million clients
            return ("model",) * clients
        return tuple(map(self.model_of, range(clients)))

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
        return vector_borders(self.module_pool(), self.builders)

    def module_pool(self, device: torch.device | str = "cpu") -> ModulePool:
        """A pool of this setting's modules."""
        return ModulePool(self.builders, self.recipe.seed, device)

    def device_data(self, device: torch.device | str = "cpu") -> DeviceData:
        """The data on a device, with the public set if the recipe has one: one copy for all who hold it."""
        data = self._device_data.get(str(device))
        if data is None:
            public = self.recipe.partition.public
            share = None if public is None else PublicShare(self.partition.public, public.labels)
            data = self._device_data[str(device)] = DeviceData(self.dataset, device, share)
        return data

    @cached_property
    def _device_data(self) -> WeakValueDictionary[str, DeviceData]:
        # Weak: a setting may outlive its run, and a GPU has no memory for the data of runs that are over.
        return WeakValueDictionary()

    @cached_property
    def wires(self) -> Wires:
        """How the method's parts travel."""
        return make_wires(self.method, self.recipe, self.codecs, self.module_pool(), self.builders)

    def server_facts(self, round_index: int) -> ServerFacts:
        """The facts that the server knows in a round."""
        rounds, local = self.recipe.rounds, self.local_in(round_index)
        return ServerFacts(round_index, rounds, self._known_sizes, local, self._models_by_client)

    @cached_property
    def _known_sizes(self) -> tuple[int, ...]:
        # Once: each round has facts of its own, and there may be a million clients.
        return tuple(known_sizes(self.recipe, self.partition.sizes.tolist()))

    def local_in(self, round_index: int) -> LocalRecipe:
        """What the recipe says of local training in a round: its learning rate may change over the rounds."""
        return self.recipe.local.in_round(round_index, self.recipe.rounds)

    def check(self) -> None:
        """Builds every module once, tries its generators, and asks the method whether it can run.

        Raises: RecipeError
        """
        if self.recipe.client_models is not None and not self.method.heterogeneous:
            raise RecipeError(
                f"client_models: {self.recipe.method.name} combines its clients' weights and needs one "
                "architecture for all; expected no client_models, only `model`"
            )
        check_public(self.recipe, self.method)
        if self.method.generates and not is_image(self.dataset.shape):
            raise RecipeError(
                f"{self.recipe.method.name} generates {self.method.generates}; this data set has "
                f"{samples_called(self.dataset.shape)}",
                path="method.name",
            )
        check_attack(self.recipe, self.method)
        check_privacy(self.recipe, self.method, self.devices, self.codecs)
        check_summed_replies(self.recipe, self.method, self.codecs)
        sizes = self.partition.sizes.tolist()
        if not all(sizes):
            raise RecipeError(
                f"partition: client {sizes.index(0)} has no training sample, as {sizes.count(0)} of "
                f"{len(sizes)} clients; expected one or more for each, as partition.min_size=1 gives them"
            )
        check_schedule(self.schedule, self.clock, self.method, self.recipe, sizes)
        if isinstance(self.method.options, AggregationOptions):
            self.method.options.check_clients(cohort_size(self.recipe))
        module_pool = self.module_pool()
        for name in self.builders:
            module_pool.initial_vector(name)
        for name, architecture in self.method.architectures().items():
            if architecture.kind == "generator":
                self._try_generator(name, architecture, module_pool)
        check_codecs(self.method, self.recipe.method.name, self.wires.values())
        data = self.device_data()
        self.method.check(ServerContext(module_pool, data, self.server_facts(0), self.recipe.seed))

    def _builder(self, architecture: Architecture, path: str) -> Callable[[], nn.Module]:
        registered = REGISTRIES[architecture.kind]
        make = load_function(architecture.name, registered, MODEL_BUILDER, f"{path}.name", nn.Module)
        given, beside = dict(architecture.options), self._keys_of_method(path)
        # Checked when the builder is made, once; `build` runs for every module.
        options = validate(options_model(make), given, path, architecture.name, beside)
        arguments = {name: getattr(options, name) for name in type(options).model_fields}
        classes = architecture.classes or self.dataset.classes
        space, cut = architecture.space, architecture.cut

        def build() -> nn.Module:
            shape = self.input_shape(architecture)
            # Once: module pools build the same architecture again for every module that is lent at a time.
            if path not in self._measured:
                check_module_size(lambda: make(shape, classes, **arguments), path)
                self._measured.add(path)
            try:
                with blaming(f"{path}.name: {architecture.name}"):
                    module = checked_module(make(shape, classes, **arguments), f"{path}.name")
                if architecture.kind == "classifier":
                    self._trials.check(module, path, shape, classes, architecture.name)
                return module
            except RecipeError as error:
                if cut is not None:
                    whole = f"{error.message}; the model's layer {cut} gives {shown_sides(shape)}"
                    raise RecipeError(whole, f"{path}.name", error.hint) from None
                if architecture.kind == "classifier":
                    raise RecipeError(error.message, f"{path}.name", error.hint) from None
                whole = f"{error.message}; this method needs {space} of {shown_sides(shape)}"
                raise RecipeError(whole, error.path) from None

        return build

    def _keys_of_method(self, path: str) -> list[str]:
        """The method's own keys at `method.NAME`, beside the options of the architecture named there."""
        held = getattr(self.method.options, path.removeprefix("method."), None)
        return list(type(held).model_fields) if isinstance(held, BaseModel) else []

    @cached_property
    def spaces(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of what generators may make and heads may take: images, and the model's maps and features.

        Raises: RecipeError from asking for maps or features of a model that has none.
        """
        return ModelSpaces(self.dataset.shape, self.builders["model"])

    def _shape_at(self, cut: str) -> tuple[int, ...]:
        with torch.random.fork_rng(devices=[]):  # layers draw initial values from the global generator
            return layer_shape(self.builders["model"](), cut, self.dataset.shape, "method.cut")

    def _try_generator(self, name: str, architecture: Architecture, module_pool: ModulePool) -> None:
        path, takes = f"method.{name}.name", ("noise alone", "noise and labels")
        generator = module_pool.lend(name, module_pool.initial_vector(name)).freeze()
        conditional = bool(getattr(generator.module, "conditional", False))
        if conditional != architecture.conditional:
            raise RecipeError(
                f"{architecture.name} takes {takes[conditional]}, this method gives its generator "
                f"{takes[architecture.conditional]}",
                path=path,
            )
        labels = (torch.zeros(2, dtype=torch.int64),) if conditional else ()
        with torch.no_grad():
            shape = tuple(generator(torch.zeros(2, generator.latent), *labels).shape[1:])
        wanted = self.spaces[architecture.space]
        module_pool.take_back()
        if shape != wanted:
            whose = "the data's" if architecture.space == "images" else f"{self.recipe.model.name}'s last"
            theirs = f"{whose} {architecture.space} are {shown_sides(wanted)}"
            raise RecipeError(f"{architecture.name} makes {shown_sides(shape)}, {theirs}", path=path)


def _own_name(model: Named, recipe_model: Named) -> str:
    """The module pool's name of a client's architecture; the recipe's own model is "model"."""
    same = (model.name, model.options) == (recipe_model.name, recipe_model.options)
    return "model" if same else f"model {model.name} {json.dumps(model.options, sort_keys=True)}"
