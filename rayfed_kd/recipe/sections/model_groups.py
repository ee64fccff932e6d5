"""Groups of architectures by name, for `client_models.group`: HtFLlib's, and small ones for two cores.

Each entry is a model as under `model`. HtFLlib's names are those of its option `-m`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]


def _torchvision(*names: str) -> list[Entry]:
    return [{"name": f"torchvision:{name}"} for name in names]


def _short(stages: int) -> Entry:
    return {"name": "short_resnet", "blocks": [1] * stages}


GROUP_FEATURES = 512  # HtFLlib's feature_dim
FEDAVG_CNN: Entry = {"name": "cnn2", "padding": 0}
LONG = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")

GROUPS: Mapping[str, Sequence[Entry]] = {
    "HtFE-img-2": [FEDAVG_CNN, *_torchvision("resnet18")],
    "HtFE-img-3": [_short(4), *_torchvision("resnet18", "resnet34")],
    "HtFE-img-4": [FEDAVG_CNN, *_torchvision("googlenet", "mobilenet_v2", "resnet18")],
    "HtFE-img-5": _torchvision("googlenet", "mobilenet_v2", *LONG[:3]),
    "HtFE-img-8": [FEDAVG_CNN, *_torchvision("googlenet", "mobilenet_v2", *LONG)],
    "HtFE-img-9": [*map(_short, range(1, 5)), *_torchvision(*LONG)],
    "HtM-img-10": [FEDAVG_CNN, *_torchvision("googlenet", "mobilenet_v2", *LONG, "vit_b_16", "vit_b_32")],
    "mixed-9": [
        FEDAVG_CNN,
        {"name": "small_vit"},
        *_torchvision("resnet18", "resnet34", "resnet50"),
        *_torchvision("mobilenet_v2", "shufflenet_v2_x1_0", "googlenet", "efficientnet_b0"),
    ],
    "small-2": [{"name": "lenet5"}, {"name": "resnet8", "width": 16}],
    "small-3": [{"name": "lenet5"}, {"name": "cnn2"}, {"name": "resnet8", "width": 16}],
    "small-4": [
        {"name": "lenet5"},
        {"name": "cnn2"},
        {"name": "resnet8", "width": 16},
        {"name": "small_vit"},
    ],
    "HtFE-txt-2": [{"name": "fast_text"}, {"name": "word_bag"}],
    "HtFE-txt-5-1": [
        {"name": "text_transformer", "heads": 8, "layers": layers, "width": 512}
        for layers in (1, 2, 4, 8, 16)
    ],
}
