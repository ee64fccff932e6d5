"""The architectures of a setting, by name: the recipe's model, the clients' own, and what the method adds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models import CLASSIFIERS, GENERATORS, HEADS
from rayfed_kd.models.base import Classifier, last_maps, layer_shape
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.models.whole_modules import head_of
from rayfed_kd.protocol import RECIPE_MODEL, Architecture, Method
from rayfed_kd.recipe.registry import blaming
from rayfed_kd.recipe.sample_shapes import shown_sides
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.client_models import name_key
from rayfed_kd.recipe.strict import Named
from rayfed_kd.setting.modules.module_checks import check_module_size, checked_module, trial
from rayfed_kd.setting.modules.training_trial import Outcome

REGISTRIES = {"classifier": CLASSIFIERS, "generator": GENERATORS, "head": HEADS}


class Architectures:
    """What each architecture's name stands for, and what makes its modules.

    Args:
        recipe: names the model and the clients' own.
        method: says which others it needs.
        sample_shape: of the data's samples.
        classes: of the data.
        outcomes: of trials that another process made, by where the recipe names the architectures.

    Attributes:
        outcomes: the same, with those that were made here.
    """

    def __init__(
        self,
        recipe: Recipe,
        method: Method[Any, Any],
        sample_shape: tuple[int, ...],
        classes: int,
        outcomes: Mapping[str, Outcome],
    ) -> None:
        self._recipe, self._method, self._sample_shape, self._classes = recipe, method, sample_shape, classes
        self._measured: set[str] = set()  # where the recipe names those whose size was checked
        self.outcomes = dict(outcomes)

    @cached_property
    def builders(self) -> Mapping[str, Callable[[], nn.Module]]:
        """Architecture name -> what makes the module; one for all names of one architecture.

        Raises: RecipeError if a name or an option is unknown.
        """
        named = [architecture for architecture, _ in self._named.values()]
        builders = [self._builder(*entry) for entry in self._named.values()]
        return {name: builders[named.index(model)] for name, model in zip(self._named, named, strict=True)}

    def described(self, name: str) -> Architecture:
        """What an architecture's name stands for."""
        return self._named[name][0]

    def of_client(self, client: int) -> str:
        """The name of a client's architecture: "model", or one of `client_models`."""
        listed = self._recipe.client_models
        if listed is None:
            return "model"
        return _own_name(listed.members[listed.of(client)], self._recipe.shared_model)

    def input_shape(self, architecture: Architecture) -> tuple[int, ...]:
        """Shape of one input: a sample, or maps or features of the recipe's model."""
        if architecture.cut is None:
            return self._shape_of(architecture.space)
        with torch.random.fork_rng(devices=[]):  # layers draw initial values from the global generator
            return layer_shape(self.builders["model"](), architecture.cut, self._sample_shape, "method.cut")

    def try_generators(self, module_pool: ModulePool) -> None:
        """Generate with each of the method's generators.

        Raises: RecipeError if one takes or makes something else than the method needs.
        """
        for name, architecture in self._method.architectures().items():
            if architecture.kind == "generator":
                self._try_generator(name, architecture, module_pool)

    @cached_property
    def _named(self) -> dict[str, tuple[Architecture, str]]:
        """Architecture name -> what it is, and where the recipe says so; equal ones of clients are one."""
        shared = self._recipe.shared_model
        model = Architecture("classifier", shared.name, shared.options)
        wanted = {"model": (model, "model")}
        for name, architecture in self._method.architectures().items():
            named = architecture
            if architecture.name == RECIPE_MODEL:
                named = replace(architecture, name=model.name, options=model.options)
            wanted[name] = (named, f"method.{name}")
        listed = self._recipe.client_models
        for place, own in enumerate(listed.members if listed else ()):
            name = _own_name(own, shared)
            if listed and name != "model":  # clients with the recipe's own model share its architecture
                wanted[name] = (Architecture("classifier", own.name, own.options), listed.path(place))
        return wanted

    def _builder(self, architecture: Architecture, path: str) -> Callable[[], nn.Module]:
        key, beside = name_key(path), self._keys_of_method(path)
        named = Named(name=architecture.name, **architecture.options)
        # Checked when the builder is made, once; `build` runs for every module.
        bound = REGISTRIES[architecture.kind].bound(named, path, beside)
        make, arguments = bound.found, bound.arguments
        classes = architecture.classes or self._classes
        space, cut = architecture.space, architecture.cut

        def build() -> nn.Module:
            shape = self.input_shape(architecture)

            def made() -> nn.Module:
                with blaming(f"{architecture.name}, called with (shape, classes),"):
                    return checked_module(make(shape, classes, **arguments), architecture.name)

            # Once: module pools build the same architecture again for every module that is lent at a time.
            if path not in self._measured:
                check_module_size(lambda: make(shape, classes, **arguments), path)
                self._measured.add(path)
            try:
                if path not in self.outcomes:
                    size, bf16 = self._recipe.local.batch_size, self._recipe.local.precision == "bf16"
                    tried = trial(made, architecture.kind, shape, classes, architecture.name, size)
                    self.outcomes[path] = replace(tried, bf16=bf16).outcome()
                module = self.outcomes[path].told(made())
            except RecipeError as error:
                if cut is not None:
                    message = f"{error.message}; the model's layer {cut} gives {shown_sides(shape)}"
                    raise RecipeError(message, key, error.hint) from None
                if architecture.kind == "classifier":
                    raise RecipeError(error.message, key, error.hint) from None
                message = f"{error.message}; this method needs {space} of {shown_sides(shape)}"
                raise RecipeError(message, error.path or key) from None
            if architecture.kind == "generator" and space != "images":
                # Maps and features have no pixels, whoever wrote the generator.
                module.standardised = True  # type: ignore[assignment]
            return module

        return build

    def _keys_of_method(self, path: str) -> list[str]:
        """The method's own keys at `method.NAME`, beside the options of the architecture named there."""
        options = getattr(self._method.options, path.removeprefix("method."), None)
        return list(type(options).model_fields) if isinstance(options, BaseModel) else []

    def _shape_of(self, space: str) -> tuple[int, ...]:
        """Shape of what generators may make and heads may take: images, the model's maps, features, logits.

        A plain module has no maps, and the features of its last linear layer, if it ends in one.

        Raises: RecipeError for maps or features of a model that has none.
        """
        if space == "images":
            return self._sample_shape
        if space == "logits":
            return (self._classes,)
        with torch.random.fork_rng(devices=[]):  # layers draw initial values from the global generator
            model = self.builders["model"]()
        if space == "features":
            width = model.feature_size if isinstance(model, Classifier) else head_of(model).in_features
            return (int(width),)  # type: ignore[arg-type]
        if not isinstance(model, Classifier):
            raise RecipeError(
                f"this method needs feature maps, and a {type(model).__name__} does not say where they come "
                "out; expected a model whose parts run one after the other: one of ours, most of "
                "torchvision's, or a rayfed_kd.models.base.Classifier",
                path="model.name",
            )
        return last_maps(model, self._sample_shape)[1]

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
        wanted = self._shape_of(architecture.space)
        module_pool.take_back()
        if shape != wanted:
            whose = "the data's" if architecture.space == "images" else f"{self._recipe.model.name}'s last"
            theirs = f"{whose} {architecture.space} are {shown_sides(wanted)}"
            raise RecipeError(f"{architecture.name} makes {shown_sides(shape)}, {theirs}", path=path)


def _own_name(model: Named, recipe_model: Named) -> str:
    """The module pool's name of a client's architecture; the recipe's own model is "model"."""
    same = (model.name, model.options) == (recipe_model.name, recipe_model.options)
    return "model" if same else f"model {model.name} {json.dumps(model.options, sort_keys=True)}"
