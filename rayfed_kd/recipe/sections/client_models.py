"""The section `client_models`: clients' own architectures, and the groups of them that are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rayfed_kd.errors import did_you_mean
from rayfed_kd.recipe.strict import ByName, Named, PathText, Strict
from rayfed_kd.recipe.yaml_documents import read_yaml_file

TORCHVISION = "torchvision:"
PROJECTED = "projected"
OF_GROUP = "client_models.group:"
GROUP_FEATURES = 512  # HtFLlib's feature_dim


@cache
def groups() -> Mapping[str, Sequence[Named]]:
    """The named groups of models."""
    listed = read_yaml_file(Path(__file__).with_name("groups.yaml"), "table of groups")
    return {name: [ByName.model_validate(entry) for entry in members] for name, members in listed.items()}


def name_key(path: str) -> str:
    """Where in the recipe the name of a model at `path` stands; a group's models have no keys."""
    return path if path.startswith(OF_GROUP) else f"{path}.name"


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

    def contradictions(self) -> Iterator[str]:
        if bool(self.models) == (self.group is not None):
            yield "expected either models, one at least, or a group"
        if self.group is not None and self.group not in groups():
            known, hint = ", ".join(groups()), did_you_mean(self.group, groups())
            yield f"group = {self.group!r}: expected one of {known}.{hint}"
        if self.form != "linear" and self.features in (["own", "auto"] if self.models else ["own"]):
            yield f"form = {self.form!r}: no features are projected; expected a number of features"
        named = [entry.name.removeprefix(TORCHVISION) for entry in self.entries]
        if unknown := sorted(set(self.weights) - set(named)):
            yield f"weights.{unknown[0]}: none of these models; there are {', '.join(named)}"

    def path(self, place: int) -> str:
        """Where in the recipe the model at that place stands; a group's models are no keys of it."""
        if self.group is None:
            return f"client_models.models.{place}"
        return f"{OF_GROUP} {self.group}, model {place + 1}"

    @property
    def entries(self) -> list[Named]:
        """The models as they are listed, or the group's."""
        return self.models or [*groups()[str(self.group)]]

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
