"""What a step may read: data, randomness and modules, all through its context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor

from rayfed_kd.data.augment import augment, check_augmentation
from rayfed_kd.data.batches import Batch, DeviceData, Drawn, PixelScale, Public, unaugmented
from rayfed_kd.data.transfers import moved
from rayfed_kd.errors import MisuseError
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.protocol.context_facts import ClientData, DispatchFacts, Log, ServerFacts
from rayfed_kd.recipe.sections.local_training import LocalRecipe
from rayfed_kd.recipe.seeds import numpy_stream, torch_stream


class Context:
    """What server and client contexts share."""

    local: LocalRecipe
    _autocast: torch.dtype | None = None
    group_runner: Callable[[Any], None] | None = None

    def __init__(
        self, module_pool: ModulePool, data: DeviceData, seed: int, scope: tuple[str | int, ...]
    ) -> None:
        self._module_pool, self._data, self._seed, self._scope = module_pool, data, seed, scope
        self._streams: dict[str, torch.Generator] = {}
        self._log = Log()
        self.device = module_pool.device
        self.classes = data.classes
        self.shape = data.shape

    @property
    def public(self) -> Public:
        """The public samples.

        Raises: MisuseError if the recipe has none; a method that needs them says so (`Method.public`).
        """
        share = self._data.public
        if share is None:
            raise MisuseError("no partition.public: a method that needs it says so, as public = 'samples'")
        order = partial(numpy_stream, self._seed, "public batches", *self._scope)
        return Public(self._data, share, order, self.count_drawn, self.in_batches)

    def in_batches(
        self, items: Tensor, size: int | None = None, *, every: bool = False
    ) -> tuple[Tensor, ...]:
        """Items in the batches of a training pass, as `local.last_batch` says.

        Args:
            items: [n, ...], in the pass's order: samples, or their indices.
            size: of a batch; None: the recipe's.
            every: none is left out, as where a pass does not train.
        """
        if every:
            return torch.split(items, size or self.local.batch_size)
        sizes = self.local.batch_sizes(len(items), size)
        return torch.split(items[: sum(sizes)], sizes)

    def read(self, drawn: Drawn) -> Batch:
        """The images and labels of a batch that was drawn."""
        images, labels = self._data.gather(drawn.indices)
        images = drawn.augmented(images)
        self.count_drawn(len(labels))
        return Batch(self._data.normalise(images), labels)

    def count_drawn(self, samples: int) -> None:
        """Told of every batch's size; the server's batches take no simulated time."""

    def architecture(self, name: str) -> str:
        """The module pool's name of an architecture: a client with a model of its own has another "model"."""
        return name

    def model(self, vector: Tensor, architecture: str = "model") -> FlatModule:
        """A module to train that holds `vector`; a new one at each call, lent for this step."""
        name = self.architecture(architecture)
        return self._module_pool.lend(name, vector, self._autocast).train()

    def frozen_model(self, vector: Tensor, architecture: str = "model") -> FlatModule:
        """The same in eval mode, its parameters without gradient: a teacher."""
        return self._module_pool.lend(self.architecture(architecture), vector, self._autocast).freeze()

    def initial_vector(self, architecture: str = "model") -> Tensor:
        """The architecture's initial vector: a function of the run's seed alone."""
        return self._module_pool.initial_vector(self.architecture(architecture))

    def stream(self, purpose: str) -> torch.Generator:
        """This step's random stream for `purpose`, on the step's device; draws go on where they were."""
        if purpose not in self._streams:
            self._streams[purpose] = torch_stream(self._seed, purpose, *self._scope, device=self.device)
        return self._streams[purpose]

    def normalise(self, images: Tensor) -> Tensor:
        """Generated images in [0, 1], [batch, c, h, w], as the model sees real ones; gradients pass."""
        return self.scale.normalise(images)

    def augmented(self, images: Tensor, name: str) -> Tensor:
        """Images, [batch, c, h, w], as `data.augment` of that name would draw them; gradients pass.

        Raises: RecipeError if they are too small for it.
        """
        check_augmentation(name, self.shape, "method.augment")
        return augment(images, name, self.stream("augmentation"))

    @property
    def scale(self) -> PixelScale:
        """What `normalise` does, as tensors: for losses that see no context."""
        return self._data.scale

    def pixels(self, images: Tensor) -> Tensor:
        """The reverse, for people: images as the model sees them, in [0, 1]; beyond it they are cut."""
        return self._data.pixels(images)

    def log(self, **values: Tensor | float) -> None:
        """Logs scalars; tables show their means over the round."""
        self._log.add(**values)

    def log_sums(self, sums: Mapping[str, tuple[float, int]]) -> None:
        """Logs many batches' values at once, name -> (sum, count)."""
        self._log.add_sums(sums)

    def logged(self) -> dict[str, tuple[float, int]]:
        """name -> (sum, count) of what was logged."""
        return self._log.totals()


