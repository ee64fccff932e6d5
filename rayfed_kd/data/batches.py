"""The decoded data on a device: samples as batches, and the public set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rayfed_kd.data.dataset import Dataset, Split
from rayfed_kd.data.transfers import moved
from rayfed_kd.errors import RunError


class Batch(NamedTuple):
    """images [batch, ...] float32, normalised; labels [batch] int64."""

    images: Tensor
    labels: Tensor


class PixelScale(NamedTuple):
    """How a data set's pixels are normalised: mean and standard deviation of each channel, [c] each."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> PixelScale:
        """That among the tensors that a loss is given."""
        return cls(tensors["mean"], tensors["std"])

    def normalise(self, images: Tensor) -> Tensor:
        """Images in [0, 1], [batch, c, h, w], as the model sees them; gradients pass."""
        shape = (1, -1, *([1] * (images.dim() - 2)))
        return (images - self.mean.view(shape)) / self.std.view(shape)


class DeviceData:
    """A data set for one device: images stay as they are stored and are normalised batch by batch.

    Args:
        dataset: memory-mapped, so that on the CPU hosts of one machine share its pages.
        device: where batches are wanted.
        public: which of the training samples everybody has.
        streamed: samples stay in the machine's memory, and each batch is copied to the device; otherwise
            the device has them all.
    Attributes:
        place: where the samples lie, and indices of them should.
    """

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device | str = "cpu",
        public: PublicShare | None = None,
        *,
        streamed: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.place = torch.device("cpu") if streamed else self.device
        self.public = public
        self.classes = dataset.classes
        self.shape = dataset.shape
        self.scale = PixelScale(
            torch.tensor(dataset.mean, dtype=torch.float32, device=self.device),
            torch.tensor(dataset.std, dtype=torch.float32, device=self.device),
        )
        self._train = self._to_place(dataset.train)
        self._test = None if dataset.test is None else self._to_place(dataset.test)

    def gather(self, indices: Tensor, split: str = "train") -> Batch:
        """Samples as they are stored, not normalised.

        Args:
            indices: [n] int64, at `place`; elsewhere they are copied there first.
            split: "train", or "test" for the official test set.
        Returns: images [n, ...] and labels [n] int64.
        Raises: ValueError if there is no official test set.
        """
        stored = self._train if split == "train" else self._test
        if stored is None:
            raise ValueError("this data set has no official test set")
        images, labels = stored
        places = moved(indices, self.place)
        return Batch(self._sent(images, places), self._sent(labels, places))

    def labels(self, indices: Tensor) -> Tensor:
        """The training samples' classes, [n] int64."""
        return self._sent(self._train[1], moved(indices, self.place))

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 pixels as the model sees them; float features as they are."""
        return normalise(images, *self.scale)

    def pixels(self, images: Tensor) -> Tensor:
        """Images as the model sees them, in [0, 1]."""
        shape = (1, -1, *([1] * (images.dim() - 2)))
        return (images * self.scale.std.view(shape) + self.scale.mean.view(shape)).clamp(0, 1)

    def _sent(self, stored: Tensor, places: Tensor) -> Tensor:
        """Samples on the device."""
        if self.place == self.device:
            return stored[places]
        if self.device.type != "cuda":
            return moved(stored[places], self.device)
        # Pinned, so that the GPU fetches them while it computes; torch does not lend this memory again
        # before the copy is done.
        batch = torch.empty((len(places), *stored.shape[1:]), dtype=stored.dtype, pin_memory=True)
        torch.index_select(stored, 0, places, out=batch)
        return moved(batch, self.device, non_blocking=True)

    def _to_place(self, split: Split) -> tuple[Tensor, Tensor]:
        # Copy-on-write pages: torch wants writable memory, and nobody here writes.
        images = torch.from_numpy(np.asarray(split.images)).to(self.place)
        labels = torch.from_numpy(np.asarray(split.labels)).to(self.place)
        return images, labels


@dataclass(frozen=True)
class PublicShare:
    """The public set: indices [n] int64 of training samples, ascending; whether their labels are known."""

    indices: np.ndarray[tuple[int], np.dtype[np.int64]]
    labelled: bool


class PublicBatch(NamedTuple):
    """ids [batch] int64 of public samples, and their images, normalised, as they are: not augmented."""

    ids: Tensor
    images: Tensor


class Public:
    """The public samples, each by its id, 0 to len - 1: the same for the server and every client.

    Args:
        data: on the step's device.
        share: which samples, and whether their labels are known.
        order: epoch -> the stream that its order is drawn from.
        drawn: told of every batch's size.
        in_batches: items and the size of a batch -> the batches of a training pass over them.

    Attributes:
        labelled: whether labels are known.
    """

    def __init__(
        self,
        data: DeviceData,
        share: PublicShare,
        order: Callable[[int], np.random.Generator],
        drawn: Callable[[int], None],
        in_batches: Callable[[Tensor, int], Sequence[Tensor]],
    ) -> None:
        self._data, self.labelled, self._order, self._drawn = data, share.labelled, order, drawn
        self._in_batches = in_batches
        self._places = torch.from_numpy(share.indices).to(data.place)

    def __len__(self) -> int:
        return len(self._places)

    def images(self, ids: Tensor, augmented: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """[n] ids -> [n, ...] float32, normalised; `augmented` changes the stored ones before that."""
        stored = self._data.gather(self._places[moved(ids, self._data.place)]).images
        return self._data.normalise(stored if augmented is None else augmented(stored))

    def labels(self, ids: Tensor) -> Tensor:
        """[n] ids -> [n] int64.

        Raises: RunError if the recipe says that they are not known.
        """
        if not self.labelled:
            raise RunError("partition.public.labels is false: public labels are not known")
        return self._data.labels(self._places[moved(ids, self._data.place)])

    @property
    def ids(self) -> Tensor:
        """All of them, [len] int64, ascending."""
        return torch.arange(len(self), device=self._data.device)

    def epoch(self, index: int, batch_size: int, ids: Tensor | None = None) -> Iterator[PublicBatch]:
        """One pass over the public samples, to train on, in an order that is drawn for this epoch.

        Args:
            index: the epoch; each step of a client or of the server has orders of its own.
            batch_size: what becomes of fewer samples at the end `local.last_batch` says.
            ids: [n] int64, which samples; None: all.
        """
        among = self.ids if ids is None else ids
        order = torch.from_numpy(self._order(index).permutation(len(among))).to(self._data.device)
        yield from self._read(self._in_batches(among[order], batch_size))

    def in_order(self, ids: Tensor | None = None, batch_size: int = 256) -> Iterator[PublicBatch]:
        """One pass over the public samples in ascending order of their ids.

        Args:
            ids: [n] int64, which samples, in the order wanted; None: all.
            batch_size: the last batch may be smaller.
        """
        yield from self._read(torch.split(self.ids if ids is None else ids, batch_size))

    def _read(self, batches: Iterable[Tensor]) -> Iterator[PublicBatch]:
        for chosen in batches:
            self._drawn(len(chosen))
            yield PublicBatch(chosen, self.images(chosen))


class Drawn(NamedTuple):
    """A batch before its images are read.

    Attributes:
        numbers: [batch] int64, the samples' places in their client's order.
        indices: [batch] int64, their places in the training set.
        augmented: images as stored -> the same, augmented.
    """

    numbers: Tensor
    indices: Tensor
    augmented: Callable[[Tensor], Tensor]


def unaugmented(images: Tensor) -> Tensor:
    """The augmentation `none`: the images as they are stored."""
    return images


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(pixels / 255 - mean) / std per channel, float32; float features pass as they are.

    Args:
        images: [batch, c, ...], uint8 or float32.
        mean, std: [c], of pixels / 255.
    """
    if images.dtype != torch.uint8:
        return images
    shape = (1, -1, *([1] * (images.dim() - 2)))
    # Mean and deviation are scaled, not the pixels: a pass less. In place, as `to` has made a new tensor.
    return images.to(torch.float32).sub_(mean.view(shape) * 255).div_(std.view(shape) * 255)
