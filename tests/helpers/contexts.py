"""Contexts of a setting, for steps that a test calls itself."""

import torch

from rayfed_kd.protocol import ClientContext, ClientData, ServerContext


def server_context(setting, round_index=1):
    """What the server's part of a round may read."""
    facts, seed = setting.server_facts(round_index), setting.recipe.seed
    return ServerContext(setting.module_pool(), setting.device_data(), facts, seed)


def client_context(setting, facts):
    """What a client's step may read, by its `DispatchFacts`."""
    recipe, client = setting.recipe, facts.client
    indices, model = setting.partition.train[client], setting.model_of(client)
    share = ClientData(indices, recipe.data.augment, setting.local_in(facts.round), model)
    return ClientContext(setting.module_pool(), setting.device_data(), share, facts, recipe.seed)


def running_statistics(flat, vector):
    """A vector's running means and variances, without BatchNorm's counters, which are rounded."""
    return torch.cat([tensor.flatten() for tensor in flat.tensors(vector)[len(flat.parameters()) :]])
