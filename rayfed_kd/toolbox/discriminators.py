"""A discriminator beside a classifier: as a second head on its trunk, or as a model of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule


@dataclass(frozen=True)
class Judge:
    """A discriminator at work: logits log f / (1 - f), [batch], of samples being real.

    Generated samples pass BatchNorm layers with their own statistics and leave the running ones alone, as the
    classifier classifies real samples only. DaFKD, Wang et al., CVPR 2023, section 3.2.

    Attributes:
        discriminator: takes the trunk's features, or samples where there is no trunk.
        trunk: the classifier whose features it shares; None: it shares none.
        on_features: generated samples are such features already.
    """

    discriminator: FlatModule
    trunk: FlatModule | None
    on_features: bool = False

    def real(self, images: Tensor, features: Tensor) -> Tensor:
        """Of real images, [batch, ...], whose features the classifier has computed, [batch, F]."""
        return self.discriminator(images if self.trunk is None else features).squeeze(1)

    def generated(self, samples: Tensor) -> Tensor:
        """Of generated images or features, [batch, ...]."""
        if self.trunk is None:
            with self.discriminator.keeping_statistics():
                return self.discriminator(samples).squeeze(1)
        if self.on_features:
            return self.discriminator(samples).squeeze(1)
        with self.trunk.keeping_statistics():
            features = self.trunk.features(samples)
        return self.discriminator(features).squeeze(1)
