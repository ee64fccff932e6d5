"""The section `placement`: what Ray reserves, and how clients lie on actors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rayfed_kd.recipe.strict import MOST, Strict

_LABEL = r"[0-9A-Za-z](?:[0-9A-Za-z_.-]*[0-9A-Za-z])?"
SELECTOR = re.compile(rf"!?{_LABEL}|!?in\({_LABEL}(?:, ?{_LABEL})*\)")


class ResourceRecipe(Strict):
    """What Ray reserves for one actor."""

    num_cpus: float = Field(1.0, ge=0, le=MOST, description="CPU cores, also a fraction")
    num_gpus: float = Field(0.0, ge=0, le=MOST, description="GPUs; a fraction below 1, or a whole number")
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="the cluster's own resources, by name"
    )
    label_selector: dict[str, str] = Field(
        {}, description="labels that its machine must have: value, !value, in(a, b) or !in(a, b)"
    )

    def contradictions(self) -> Iterator[str]:
        for label, wanted in self.label_selector.items():
            if not SELECTOR.fullmatch(wanted):
                yield f"label_selector.{label} = {wanted!r}: expected a value, !value, in(a, b) or !in(a, b)"

        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            yield "num_gpus above 1 must be a whole number: Ray does not split across GPUs"


class PlacementRecipe(Strict):
    """How clients lie on actors."""

    clients_per_actor: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST)] = Field(
        "auto", description="1: each client is an actor; n: n share one; auto: as many actors as fit"
    )
    client: ResourceRecipe = ResourceRecipe()
    server: ResourceRecipe = ResourceRecipe()
    strategy: Literal["pack", "spread"] = Field(
        "pack", description="actors on as few machines as possible, or over as many"
    )
    data: Literal["auto", "shared", "ship"] = Field(
        "auto",
        description="how machines get the decoded data: from the path where it was decoded (shared), through "
        "Ray's object store into their own caches (ship), or that where some do not see the path (auto)",
    )
    gpu_data: Literal["auto", "whole", "batches"] = Field(
        "auto",
        description="where samples lie that a GPU trains on: all on it (whole), in the machine's memory, and "
        "each batch is copied (batches), or that where they do not fit beside the model (auto)",
    )
    threads: int = Field(
        1, ge=1, le=4096, description="torch threads per actor; part of what makes bits equal"
    )
