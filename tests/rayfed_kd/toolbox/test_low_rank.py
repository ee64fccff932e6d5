"""Vectors as factors: ranks by hand, what is sent, how far it is from the vector, copies that stay equal."""

import pytest
import torch
from torch import nn

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.toolbox.low_rank import (
    AS_IT_IS,
    LowRank,
    MatrixPlace,
    Replica,
    Replicated,
    from_low_rank,
    matrix_places,
    needed_rank,
    to_low_rank,
)

SIGMA = torch.tensor([3.0, 2.0, 1.0])


def flat():
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 20)]
    return FlatModule(nn.Sequential(*layers))


@pytest.mark.parametrize(
    ("energy", "rank"), [(0.0, 1), (0.6, 1), (0.9, 2), (0.95, 3), (9 / 14, 2), (13 / 14, 3), (1.0, 3)]
)
def test_rank_of_three_two_one_by_hand(energy, rank):
    """Squares 9, 4, 1: shares 9/14, 13/14, 1. Above T, not equal; the released code sends zeros at 0.95."""
    assert needed_rank(SIGMA, energy) == rank


def test_zeros_have_rank_zero():
    assert needed_rank(torch.zeros(3), 0.5) == 0
    sent = to_low_rank(torch.zeros(6), [MatrixPlace(0, 6, 2)], 0.5)
    assert (sent.numbers.numel(), sent.ranks.tolist()) == (0, [0])
    assert torch.equal(from_low_rank(sent, [MatrixPlace(0, 6, 2)]), torch.zeros(6))


def test_matrices_are_weights_of_layers_by_their_outputs():
    assert matrix_places(flat()) == (MatrixPlace(0, 144, 8), MatrixPlace(168, 808, 20))


def test_matrix_of_rank_one_travels_as_its_factors_and_comes_back():
    """5 x 6: 1 (5 + 6 + 1) = 12 numbers for 30; what lies around it travels as it is."""
    matrix = torch.arange(1.0, 6)[:, None] * torch.arange(2.0, 8)
    vector = torch.cat([torch.tensor([7.0]), matrix.flatten(), torch.tensor([8.0, 9.0])])
    place = [MatrixPlace(1, 31, 5)]
    sent = to_low_rank(vector, place, 0.9)
    assert (sent.numbers.numel(), sent.ranks.tolist()) == (15, [1])
    torch.testing.assert_close(from_low_rank(sent, place), vector)


@pytest.mark.parametrize(("energy", "rank"), [(0.6, 1), (0.8, 2), (1.0, AS_IT_IS)])
def test_factors_are_sent_only_where_they_are_fewer_numbers(energy, rank):
    """diag(3, 2, 1) in 8 x 8: K 2 has 34 numbers for 64, all 8 more; in 3 x 3 K 1 has 7 for 9, K 2 14."""
    wide = torch.zeros(8, 8)
    wide[range(3), range(3)] = SIGMA
    expected = AS_IT_IS if energy == 1 else rank
    assert to_low_rank(wide.flatten(), [MatrixPlace(0, 64, 8)], energy).ranks.tolist() == [expected]
    small = to_low_rank(torch.diag(SIGMA).flatten(), [MatrixPlace(0, 9, 3)], energy)
    assert small.ranks.tolist() == ([1] if rank == 1 else [AS_IT_IS])
    assert small.numbers.numel() == (7 if rank == 1 else 9)


@pytest.mark.parametrize("energy", [0.3, 0.7, 0.95])
def test_error_is_the_energy_that_was_left_out(energy):
    module = flat()
    vector, places = module.vector(), matrix_places(module)
    back = from_low_rank(to_low_rank(vector, places, energy), places)
    for place in places:
        own, error = vector[place.start : place.stop], (vector - back)[place.start : place.stop]
        singular = torch.linalg.svdvals(own.view(place.rows, -1))
        rank = needed_rank(singular, energy)
        assert float(error.square().sum()) <= (1 - energy) * float(own.square().sum())
        if rank * (place.rows + own.numel() // place.rows + 1) < own.numel():
            torch.testing.assert_close(error.square().sum(), singular[rank:].square().sum())
    rest = torch.ones_like(vector, dtype=torch.bool)
    for place in places:
        rest[place.start : place.stop] = False
    assert torch.equal(vector[rest], back[rest])


def test_all_energy_is_the_vector_itself_to_the_bit():
    module = flat()
    places = matrix_places(module)
    sent = to_low_rank(module.vector(), places, 1.0)
    assert sent.ranks.tolist() == [AS_IT_IS, AS_IT_IS]
    assert torch.equal(from_low_rank(sent, places), module.vector())


def test_what_is_not_finite_travels_as_it_is():
    sent = to_low_rank(torch.full((9,), torch.nan), [MatrixPlace(0, 9, 3)], 0.5)
    assert sent.ranks.tolist() == [AS_IT_IS]
    assert sent.numbers.isnan().all()


def test_copies_follow_the_server_to_the_bit():
    """A client with the version before adds the update; who is new or missed more gets the vector."""
    module = flat()
    places, start = matrix_places(module), module.vector()
    server = Replicated(start, 0, None, {})
    copies = dict.fromkeys(range(3), Replica(torch.empty(0)))
    torch.manual_seed(1)
    for round_index, clients in enumerate([(0, 1), (0,), (0, 1, 2)]):
        messages = {client: server.message(client, energy=0.5) for client in clients}
        for client in clients:
            copies[client] = copies[client].brought_up(messages[client], places)
            assert torch.equal(copies[client].vector, server.vector)
        if round_index == 2:
            assert {client: set(message.parts) for client, message in messages.items()} == {
                0: {"mean", "mean_ranks"},
                1: {"whole"},
                2: {"whole"},
            }
        again = copies[clients[0]].brought_up(messages[clients[0]], places)
        assert torch.equal(again.vector, server.vector)
        changes = {client: to_low_rank(torch.randn_like(start), places, 0.5) for client in clients}
        server = server.updated(changes, [1.0] * len(clients), places, 0.5)
    assert server.version == 3


def test_nothing_travels_to_a_client_that_has_the_newest():
    server = Replicated(torch.ones(3), 2, LowRank(torch.ones(3), torch.zeros(0)), {4: 2})
    assert set(server.message(4).parts) == set()
    assert set(server.message(5).parts) == {"whole"}
