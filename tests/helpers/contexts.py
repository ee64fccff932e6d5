"""Contexts of a setting, for steps that a test calls itself."""

import torch

from rayfed_kd.models.vectors import weighted_mean
from rayfed_kd.protocol import ClientContext, ClientData


def client_context(setting, facts):
    """What a client's step may read, by its `DispatchFacts`."""
    recipe, client = setting.recipe, facts.client
    indices, model = setting.partition.train[client], setting.architectures.of_client(client)
    share = ClientData(indices, recipe.data.augment, recipe.local.in_round(facts.round, recipe.rounds), model)
    return ClientContext(setting.module_pool(), setting.device_data(), share, facts, recipe.seed)


def running_statistics(flat, vector):
    """A vector's running means and variances."""
    return vector[flat.num_parameters :]


def assert_statistics_moved(flat, after, before, moved):
    """Whether the running statistics of two vectors of a module differ."""
    apart = [running_statistics(flat, vector) for vector in (after, before)]
    assert (not torch.equal(*apart)) == moved


def assert_distillation_moves(table, statistics):
    """A server that distils two clients' replies leaves their mean, and its statistics too if `statistics`.

    Args:
        table: a method's steps by hand, with a model that has BatchNorm.
        statistics: whether the running statistics are to differ from those of the mean.
    """
    server, replies = table.first_exchange(0, 1)
    after = table.method.absorb(server, replies, table.server())
    mean = weighted_mean(replies.vectors("student"), replies.numbers("samples"))
    flat = table.server().frozen_model(mean)
    assert_statistics_moved(flat, after.weights, mean, statistics)
    assert not torch.equal(after.weights[: flat.num_parameters], mean[: flat.num_parameters])
