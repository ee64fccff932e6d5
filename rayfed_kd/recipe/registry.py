"""From a name in a recipe to an object, and from a function's signature to its options.

A name is a registered one or `package.module:Object`. An object must have the role that the recipe gives it:
a class derives from a class of ours, a function is marked by `rayfed_kd.recipe.roles`. Nothing else is
called. Importing a module runs it, whatever it is: a recipe is code. Options are a function's keyword-only
parameters: one strict pydantic model is made of them, so that a bad one is answered before a run.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from rayfed_kd.errors import RayfedError, RecipeError, nearest, shortened, shown
from rayfed_kd.recipe.roles import has_role
from rayfed_kd.recipe.strict import Named
from rayfed_kd.recipe.validation import model_in, validate

# Packages whose own functions are no builders of ours: a module makes such of them, by the same names.
OF_PACKAGES = {
    "torchvision": "rayfed_kd.models.torchvision_models",
    "torchmetrics.functional": "rayfed_kd.setting.torchmetrics_functions",
    "torchmetrics.functional.classification": "rayfed_kd.setting.torchmetrics_functions",
}
LIBRARIES, STANDARD_LIBRARY = sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")
HOUSE = str(Path(__file__).parents[1])
LOCATION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
Options = TypeVar("Options", bound=BaseModel)


def locate(name: str, registered: Mapping[str, str], path: str, package: str = "") -> str:
    """The `package.module:Object` behind `name`.

    Args:
        name: a registered name, or already a location.
        registered: name -> location.
        path: where in the recipe the name stands, for the message.
        package: one of OF_PACKAGES that may have what is meant, for the message.
    Raises: RecipeError if the name is neither.
    """
    if LOCATION.fullmatch(name):
        package, _, attribute = name.partition(":")
        return f"{OF_PACKAGES.get(package, package)}:{attribute}"
    if ":" in name:
        raise RecipeError(f"{path}: {shown(name)} is no package.module:Object, as my_methods:FedMine")
    if name in registered:
        return registered[name]
    near = ":".join(name.rsplit(".", 1)) if "." in name else nearest(name, registered)
    with suppress(RecipeError):  # a package that cannot be imported suggests nothing
        if package and name in dir(importlib.import_module(OF_PACKAGES[package])):
            near = f"{package}:{name}"
    hint = f". Did you mean {near}? There" if near else "; there"  # before the list, which may be long
    known = ", ".join(sorted(registered))
    raise RecipeError(f"{path}: {shown(name)} is not known{hint} are {known}, or give package.module:Object.")


def find_modules(folders: Sequence[str]) -> None:
    """Makes a user's own modules in these folders importable; behind all that is installed."""
    sys.path += [folder for folder in folders if folder not in sys.path]


def load_object(location: str, path: str) -> Any:
    """Import the object at a location.

    Args:
        location: `package.module:Object`.
        path: where in the recipe it stands, for the message.
    Raises: RecipeError if the module or the object cannot be imported.
    """
    module_name, _, attribute = location.partition(":")
    name = shortened(module_name)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (module_name + ".").startswith(missing + "."):
            raise RecipeError(
                f"{path}: no module {name!r}; it must be importable from the folder of the command"
            ) from error
        raise RecipeError(f"{path}: module {name!r} cannot be imported: {blame(error)}") from error
    if not hasattr(module, attribute):
        package = next((package for package, ours in OF_PACKAGES.items() if ours == module_name), None)
        whose = package or f"module {name!r}"
        raise RecipeError(f"{path}: {whose} has no {shown(attribute)}.", hint=nearest(attribute, dir(module)))
    return getattr(module, attribute)


