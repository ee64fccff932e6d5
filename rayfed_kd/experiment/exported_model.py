"""A model that stands alone: its weights, what it is built from, and how images become its input.

model = rayfed_kd.load("best.safetensors")
logits = model(images)       # uint8 pixels, or floats in [0, 1]: [n, channels, height, width]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from rayfed_kd.data.batches import PixelScale, normalise
from rayfed_kd.errors import DataError, RecipeError, shortened
from rayfed_kd.recipe.registry import LOCATION, OF_PACKAGES
from rayfed_kd.recipe.sample_shapes import Shape, TextShape, shape_of
from rayfed_kd.recipe.strict import Closed, Named
from rayfed_kd.setting.code_identity import texts
from rayfed_kd.setting.modules.architectures import REGISTRIES
from rayfed_kd.setting.modules.module_checks import check_module_size, checked_module

DESCRIPTION = "rayfed_kd"  # the key of a safetensors file's metadata under which a description stands
UNIT = 1 + 1e-6  # floats that were resized may lie beyond 1 by their last bits


class ArchitectureName(Closed):
    """What makes a module: a registered name or package.module:Object, and the options given."""

    kind: Literal["classifier", "head"]
    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class ModelDescription(Closed):
    """All that is needed to build a model and to feed it; a safetensors file holds it as JSON.

    Attributes:
        weights: whose they are, as `oca, round 10`.
        architecture: what makes the module.
        input_shape: of one input: (channels, height, width) of images.
        outputs: the number of logits.
        class_names: one per class of the data.
        pixels: whether inputs are images; else they are features, which are used as they are.
        mean, std: per channel, of pixels in [0, 1]; they normalise images.
        sample: what text and rows with categories say beside their shape; empty of images and numbers.
    """

    weights: str
    architecture: ArchitectureName
    input_shape: tuple[int, ...] = Field(min_length=1)
    outputs: int = Field(ge=1)
    class_names: tuple[str, ...]
    pixels: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sample: dict[str, Any] = Field(default_factory=dict)

    def metadata(self) -> dict[str, str]:
        """What a file says of the model."""
        return {"format": "pt", DESCRIPTION: self.model_dump_json()}

    @property
    def shape(self) -> Shape:
        """Of one input, as models are built for it."""
        return shape_of(self.input_shape, self.sample)


class ExportedModel(nn.Module):
    """A trained module behind its preprocessing: images in, logits out.

    Args:
        module: takes normalised inputs, [n, *input_shape] float32.
        description: what it is.

    Attributes:
        module: the same; a `Classifier` of ours has `features` and `classify`.
        description: the same.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, description: ModelDescription) -> None:
        super().__init__()
        self.module, self.description = module, description
        self.register_buffer("mean", torch.tensor(description.mean), persistent=False)
        self.register_buffer("std", torch.tensor(description.std), persistent=False)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names, in the order of the logits."""
        return self.description.class_names

    def forward(self, images: Tensor) -> Tensor:
        """Logits, [n, outputs] float32.

        Args:
            images: [n, channels, height, width], uint8 in [0, 255] or floats in [0, 1], not normalised. Of a
                model that takes features: [n, ...] floats, used as they are. Of text: [n, length] token
                numbers of any whole type, as the data source makes them.

        Raises:
            TypeError: no tensor, or of a type that is neither uint8 nor floating point.
            ValueError: another shape, floats outside of [0, 1], or tokens beyond the vocabulary.
        """
        logits: Tensor = self.module(self.normalised(images))
        return logits

    def normalised(self, images: Tensor) -> Tensor:
        """The module's input, [n, *input_shape] float32, after the checks that `forward` names."""
        shape, pixels = self.description.input_shape, self.description.pixels
        if not isinstance(images, Tensor):
            raise TypeError(f"expected a torch.Tensor, got {type(images).__name__}")
        if tuple(images.shape[1:]) != shape:
            sides = ", ".join(map(str, shape))
            raise ValueError(f"expected a batch of shape [n, {sides}], got {list(images.shape)}")
        if isinstance(self.description.shape, TextShape):
            return _tokens(images, self.description.shape.vocabulary)
        if images.dtype == torch.uint8 and pixels:
            return normalise(images, self.mean, self.std)  # to the same bits as in the run
        if not images.is_floating_point():
            wanted = "uint8 in [0, 255] or floats in [0, 1]" if pixels else "floats"
            raise TypeError(f"expected {wanted}, got {images.dtype}")
        if not pixels:
            return images.to(torch.float32)
        if images.numel() and not (float(images.min()) >= 0 and float(images.max()) <= UNIT):
            raise ValueError(
                f"expected floats in [0, 1], got {float(images.min()):.4g} to {float(images.max()):.4g}; "
                "images are normalised here, so pass pixels as they are: uint8, or divided by 255"
            )
        return self.scaled(images.to(torch.float32))

    def scaled(self, images: Tensor) -> Tensor:
        """Float32 images in [0, 1] -> the module's input; nothing is checked."""
        return PixelScale(self.mean, self.std).normalise(images)


