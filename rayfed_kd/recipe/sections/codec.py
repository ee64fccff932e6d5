"""The section `codec`: how messages and replies are made smaller."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rayfed_kd.recipe.strict import ByName, Strict


class StageRecipe(ByName):
    """One codec of a chain: a name, or a name with its options."""

    feedback: bool = Field(
        False, description="whether what receivers did not get is added to the next time's"
    )


def _chain(written: Any) -> Any:
    return written if isinstance(written, list) else [written]


ChainRecipe = Annotated[list[StageRecipe], BeforeValidator(_chain), Field(min_length=1)]


class CodecRecipe(Strict):
    """How parts travel: for each direction and kind a codec, or a list of codecs one after another."""

    up: dict[str, ChainRecipe] = Field({}, description="kind of part -> codecs of replies")
    down: dict[str, ChainRecipe] = Field({}, description="kind of part -> codecs of messages")
    buffers: Literal["exact", "coded"] = Field(
        "exact", description="whether codecs with a loss leave BatchNorm's statistics as they are"
    )

    @property
    def chains(self) -> dict[str, list[StageRecipe]]:
        """Where in the recipe a chain stands, as `codec.up.weights` -> its codecs."""
        directions = {"up": self.up, "down": self.down}
        return {
            f"codec.{way}.{kind}": chain for way, kinds in directions.items() for kind, chain in kinds.items()
        }
