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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from rayfed_kd.errors import RayfedError, RecipeError, nearest, shortened, shown
from rayfed_kd.recipe.roles import has_role

# Packages whose own functions are no builders of ours: a module makes such of them, by the same names.
OF_PACKAGES = {
    "torchvision": "rayfed_kd.models.torchvision_models",
    "torchmetrics.functional": "rayfed_kd.setting.torchmetrics_functions",
    "torchmetrics.functional.classification": "rayfed_kd.setting.torchmetrics_functions",
}
LIBRARIES, STANDARD_LIBRARY = sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")
HOUSE = str(Path(__file__).parents[1])
LOCATION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
Base = TypeVar("Base")
Options = TypeVar("Options", bound=BaseModel)


def locate(name: str, registered: Mapping[str, str], path: str) -> str:
    """The `package.module:Object` behind `name`.

    Args:
        name: a registered name, or already a location.
        registered: name -> location.
        path: where in the recipe the name stands, for the message.
    Raises: RecipeError if the name is neither.
    """
    if LOCATION.fullmatch(name):
        package, _, attribute = name.partition(":")
        return f"{OF_PACKAGES.get(package, package)}:{attribute}"
    if ":" in name:
        raise RecipeError(f"{path}: {shown(name)} is no package.module:Object, as my_methods:FedMine")
    if name in registered:
        return registered[name]
    near = nearest(name, registered)
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
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise RecipeError(f"{path}: module {name!r} cannot be imported: {blame(error)}") from error
        raise RecipeError(
            f"{path}: no module {name!r}; it must be importable from the folder of the command"
        ) from error
    except (Exception, SystemExit) as error:
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
    own = [
        frame for frame in frames if not frame.filename.startswith((LIBRARIES, STANDARD_LIBRARY, HOUSE, "<"))
    ]
    last = (own or frames)[-1:]
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


def load_function(
    name: str, registered: Mapping[str, str], role: str, path: str, base: type | None = None
) -> Callable[..., Any]:
    """The function behind a registered name or a location, marked for its role.

    Args:
        name: as the recipe has it.
        registered: name -> location.
        role: what the recipe takes it for, one of `rayfed_kd.recipe.roles`.
        path: where in the recipe the name stands, for the message.
        base: classes that derive from it need no mark; None: functions alone.
    Raises: RecipeError if there is no such object or it is not marked; nothing of it was called.
    """
    location = locate(name, registered, path)
    loaded = load_object(location, path)
    derived = base is not None and isinstance(loaded, type) and issubclass(loaded, base)
    if not derived and not has_role(loaded, role):
        wanted = f"a function marked @rayfed_kd.{role}"
        if base is not None:
            wanted += f" or a subclass of {base.__module__}.{base.__qualname__}"
        raise RecipeError(f"{path}: {shortened(location)} is not {wanted}, and was not called")
    function: Callable[..., Any] = loaded
    return function


def load_class(name: str, registered: Mapping[str, str], base: type[Base], path: str) -> type[Base]:
    """The subclass of `base` behind a registered name or a location.

    Args:
        name: as the recipe has it.
        registered: name -> location.
        base: the class that an author derives from.
        path: where in the recipe the name stands, for the message.
    Raises: RecipeError if there is no such class, it is no subclass of `base`, or a method is not defined.
    """
    location = locate(name, registered, path)
    loaded = load_object(location, path)
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise RecipeError(
            f"{path}: {shortened(location)} is no subclass of {base.__module__}.{base.__qualname__}"
        )
    undefined = ", ".join(f"{method}()" for method in sorted(getattr(loaded, "__abstractmethods__", ())))
    if undefined:
        raise RecipeError(f"{path}: {location} must define {undefined}: see {base.__module__}")
    return loaded


def annotated_options(owner: type, base: type[Options]) -> type[Options]:
    """The model of a class's options: what its attribute `options` is annotated with, else `base`.

    Raises: RecipeError if that is no subclass of `base`, which refuses options that it does not know.
    """
    annotated = get_type_hints(owner)["options"]
    if annotated is Any:
        return base
    if not (isinstance(annotated, type) and issubclass(annotated, base)):
        raise RecipeError(
            f"{owner.__name__}.options is annotated with {annotated!r}; expected a subclass of "
            f"{base.__module__}.{base.__qualname__}"
        )
    return annotated


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