class ClientContext(Context):
    """What a client's step may read.

    Attributes:
        client: the client's id, 0 ... K - 1.
        round: the server's round, from 1.
        participation: how often this client was sampled so far, this time included.
        local: epochs, batch size and optimiser of the recipe.
        num_samples: the client's training samples.
        device, classes, shape: of the models and images.
        samples_drawn: samples in the batches drawn so far, private and public: what simulated time is for.
        group_runner: the runner that trains a group of clients as one batch; None trains this client alone.
    """

    def __init__(
        self,
        module_pool: ModulePool,
        data: DeviceData,
        client_data: ClientData,
        dispatch: DispatchFacts,
        seed: int,
    ) -> None:
        super().__init__(module_pool, data, seed, dispatch.scope)
        self.client, self.round, self.participation = dispatch.client, dispatch.round, dispatch.participation
        self.local = client_data.local.of_client(len(client_data.indices))
        self._autocast = torch.bfloat16 if self.local.precision == "bf16" else None
        self._client_data = client_data
        self.num_samples = len(client_data.indices)
        self.samples_drawn = 0

    def compute_exactly(self) -> None:
        """From now on models compute in float32, whatever `local` says: for evaluations."""
        self._autocast = None

    def architecture(self, name: str) -> str:
        """The module pool's name: "model" is the client's own, where the recipe has `client_models`."""
        return self._client_data.model if name == "model" else name

    def own_initial_vector(self, architecture: str = "model") -> Tensor:
        """An initial vector that no other client has: for personal models, which are never averaged."""
        return self._module_pool.own_initial_vector(self.architecture(architecture), self.client)

    def count_drawn(self, samples: int) -> None:
        """Counts samples, also those whose batches were gathered elsewhere, or drawn and left out."""
        self.samples_drawn += samples

    def epoch(self, index: int, *, every: bool = False) -> Iterator[Batch]:
        """One pass over the client's samples in this epoch's own order, as `batches` gives them."""
        for drawn in self.batches(index, every=every):
            yield self.read(drawn)

    def local_batches(self, steps: int | None = None) -> Iterator[Drawn]:
        """The batches of local training, pass after pass, in order.

        Args:
            steps: how many; None: `local.steps`, or those of `local.epochs` passes.
        """
        if steps is None:
            steps = self.local.steps_of(self.num_samples)
        every = chain.from_iterable(map(self.batches, count()))
        # A client without samples has no batch in any pass.
        return islice(every, steps if self.num_samples else 0)

    @property
    def passes(self) -> int:
        """How many passes over the client's samples local training begins: E, if it is a whole number."""
        return self.local.passes_of(self.num_samples)

    def batches(self, index: int, *, every: bool = False) -> Iterator[Drawn]:
        """What that pass's batches are made of, in order; for those who gather many clients' at once.

        Args:
            index: the pass's number.
            every: no sample is left out, also where `local.last_batch` drops some in training.
        """
        # Drawn by numpy on the CPU: a client's batches are the same on every device.
        order = numpy_stream(self._seed, "batches", *self._scope, index).permutation(self.num_samples)
        chosen = moved(torch.from_numpy(self._client_data.indices[order]), self._data.place)
        numbers = moved(torch.from_numpy(order), self.device)
        augmented = self._augmentation(index)
        parts = (self.in_batches(places, every=every) for places in (numbers, chosen))
        for which, indices in zip(*parts, strict=True):
            yield Drawn(which, indices, augmented)

    def _augmentation(self, index: int) -> Callable[[Tensor], Tensor]:
        """That pass's augmentation; its draws go on from batch to batch."""
        name = self._client_data.augment
        if name == "none":
            return unaugmented
        # A stream for each epoch: its draws do not depend on which epochs were read before.
        flips = torch_stream(self._seed, "augment", *self._scope, index, device=self.device)
        return lambda images: augment(images, name, flips)

    def gathered(self, drawn: Sequence[Drawn]) -> Batch:
        """Batches of one size, of any clients: images [n, batch, ...], normalised, labels [n, batch]."""
        indices = torch.stack([batch.indices for batch in drawn])
        images, labels = self._data.gather(indices.flatten())
        if drawn[0].augmented is not unaugmented:
            # Part by part, because each client's augmentation draws from its own stream.
            parts = torch.split(images, len(drawn[0].indices))
            images = torch.cat([batch.augmented(part) for batch, part in zip(drawn, parts, strict=True)])
        images = self._data.normalise(images)
        return Batch(images.view(*indices.shape, *images.shape[1:]), labels.view(indices.shape))

    def samples(self) -> Iterator[Batch]:
        """The client's samples in their own order, 0 to num_samples - 1, not augmented, batch by batch."""
        chosen = moved(torch.from_numpy(self._client_data.indices), self._data.place)
        for indices in torch.split(chosen, self.local.batch_size):
            images, labels = self._data.gather(indices)
            self.count_drawn(len(labels))
            yield Batch(self._data.normalise(images), labels)

    def label_counts(self) -> Tensor:
        """How many of the client's samples are of each class, [classes] float32."""
        indices = torch.from_numpy(self._client_data.indices)
        counts = torch.bincount(self._data.labels(indices), minlength=self.classes)
        return counts.to(torch.float32)