def _tokens(tokens: Tensor, vocabulary: int) -> Tensor:
    """Token numbers as int64."""
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise TypeError(f"expected token numbers of a whole type, got {tokens.dtype}")
    if tokens.numel() and not (int(tokens.min()) >= 0 and int(tokens.max()) < vocabulary):
        raise ValueError(
            f"expected tokens from 0 to {vocabulary - 1}, got {int(tokens.min())} to {int(tokens.max())}"
        )
    return tokens.to(torch.int64)


class Unchecked(nn.Module):
    """An exported model without the checks of its input, which no graph of operations can hold.

    Args:
        model: its weights are shared. Images are float32 in [0, 1].
    """

    def __init__(self, model: ExportedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Logits, [n, outputs] float32."""
        pixels = self.model.description.pixels
        logits: Tensor = self.model.module(self.model.scaled(images) if pixels else images)
        return logits


def described_model(
    description: ModelDescription, state: Mapping[str, Tensor], module: nn.Module | None = None
) -> ExportedModel:
    """A model with its weights, in eval mode.

    Args:
        description: what it is.
        state: the module's state_dict.
        module: takes the weights; None: made as the description says.

    Raises:
        DataError: the weights are not the module's.
    """
    named, path = description.architecture, "architecture"
    if module is None:
        bound = REGISTRIES[named.kind].bound(Named(name=named.name, **named.options), path)
        module = _made(bound.found, description, bound.arguments)
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        message = shortened(" ".join(str(error).split()), 300)
        raise DataError(f"the weights do not fit {named.name}: {message}") from None
    return ExportedModel(module, description).eval()


def load(
    path: str | Path, *, architecture: Callable[..., nn.Module] | nn.Module | None = None
) -> ExportedModel:
    """Load a model that `export` wrote. No code that the file names is imported.

    Args:
        path: the .safetensors file; nothing else is read.
        architecture: what makes the module, called as (shape, classes, **options), or a module that takes the
            weights. It is needed where the architecture is a user's own, as my_models:small_cnn.

    Returns: a module in eval mode, on the CPU: images in, logits out.

    Raises:
        DataError: there is no such file, or `export` did not write it.
        RecipeError: the architecture is a user's own, and is not given.
    """
    description, state = _read(Path(path).expanduser())
    named = description.architecture
    if architecture is not None and not isinstance(architecture, nn.Module):
        architecture = _made(architecture, description, named.options)
    own = (text for text in texts(named.model_dump()) if text.partition(":")[0] not in OF_PACKAGES)
    if architecture is None and (name := next(filter(LOCATION.fullmatch, own), None)):
        raise RecipeError(
            f"{path}: the model was made by {shortened(name)}, which is code that this file does not "
            f"hold; expected the object itself, as architecture={shortened(named.name.rpartition(':')[2])}"
        )
    return described_model(description, state, architecture)


def _read(path: Path) -> tuple[ModelDescription, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a .safetensors file that `rayfed_kd.export` wrote")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is no safetensors file, or damaged: {error}") from None
    if DESCRIPTION not in metadata:
        raise DataError(
            f"{path} does not say what its weights are of; `rayfed_kd.export` of this version writes it so"
        )
    try:
        return ModelDescription.model_validate_json(metadata[DESCRIPTION]), state
    except ValidationError as error:
        raise DataError(f"{path} is damaged: {shortened(' '.join(str(error).split()), 300)}") from None


def _made(
    make: Callable[..., nn.Module], description: ModelDescription, options: Mapping[str, Any]
) -> nn.Module:
    shape, path = description.shape, "architecture"
    check_module_size(lambda: make(shape, description.outputs, **options), path)
    # Layers draw initial values from torch's global generator: it must be afterwards as it was.
    with torch.random.fork_rng(devices=[]):
        return checked_module(make(shape, description.outputs, **options), path)
