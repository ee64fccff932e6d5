"""The user's own plain torch modules, the same in all simulators. Constructor: (shape, classes)."""

from __future__ import annotations

from torch import Tensor, nn


class RoundNet(nn.Module):
    """Two 5x5 convolutions and two linear layers; 2,156,490 parameters for 3x32x32 and 10 classes."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 512),
            nn.ReLU(),
            nn.Linear(512, classes),
        )

    def forward(self, samples: Tensor) -> Tensor:
        """Logits [batch, classes]."""
        logits: Tensor = self.layers(samples)
        return logits


def tiny_net(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Two linear layers; 4,810 parameters for 64 numbers and 10 classes.

    Of layers that rayfed-kd knows, so that it trains clients in groups; a class with a forward of its own, as
    `RoundNet`, it trains client by client, as with `local.vectorise=off`.
    """
    return nn.Sequential(nn.Linear(shape[0], 64), nn.ReLU(), nn.Linear(64, classes))