class ServerContext(Context):
    """What the server's part of a round may read.

    Attributes:
        round: from 1; 0 before the first.
        asked_rounds: whether `rounds` was asked for: what the round did may depend on it.
        sizes: [K] training samples of every client.
        local: epochs, batch size and optimiser of the recipe.
        client_models: [K] what `model` and `initial_vector` call each client's own architecture.
        client_architectures: the same, each architecture once.
    """

    def __init__(self, module_pool: ModulePool, data: DeviceData, facts: ServerFacts, seed: int) -> None:
        super().__init__(module_pool, data, seed, ("server", facts.round))
        self.round, self.sizes, self.local = facts.round, facts.sizes, facts.local
        self._rounds, self.asked_rounds = facts.rounds, False
        self.client_models = facts.models
        self.client_architectures = tuple(dict.fromkeys(facts.models))

    @property
    def rounds(self) -> int:
        """How many rounds the recipe has. A run whose method asks for it cannot be extended."""
        self.asked_rounds = True
        return self._rounds

    def initial_vector(self, architecture: str = "model") -> Tensor:
        """As everywhere, but on the CPU: vectors of a server's state lie there, modules on its device."""
        return super().initial_vector(architecture).cpu()

    def redrawn_vector(self, draw: int, architecture: str = "model") -> Tensor:
        """An initial vector of this round alone, another for every number `draw`: for a fresh start."""
        return self._module_pool.own_initial_vector(architecture, "server", self.round, draw)

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.sizes)
