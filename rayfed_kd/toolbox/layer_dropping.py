"""Deep-to-shallow layer dropping: which layers of a client still take part (FedD2S, eq. 6)."""

from __future__ import annotations

from pydantic import Field

from rayfed_kd.protocol import MethodOptions
from rayfed_kd.toolbox.layers import Layers, lowest_layer

PATH = "method.dropping"


def shared_layers(participation: int, layers: int, lowest: int, duration: int | None) -> int:
    """l = max(l_min, L - floor((Z - 1) / Z0)): layers 1 to l take part, those above are the client's own.

    Args:
        participation: Z, which of the client's participations this is, from 1.
        layers: L.
        lowest: l_min.
        duration: Z0, participations until the next layer is dropped; None: never.
    """
    if duration is None:
        return layers
    return max(lowest, layers - (participation - 1) // duration)


class DroppingOptions(MethodOptions):
    """Options of every method that drops layers; the defaults are FedD2S' for alpha 0.1."""

    dropping: list[str] = Field(
        ["F1", "F2", "F3"], description="the layers that are dropped, the last first; others stay shared"
    )
    z0: int | None = Field(
        3, ge=1, description="participations until the next layer is dropped, Z0; null: none is ever dropped"
    )
    at_once: bool = Field(False, description="drop them all from the start (FedD2S*, Fig. 5)")

    def shared(self, participation: int, layers: Layers) -> int:
        """l at a client's participation number `participation`, from 1.

        Raises: RecipeError at `method.dropping` if those are not the last of these layers.
        """
        lowest = lowest_layer(layers.names, self.dropping, PATH)
        return lowest if self.at_once else shared_layers(participation, len(layers), lowest, self.z0)
