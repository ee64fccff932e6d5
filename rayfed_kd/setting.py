"""A recipe made of objects: the method, the data, who holds what, and what builds the modules.

A `Blueprint` is a `Setting` on paper: plain values, which any process turns into the same setting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from rayfed_kd.attacks import attacked_parts, strength
from rayfed_kd.config import Named, PartitionRecipe, PublicRecipe, Recipe, validate
from rayfed_kd.contexts import DeviceData, PublicShare, ServerContext, ServerFacts
from rayfed_kd.data import SOURCES
from rayfed_kd.data.augment import AUGMENTATIONS, check_augmentation
from rayfed_kd.data.cache import located
from rayfed_kd.data.dataset import Dataset
from rayfed_kd.data.loading import find_source, load_dataset, open_dataset
from rayfed_kd.data.partition import SCHEMES, Partition, Pool, draw_public, make_partition
from rayfed_kd.devices import Devices, make_devices
from rayfed_kd.errors import RecipeError, RunError, nearest
from rayfed_kd.identity import check_identity, identity
from rayfed_kd.models import CLASSIFIERS, GENERATORS, HEADS
from rayfed_kd.models.base import Classifier, last_maps, layer_shape
from rayfed_kd.protocol import RECIPE_MODEL, Architecture, Method
from rayfed_kd.registry import find_modules, load_object, locate, options_model
from rayfed_kd.robust import AggregationOptions
from rayfed_kd.seeds import numpy_stream
from rayfed_kd.timing import clock_options, cohort_size, schedule_options
from rayfed_kd.workshop import Workshop

REGISTRIES: Mapping[str, Mapping[str, str]] = {
    "classifier": CLASSIFIERS,
    "generator": GENERATORS,
    "head": HEADS,
}


@dataclass(frozen=True)
class Blueprint:
    """All that a process needs to build the setting: plain values only, so it crosses to any process.

    Attributes:
        recipe: the resolved recipe as nested mappings.
        method: the method's location, `package.module:Object`.
        dataset_folder: the decoded cache entry to map; only its name where every machine has it in its own
            cache folder.
        partition: who holds what.
        devices: the clients' devices in simulated time; None without it.
        import_paths: where a user's own modules are found.
        identity: of the code that made it.
    """

    recipe: Mapping[str, Any]
    method: str
    dataset_folder: str
    partition: Partition
    devices: Devices | None = None
    import_paths: tuple[str, ...] = ()
    identity: Mapping[str, str] = field(default_factory=identity)

    def build(self) -> Setting:
        """The setting, in this process.

        Raises: RunError if this process runs other code than the one that made the blueprint.
        """
        check_identity(self.identity)
        self.find_modules()
        recipe = Recipe.model_validate(dict(self.recipe))
        method = make_method(self.method, recipe.method)
        dataset = open_dataset(located(Path(self.dataset_folder)))
        if recipe.data.pixels == "symmetric":
            half = (0.5,) * len(dataset.mean)
            dataset = replace(dataset, mean=half, std=half)
        return Setting(recipe, method, dataset, self.partition, self.devices)

    def find_modules(self) -> None:
        """Makes a user's own modules importable in this process, if it sees their folders."""
        find_modules(self.import_paths)


