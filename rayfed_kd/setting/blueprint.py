"""What any process turns into the same setting. It is sent; the setting, with its data, is not."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rayfed_kd.data import SOURCES
from rayfed_kd.data.cache import locate_entry, open_entry
from rayfed_kd.data.partition import SCHEMES, Partition
from rayfed_kd.features.codecs.loading import Codecs, make_codecs
from rayfed_kd.models import CLASSIFIERS
from rayfed_kd.protocol import Method
from rayfed_kd.recipe.registry import OWN_METHODS, blaming, find_modules, options_of
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.strict import Named
from rayfed_kd.recipe.validation import validate
from rayfed_kd.setting.code_identity import check_identity, identity
from rayfed_kd.setting.modules.training_trial import Outcome
from rayfed_kd.setting.setting import Setting
from rayfed_kd.timing import Devices
from rayfed_kd.timing.reading import Timing, read_timing

Parts = tuple[Method[Any, Any], Timing, Codecs]  # what a recipe names and every process needs


@dataclass(frozen=True)
class Blueprint:
    """All that a process needs to build the setting.

    Attributes:
        recipe: validated where it was read, and nowhere again.
        method: the method's location, `package.module:Object`.
        pickled_parts: method, timing and codecs with their options parsed, as bytes: a class is a user's own
            perhaps, which a process can import only after it has found the user's folders, and that is after
            it was sent this.
        dataset_folder: the decoded cache entry to map; only its name where every machine has it in its own
            cache folder.
        partition: each client's samples.
        devices: the clients' devices in simulated time; None without it.
        import_paths: where a user's own modules are found.
        identity: of the code that made it.
        own_code: the same of the user's own modules.
        outcomes: of the trials of modules, which no other process repeats.
    """

    recipe: Recipe
    method: str
    pickled_parts: bytes
    dataset_folder: str
    partition: Partition
    devices: Devices | None = None
    import_paths: tuple[str, ...] = ()
    identity: Mapping[str, str] = field(default_factory=identity)
    own_code: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)

    def build(self) -> Setting:
        """The setting, in this process.

        Raises: RunError if this process runs other code than the one that made the blueprint.
        """
        # Before unpickling, which imports the user's classes.
        find_modules(self.import_paths)
        check_identity(self.identity, self.own_code)
        parts: Parts = pickle.loads(self.pickled_parts)
        dataset = open_entry(locate_entry(Path(self.dataset_folder)))
        if self.recipe.data.pixels == "symmetric":
            # (x - 0.5) / 0.5: pixels in [-1, 1], as generators that end in tanh make them (DaFKD).
            half = (0.5,) * len(dataset.mean)
            dataset = replace(dataset, mean=half, std=half)
        method, timing, codecs = parts
        return Setting(
            self.recipe, method, timing, codecs, dataset, self.partition, self.devices, self.outcomes
        )


def make_method(location: str, named: Named) -> Method[Any, Any]:
    """The method at `location` with the recipe's options.

    Raises: RecipeError if it is no method or an option is bad.
    """
    kind: type[Method[Any, Any]] = OWN_METHODS.find(location, "method.name")
    options = validate(options_of(kind), named.options, "method", named.name)
    with blaming(f"method.name: {named.name}"):
        return kind(options)


def read_names(recipe: Recipe) -> tuple[Timing, Codecs]:
    """Refuses names and options that can be refused without reading data.

    Returns: the schedule with the clock, and the codecs: what a run uses in other processes as it is here.
    Raises: RecipeError
    """
    models, client_models = {"model": recipe.shared_model}, recipe.client_models
    if client_models is not None:
        models |= {client_models.path(place): model for place, model in enumerate(client_models.members)}
    for path, model in models.items():
        CLASSIFIERS.bound(model, path)
    SOURCES.bound(recipe.data, "data")
    SCHEMES.bound(recipe.partition, "partition")
    return read_timing(recipe), make_codecs(recipe)
