"""A method around another: the other one's rounds, and something of its own after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol.contexts import ClientContext, ServerContext
from rayfed_kd.protocol.declaration import Declaration
from rayfed_kd.protocol.evaluated import Evaluated, Shown
from rayfed_kd.protocol.method import Architecture, Cohort, Method, MethodOptions
from rayfed_kd.recipe.registry import Registry
from rayfed_kd.recipe.sections.local_training import LocalRecipe
from rayfed_kd.recipe.strict import Named


class InnerMethod(Named):
    """A method by its name, with its own options."""

    other_options: ClassVar[str] = "the options of that method: `rayfed-kd methods NAME`"
    name: str = Field("fedavg", description="a registered method or package.module:Object")


class WrappingOptions(MethodOptions):
    """Options of a method around another."""

    method: InnerMethod = InnerMethod()


@dataclass(frozen=True)
class WrappingState:
    """What the server keeps: the state of the method inside, and what a subclass adds."""

    inside: Any


State = TypeVar("State", bound=WrappingState)


class Wrapping(Method[State, Any]):
    """Clients keep what the method inside lets them keep, and its steps are this method's steps as well.

    A method on it defines `init_server`, `run_round` and `evaluated`, and calls those of `inside` there. What
    it sends beside is in `down` and `up` of its class. Clients train in groups if both classes say so.

    Attributes:
        inside: the method inside.
        registered: name -> location of the methods that a recipe may name.
    """

    options: Any
    down: ClassVar[Declaration] = {}
    up: ClassVar[Declaration] = {}
    registered: ClassVar[Mapping[str, str]] = {}
    inside: Method[Any, Any]

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        named, path = self.options.method, "method.method"
        bound = Registry(self.registered, "rayfed_kd.protocol:Method").bound(named, path)
        inside: Method[Any, Any] = bound.found(bound.options)
        # Set once and for all, as options are; the class itself can only speak of what it adds.
        vars(self).update(
            inside=inside,
            down={**inside.down, **type(self).down},
            up={**inside.up, **type(self).up},
            heterogeneous=inside.heterogeneous,
            client_keeps=inside.client_keeps,
            group_training=type(self).group_training and inside.group_training,
        )

    def __getattr__(self, name: str) -> Any:
        # Only for what is not found otherwise: the steps of the method inside, by which hosts call them.
        if name == "inside" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inside, name)

    def architectures(self) -> Mapping[str, Architecture]:
        """Those of the method inside."""
        return self.inside.architectures()

    @property
    def generates(self) -> Literal["", "images", "feature maps of images", "crops of images"]:
        """What the method inside generates."""
        return self.inside.generates

    def check(self, ctx: ServerContext) -> str | None:
        """Raise RecipeError if the method inside cannot run."""
        return self.inside.check(ctx)

    @property
    def public(self) -> Literal["none", "samples", "labels"]:
        """What the method inside needs."""
        return self.inside.public

    @property
    def whole_epochs(self) -> bool:
        """As the method inside."""
        return self.inside.whole_epochs

    def trained_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """As the method inside."""
        return self.inside.trained_samples(num_samples, local)

    def init_client(self, ctx: ClientContext) -> Any:
        """As the method inside."""
        return self.inside.init_client(ctx)

    def personal(self, client: Any, ctx: ClientContext) -> Tensor | Evaluated:
        """As the method inside."""
        return self.inside.personal(client, ctx)

    def shown(self, server: State, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        """As the method inside."""
        return self.inside.shown(server.inside, cohort, ctx)


def innermost(method: Method[Any, Any]) -> Method[Any, Any]:
    """The method that no other is inside of: the one whose options say what a round of clients does."""
    return innermost(method.inside) if isinstance(method, Wrapping) else method
