"""The sections `data` and `partition`: which samples there are, and which client has which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rayfed_kd.recipe.strict import MOST_CLIENTS, Named, PathText, Strict


class DataRecipe(Named):
    """Which images."""

    name: str = Field("digits", description="a registered source or package.module:Object")
    folder: PathText | None = Field(
        None, description="where the files lie; null: $RAYFED_KD_DATA, else ./data"
    )
    fraction: float = Field(1.0, gt=0, le=1, description="share of each class's training images that is kept")
    augment: Literal["none", "crop_flip", "reflect_crop_flip", "crop_flip_rotate"] = Field(
        "none", description="augmentation of training batches"
    )
    pixels: Literal["standard", "symmetric"] = Field(
        "standard", description="scaled by the data set's mean and deviation, or to [-1, 1]"
    )


class PublicRecipe(Strict):
    """Training images that server and clients all have, set apart before the partition or not."""

    fraction: float | None = Field(None, gt=0, lt=1, description="share of the training images")
    count: int | None = Field(None, ge=1, description="number of training images")
    keep: int | None = Field(None, ge=1, description="so many of them are used; null: all (FedGEMS Fig. 4)")
    labels: bool = Field(True, description="whether their labels are known")
    apart: bool = Field(True, description="no client has them; false: of the clients' own training images")

    def contradictions(self) -> Iterator[str]:
        if (self.fraction is None) == (self.count is None):
            yield "give exactly one of fraction and count"


class PartitionRecipe(Named):
    """Which client holds which images."""

    name: str = Field("dirichlet", description="a registered scheme or package.module:Object")
    clients: int = Field(20, ge=1, le=MOST_CLIENTS, description="number of clients, K")
    test: Literal["local", "official"] = Field(
        "local", description="evaluate on each client's own test part, or on the official test set"
    )
    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of a client's images kept for its test")
    file: PathText | None = Field(None, description="a saved partition.parquet to use instead of drawing one")
    public: PublicRecipe | None = Field(None, description="a public set; clients share what is left")