@dataclass(frozen=True)
class Setting:
    """What a run is made of, in this process."""

    recipe: Recipe
    method: Method[Any, Any]
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
    def _architectures(self) -> dict[str, tuple[Architecture, str]]:
        """Architecture name -> what it is, and where the recipe says so."""
        model = Architecture("classifier", self.recipe.model.name, self.recipe.model.options)
        wanted = {"model": (model, "model")}
        for name, architecture in self.method.architectures().items():
            named = architecture
            if architecture.name == RECIPE_MODEL:
                named = replace(architecture, name=model.name, options=model.options)
            wanted[name] = (named, f"method.{name}")
        wanted |= self._own_models
        return wanted

    def described(self, name: str) -> tuple[str, Mapping[str, Any]]:
        """What an architecture's name stands for: registered name or location, and the options given."""
        architecture, _ = self._architectures[name]
        return architecture.name, architecture.options

    @cached_property
    def _own_models(self) -> dict[str, tuple[Architecture, str]]:
        """Clients' own architectures, by a name that says what they are: equal ones are one."""
        listed = self.recipe.client_models
        found = {}
        for place, model in enumerate(listed.models if listed else []):
            named = Architecture("classifier", model.name, model.options)
            found[_own_name(model, self.recipe.model)] = (named, f"client_models.models.{place}")
        found.pop("model", None)
        return found

    def model_of(self, client: int) -> str:
        """The name of a client's architecture: "model", or one of `client_models`."""
        listed = self.recipe.client_models
        return "model" if listed is None else _own_name(listed.models[listed.of(client)], self.recipe.model)

    @cached_property
    def client_architectures(self) -> tuple[str, ...]:
        """The clients' architectures by name, each once."""
        return tuple(dict.fromkeys(self.model_of(client) for client in range(len(self.partition.train))))

    @cached_property
    def borders(self) -> Mapping[int, int]:
        """Length of an architecture's vector -> how many of its first elements are parameters."""
        workshop, found = self.workshop(), dict[int, int]()
        for name in self.builders:
            flat = workshop.lend(name, workshop.initial_vector(name))
            length = flat.vector().numel()
            found[length] = min(flat.num_parameters, found.get(length, length))
        return found

    def workshop(self, device: torch.device | str = "cpu") -> Workshop:
        """A workshop of this setting's modules."""
        return Workshop(self.builders, self.recipe.seed, device)

    def device_data(self, device: torch.device | str = "cpu") -> DeviceData:
        """The data on a device, with the public set if there is one."""
        asked = self.recipe.partition.public
        share = None if asked is None else PublicShare(self.partition.public, asked.labels)
        return DeviceData(self.dataset, device, share)

    def server_facts(self, round_index: int) -> ServerFacts:
        """What the server knows in that round."""
        sizes = self.partition.sizes.tolist()
        return ServerFacts(round_index, sizes, self.recipe.local, self.client_architectures)

    def check(self) -> None:
        """Builds every module once, tries its generators, and asks the method whether it can run.

        Raises: RecipeError
        """
        if self.recipe.client_models is not None and not self.method.heterogeneous:
            raise RecipeError(
                f"client_models: {self.recipe.method.name} combines its clients' weights and needs one "
                "architecture for all; expected no client_models, only `model`"
            )
        self._check_public()
        self._check_attack()
        if isinstance(self.method.options, AggregationOptions):
            self.method.options.check_clients(cohort_size(self.recipe))
        workshop = self.workshop()
        for name in self.builders:
            workshop.initial_vector(name)
        for name, architecture in self.method.architectures().items():
            if architecture.kind == "generator":
                self._try_generator(name, architecture, workshop)
        data = self.device_data()
        self.method.check(ServerContext(workshop, data, self.server_facts(0), self.recipe.seed))

    def _check_public(self) -> None:
        needs, asked, name = self.method.public, self.recipe.partition.public, self.recipe.method.name
        if needs != "none" and asked is None:
            kind = "labelled public" if needs == "labels" else "public"
            raise RecipeError(
                f"partition.public is missing: {name} needs {kind} samples, "
                "as partition.public={fraction: 0.5}"
            )
        if needs == "labels" and asked is not None and not asked.labels:
            raise RecipeError(f"partition.public.labels = false: {name} needs the labels of public samples")

    def _check_attack(self) -> None:
        attack, clients = self.recipe.attack, self.recipe.partition.clients
        if attack is None:
            return
        if not self.method.aligned:
            raise RecipeError(
                f"attack: clients of {self.recipe.method.name} send logits of their own samples, which have "
                "no mean over clients to start from; expected no attack"
            )
        attacked_parts(attack, self.method.up, self.recipe.method.name)
        count = attack.count(clients)
        if attack.name == "lie" and count:
            try:
                strength(attack, clients - count, count)
            except RunError as error:
                raise RecipeError(str(error)) from None

    def _builder(self, architecture: Architecture, path: str) -> Callable[[], nn.Module]:
        registered = REGISTRIES[architecture.kind]
        location = locate(architecture.name, registered, f"{path}.name")
        make = load_object(location, f"{path}.name")
        given, beside = dict(architecture.options), self._keys_of_method(path)
        options = validate(options_model(make), given, path, architecture.name, beside)
        arguments = {name: getattr(options, name) for name in type(options).model_fields}
        classes = architecture.classes or self.dataset.classes
        space, cut = architecture.space, architecture.cut

        def build() -> nn.Module:
            shape = self.spaces[space] if cut is None else self._shape_at(cut)
            try:
                return _module(make(shape, classes, **arguments), f"{path}.name")
            except RecipeError as error:
                if cut is not None:
                    whole = f"{error.message}; the model's layer {cut} gives {_sides(shape)}"
                    raise RecipeError(whole, f"{path}.name", error.hint) from None
                if architecture.kind == "classifier":
                    raise RecipeError(error.message, f"{path}.name", error.hint) from None
                whole = f"{error.message}; this method needs {space} of {_sides(shape)}"
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
        return _Spaces(self.dataset.shape, self.builders["model"])

    def _shape_at(self, cut: str) -> tuple[int, ...]:
        with torch.random.fork_rng(devices=[]):
            return layer_shape(self.builders["model"](), cut, self.dataset.shape, "method.cut")

    def _try_generator(self, name: str, architecture: Architecture, workshop: Workshop) -> None:
        path, takes = f"method.{name}.name", ("noise alone", "noise and labels")
        generator = workshop.lend(name, workshop.initial_vector(name)).freeze()
        conditional = bool(getattr(generator.module, "conditional", False))
        if conditional != architecture.conditional:
            raise RecipeError(
                f"{architecture.name} takes {takes[conditional]}, this method gives its generator "
                f"{takes[architecture.conditional]}",
                path=path,
            )
        labels = (torch.zeros(2, dtype=torch.int64),) if conditional else ()
        with torch.no_grad():
            made = tuple(generator(torch.zeros(2, generator.latent), *labels).shape[1:])
        wanted = self.spaces[architecture.space]
        workshop.take_back()
        if made != wanted:
            whose = "the data's" if architecture.space == "images" else f"{self.recipe.model.name}'s last"
            theirs = f"{whose} {architecture.space} are {_sides(wanted)}"
            raise RecipeError(f"{architecture.name} makes {_sides(made)}, {theirs}", path=path)


