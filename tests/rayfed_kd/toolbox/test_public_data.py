"""A round's public samples and what is said of them: the same everywhere, and never mixed up."""

import pytest
import torch
from contexts import client_context
from small_recipes import THREE_CLIENTS

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.toolbox.public_data import PublicOptions, drawn_seed, values_by_id

RECIPE = {**THREE_CLIENTS, "partition": {"name": "iid", "clients": 3, "public": {"count": 30}}}


def server(round_index=1):
    return prepare(RECIPE).setting.server_context(round_index)


def client():
    return client_context(prepare(RECIPE).setting, DispatchFacts(1, 3, 2))


def test_server_and_clients_choose_the_same_samples_from_a_seed():
    options = PublicOptions(public_samples=7)
    chosen = [options.ids(5, ctx).tolist() for ctx in (server(), server(9), client())]
    assert chosen[0] == chosen[1] == chosen[2] != options.ids(6, client()).tolist()
    assert len(set(chosen[0])) == 7
    assert set(chosen[0]) <= set(range(30))


def test_without_a_number_all_are_chosen_whatever_the_seed():
    assert PublicOptions().ids(5, client()).tolist() == list(range(30))


def test_seeds_differ_from_round_to_round_and_repeat():
    assert drawn_seed(server(1)) == drawn_seed(server(1)) != drawn_seed(server(2))


def test_every_sample_comes_with_its_own_row_once_an_epoch():
    ctx, ids = client(), torch.tensor([21, 4, 9, 0, 28])
    images = {number: ctx.public.images(torch.tensor([number]))[0] for number in ids.tolist()}
    values, orders = values_by_id(ids, ids.float()[:, None] * 10, ctx), []
    for epoch in (0, 1):
        seen = []
        for chosen, shown in ctx.public.epoch(epoch, 2, ids):
            for image, row in zip(shown, values[chosen], strict=True):
                assert torch.equal(image, images[int(row) // 10])
                seen.append(int(row) // 10)
        assert sorted(seen) == sorted(ids.tolist())
        orders.append(seen)
    assert orders[0] != orders[1]


def test_more_samples_than_there_are_are_refused():
    PublicOptions(public_samples=30).check_public(server())
    with pytest.raises(RecipeError, match=r"method\.public_samples = 31: there are 30 in all"):
        PublicOptions(public_samples=31).check_public(server())


@pytest.mark.parametrize("method", ["cronus", "dsfl", "fedmd"])
def test_methods_that_choose_samples_check_their_number_before_the_first_round(method):
    with pytest.raises(RecipeError, match=r"method\.public_samples = 31: there are 30 in all"):
        prepare({**RECIPE, "method": {"name": method, "public_samples": 31}})