def blame(error: BaseException) -> str:
    """What somebody's own code raised, and in which line: one line in place of a stack trace."""
    frames = traceback.extract_tb(error.__traceback__)
    # Their line, not that of the library which they called, or ours.
    own_frames = [
        frame for frame in frames if not frame.filename.startswith((LIBRARIES, STANDARD_LIBRARY, HOUSE, "<"))
    ]
    last = (own_frames or frames)[-1:]
    line = f" ({last[0].filename}, line {last[0].lineno})" if last else ""
    return f"{type(error).__name__}: {shortened(' '.join(str(error).split()), 300)}{line}"


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Let what somebody's own code raises within the block become one message; ours are messages already.

    Args:
        what: the recipe's path and the name of what is called, as `model.name: my_models:net`.
    """
    try:
        yield
    except RayfedError:
        raise
    except Exception as error:
        raise RecipeError(f"{what} failed: {blame(error)}") from error


@dataclass(frozen=True)
class Bound:
    """An object that a recipe names, with its options.

    Attributes:
        found: the function or the class.
        options: its checked options.
    """

    found: Any
    options: Any

    @property
    def arguments(self) -> dict[str, Any]:
        """The options by name."""
        return {name: getattr(self.options, name) for name in type(self.options).model_fields}


def in_modules(package: str, **names: str) -> dict[str, str]:
    """Registered name -> location, of objects in modules of a package.

    Args:
        names: module -> its names, with blanks between; NAME:Object where the object is called otherwise.
    """
    found = {}
    for module, text in names.items():
        for name, _, called in (word.partition(":") for word in text.split()):
            found[name] = f"{package}.{module}:{called or name}"
    return found


class Registry(dict[str, str]):
    """What a recipe may name for one purpose: registered names, and a user's own as package.module:Object.

    As a mapping: registered name -> location. Listing names imports nothing.

    Args:
        names: registered name -> location.
        base: location of the class that a named class derives from; empty: no class may be named.
        role: the mark of functions that may be named, one of `rayfed_kd.recipe.roles`; empty: none may.
        package: one of OF_PACKAGES, whose functions may be named as well.
    """

    def __init__(self, names: Mapping[str, str], base: str = "", role: str = "", package: str = "") -> None:
        super().__init__(names)
        self._base, self._role, self._package = base, role, package

    def find(self, name: str, path: str) -> Any:
        """The object behind a registered name or a location. Nothing of it is called.

        Args:
            name: as the recipe has it.
            path: where in the recipe the name stands, for messages.

        Raises: RecipeError if there is no such object, it is not for this purpose, or a class leaves a method
            undefined that its base wants.
        """
        location = locate(name, self, path, self._package)
        target = load_object(location, path)
        base = load_object(self._base, path) if self._base else None
        derived = base is not None and isinstance(target, type) and issubclass(target, base)
        if not derived and not (self._role and has_role(target, self._role)):
            raise RecipeError(f"{path}: {shortened(location)} is {self._wanted(base)}")
        undefined = ", ".join(f"{method}()" for method in sorted(getattr(target, "__abstractmethods__", ())))
        if undefined:
            raise RecipeError(f"{path}: {location} must define {undefined}: see {base.__module__}")
        return target

    def _wanted(self, base: type | None) -> str:
        """What an object is not."""
        named = "" if base is None else f"subclass of {base.__module__}.{base.__qualname__}"
        if not self._role:
            return f"no {named}"
        marked = f"a function marked @rayfed_kd.{self._role}"
        return f"not {marked}{f' or a {named}' if named else ''}, and was not called"

    def bound(self, named: Named, path: str, beside: Sequence[str] = ()) -> Bound:
        """The object that a recipe names, with its options checked.

        Args:
            named: the name and the options.
            path: where in the recipe they stand.
            beside: keys that the recipe may have there as well.

        Raises: RecipeError as `find` does, or if an option is unknown or has a bad value.
        """
        target = self.find(named.name, f"{path}.name")
        return Bound(target, validate(options_of(target), named.options, path, named.name, beside))


def options_of(target: Any) -> type[BaseModel]:
    """The model of an object's options.

    A class says it by `options_model`, or is such a model itself. Else options are the keyword-only
    parameters of the function, or of the class's `__init__`.

    Raises: RecipeError if what the class says is no such model, or names types that are not there.
    """
    if isinstance(target, type) and issubclass(target, BaseModel):
        return _closed(target)
    declared = getattr(target, "options_model", None)
    if declared is None:
        return _closed(options_model(target))
    whose = f"options of {target.__qualname__}"
    with blaming(whose):
        model: type[BaseModel] = declared()
        above = [base.options_model() for base in target.__mro__[1:] if hasattr(base, "options_model")]
        for wanted in above or [BaseModel]:
            if not (isinstance(model, type) and issubclass(model, wanted)):
                known = f"{wanted.__module__}.{wanted.__qualname__}"
                raise RecipeError(f"{whose} are {shown(model)}; expected a subclass of {known}")
        model.model_rebuild()  # refuses an annotation that names nothing
        return _closed(model)


def _closed(model: type[BaseModel]) -> type[BaseModel]:
    """Options, unless they or some within leave out what they do not know, as a misspelt key: RecipeError."""
    models: list[Any] = [model]
    for found in models:  # which grows meanwhile
        if found.model_config.get("extra", "ignore") == "ignore":
            raise RecipeError(f"{found.__qualname__} ignores unknown keys; expected extra='forbid'")
        models += {model_in(field.annotation) for field in found.model_fields.values()} - {None, *models}
    return model


def annotated_options(owner: type, base: type[Options]) -> type[Options]:
    """The model of a class's options: what its attribute `options` is annotated with, else `base`."""
    return base if (annotated := get_type_hints(owner)["options"]) is Any else annotated


def options_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A strict pydantic model of the keyword-only parameters of `function`.

    Args:
        function: or a class, whose `__init__` then counts.
    """
    with blaming(f"options of {getattr(function, '__qualname__', function)}"):
        hints = get_type_hints(
            function.__init__ if isinstance(function, type) else function,  # type: ignore[misc]
            include_extras=True,
        )
        fields: dict[str, Any] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                default = ... if parameter.default is inspect.Parameter.empty else parameter.default
                fields[name] = (hints.get(name, Any), default)
        config = ConfigDict(extra="forbid", frozen=True, strict=True)
        model: type[BaseModel] = create_model(function.__name__, __config__=config, **fields)
        return model


# A method's location; the registered names are in the room of the methods, which this one must not know.
OWN_METHODS = Registry({}, "rayfed_kd.protocol:Method")