class _Spaces(Mapping[str, tuple[int, ...]]):
    """Shapes by space, found when they are asked for: a plain model needs neither maps nor features."""

    def __init__(self, images: tuple[int, ...], build: Callable[[], nn.Module]) -> None:
        self._images, self._build = images, build

    def __getitem__(self, space: str) -> tuple[int, ...]:
        if space == "images":
            return self._images
        with torch.random.fork_rng(devices=[]):
            model = self._build()
        if not isinstance(model, Classifier):
            raise RecipeError(
                f"a {type(model).__name__} has no {space}; expected a rayfed_kd.models.base.Classifier",
                path="model.name",
            )
        return last_maps(model, self._images)[1] if space == "maps" else (model.feature_size,)

    def __iter__(self) -> Iterator[str]:
        return iter(("images", "maps", "features"))

    def __len__(self) -> int:
        return 3


def _own_name(model: Named, recipe_model: Named) -> str:
    """The workshop's name of a client's architecture; the recipe's own model is "model"."""
    same = (model.name, model.options) == (recipe_model.name, recipe_model.options)
    return "model" if same else f"model {model.name} {json.dumps(model.options, sort_keys=True)}"


def _sides(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _module(made: Any, path: str) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise RecipeError(f"{path}: it made a {type(made).__name__}, expected a torch.nn.Module")
    return made


def make_method(location: str, named: Named) -> Method[Any, Any]:
    """The method at `location` with the recipe's options.

    Raises: RecipeError if it is no method or an option is bad.
    """
    found = load_object(location, "method.name")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise RecipeError(f"method.name: {location} is no subclass of rayfed_kd.protocol.Method")
    return found(validate(found.options_model(), named.options, "method", named.name))


def check_names(recipe: Recipe) -> None:
    """Refuses names and options that can be refused without reading data.

    Raises: RecipeError
    """
    own = recipe.client_models.models if recipe.client_models else []
    models = [(f"client_models.models.{place}", model, CLASSIFIERS) for place, model in enumerate(own)]
    named = (("model", recipe.model, CLASSIFIERS), *models, ("data", recipe.data, SOURCES))
    for path, what, registered in (*named, ("partition", recipe.partition, SCHEMES)):
        function = load_object(locate(what.name, registered, f"{path}.name"), f"{path}.name")
        validate(options_model(function), what.options, path, what.name)
    schedule_options(recipe)
    clock_options(recipe)
    if recipe.data.augment not in AUGMENTATIONS:
        known = ", ".join(sorted(AUGMENTATIONS))
        near = nearest(recipe.data.augment, AUGMENTATIONS)
        raise RecipeError(f"data.augment = {recipe.data.augment!r}: expected one of {known}.", hint=near)


def find_data(recipe: Recipe) -> None:
    """Whether the recipe's data is there; it is not opened.

    Raises: DataError if it is missing.
    """
    find_source(recipe.data.name, _data_folder(recipe), recipe.data.options)


def _data_folder(recipe: Recipe) -> Path | None:
    return None if recipe.data.folder is None else Path(recipe.data.folder)


def load_data(recipe: Recipe) -> Dataset:
    """The recipe's data, decoded and memory-mapped.

    Raises: DataError if it is missing or damaged, RecipeError if it does not fit the recipe.
    """
    dataset = load_dataset(recipe.data.name, _data_folder(recipe), recipe.data.fraction, recipe.data.options)
    check_augmentation(recipe.data.augment, dataset.shape)
    if recipe.partition.test == "official" and dataset.test is None:
        raise RecipeError(
            f"partition.test = 'official': {dataset.name} has no official test set; use 'local'"
        )
    return dataset


def load_devices(recipe: Recipe) -> Devices | None:
    """The devices of the recipe's clock; None if it simulates no time.

    Raises: RecipeError or DataError
    """
    return make_devices(clock_options(recipe), recipe.partition.clients, recipe.seed)


def load_partition(recipe: Recipe, dataset: Dataset) -> Partition:
    """The recipe's partition: read from its file, or drawn from the run's seed.

    Raises: RecipeError if it cannot be made, DataError if its file does not fit.
    """
    labels, asked = np.asarray(dataset.train.labels), recipe.partition
    if asked.file is not None:
        partition = Partition.load(Path(asked.file), len(labels))
        if len(partition.train) != asked.clients:
            raise RecipeError(
                f"partition.clients = {asked.clients}: {asked.file} has {len(partition.train)} clients"
            )
        _check_public_count(asked, len(partition.public), len(labels))
        return partition
    if asked.public is None:
        return _drawn(recipe, Pool(labels, dataset.classes, dataset.writers))
    count = _public_count(asked.public, len(labels))
    public, private = draw_public(len(labels), count, numpy_stream(recipe.seed, "public"))
    writers = None if dataset.writers is None else np.asarray(dataset.writers)[private]
    partition = _drawn(recipe, Pool(labels[private], dataset.classes, writers))
    return partition.beside(public, private, asked.public.keep)


def _public_count(asked: PublicRecipe, total: int) -> int:
    """How many samples are set apart.

    Raises: RecipeError if none would be left, or fewer than are to be used.
    """
    count = asked.count or max(1, round((asked.fraction or 0) * total))
    if count >= total:
        raise RecipeError(f"partition.public.count = {count}: there are {total} training samples")
    if (asked.keep or 0) > count:
        raise RecipeError(f"partition.public.keep = {asked.keep}: there are {count} public samples")
    return count


def _check_public_count(asked: PartitionRecipe, there: int, total: int) -> None:
    """A partition's file must have the public samples that the recipe asks for."""
    public = asked.public
    wanted = 0 if public is None else public.keep or _public_count(public, total)
    if wanted != there:
        raise RecipeError(f"partition.public: {asked.file} has {there} public samples, expected {wanted}")


def _drawn(recipe: Recipe, pool: Pool) -> Partition:
    asked = recipe.partition
    return make_partition(
        pool,
        asked.clients,
        asked.name,
        asked.options,
        numpy_stream(recipe.seed, "partition"),
        test=asked.test,
        test_fraction=asked.test_fraction,
    )
