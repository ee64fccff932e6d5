"""Which vectors a method may send: those of its architectures, and first and last layers of its models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.models.vectors import Layout
from rayfed_kd.toolbox.layers import Layers


def vector_layouts(module_pool: ModulePool, names: Iterable[str]) -> Mapping[int, Layout]:
    """Length of a vector -> its tensors.

    Of two vectors of one length the whole model's counts, else the first: server and clients take the same
    one, so that a wrong one only makes scales less fitting.

    Args:
        module_pool: of all architectures.
        names: of the architectures; the recipe's model first.
    """
    modules = [module_pool.lend(name, module_pool.initial_vector(name)) for name in names]
    layouts: dict[int, Layout] = {}
    for layout in (
        *(module.layout for module in modules),
        *(part for one in modules for part in _parts(one)),
    ):
        layouts.setdefault(layout.size, layout)
    module_pool.take_back()
    return layouts


def vector_borders(module_pool: ModulePool, names: Iterable[str]) -> Mapping[int, int]:
    """Length of an architecture's vector -> how many of its first elements are parameters.

    Args:
        module_pool, names: as above.
    """
    parameters: dict[int, int] = {}
    for name in names:
        flat = module_pool.lend(name, module_pool.initial_vector(name))
        length = flat.num_elements
        # Of architectures of one length: what is a buffer in one of them is taken as a buffer in all.
        parameters[length] = min(flat.num_parameters, parameters.get(length, length))
    module_pool.take_back()
    return parameters


def _parts(module: FlatModule) -> Iterator[Layout]:
    """The layouts of a classifier's first layers and of its last ones, for every border between them."""
    with suppress(RecipeError):  # no layers, or not in the vector's order: no method sends some of them
        layers = Layers(module)
        for border in range(1, len(layers)):
            yield module.layout.within(layers.places(0, border))
            yield module.layout.within(layers.places(border, len(layers)))
