"""A server's model as an option: larger than its clients' and of an architecture of its own."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from rayfed_kd.protocol import Architecture


class ServerModel(BaseModel):
    """The server's model: a registered classifier and its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field("bottleneck_resnet", description="a registered classifier or package.module:Object")

    def architecture(self, cut: str | None = None) -> Architecture:
        """What contexts make as "server"; without options ResNet-56, or what of it is behind its stem.

        `cut`: it takes not images but the output of this layer of the clients' models.
        """
        options = dict(self.model_extra or {})
        if self.name == "bottleneck_resnet":
            stem = {} if cut is None else {"stem": False}
            # Three stages of 6 blocks of 3 convolutions, a stem and a classifier: 56 layers.
            options = {"blocks": [6, 6, 6], **stem, **options}
        return Architecture("classifier", self.name, options, cut=cut)
