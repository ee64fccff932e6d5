"""Partitions written down by hand, or drawn by a scheme."""

from rayfed_kd.data.client_parts import ClientParts
from rayfed_kd.data.partition import Partition
from rayfed_kd.data.partition import make_partition as made
from rayfed_kd.recipe.sections.data import PartitionRecipe


def partition_of(train, test, origin=None):
    """A partition from an array of indices per client, each; without a public set."""
    return Partition(ClientParts.of(train), ClientParts.of(test), origin or {})


def make_partition(pool, clients, name, options, stream, **frame):
    """A partition that a scheme draws with these options; `frame`: other keys of the recipe's `partition`."""
    return made(pool, PartitionRecipe(name=name, clients=clients, **options, **frame), stream)
