"""FedPer: a shared base, and above it personal layers that never leave their client. And FedPer+.

Arivazhagan et al. 2019, Federated Learning with Personalization Layers, arXiv 1912.00818, Algorithms 1, 2.

    down  the base, layers 1 to l                       4 P_base bytes a client
    up    the trained base and the count n_k            4 P_base bytes a client
    client: E epochs of cross entropy on the received base and its own layers together
    base = sum over the cohort of n_k base_k / sum of n_k

FedPer+ (Atapour et al. 2024, arXiv 2402.10846, section IV-A) starts with all layers shared and drops them
as toolbox/layers.py says. The exchange and its readings are in toolbox/own_models.py. With
`personal: []` it is FedAvg with every client's local model evaluated, as FedD2S' tables report it.
"""

from __future__ import annotations

from rayfed_kd.toolbox.layers import DroppingOptions
from rayfed_kd.toolbox.own_models import DroppedLayers, PersonalLayers, PersonalOptions


class FedPer(PersonalLayers, plain_training=True):
    """A fixed border."""

    options: PersonalOptions
    summary = "sample-weighted average of the first layers; the last ones are each client's own"
    paper = "Arivazhagan et al. 2019, arXiv 1912.00818"


class FedPerPlus(DroppedLayers, plain_training=True):
    """A border that falls, client by client."""

    options: DroppingOptions
    summary = "FedPer whose clients drop shared layers, the deepest first, as they take part"
    paper = "Atapour et al. 2024, arXiv 2402.10846, section IV-A"
