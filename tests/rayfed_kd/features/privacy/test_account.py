"""The clip that follows the norms, by hand, and what a checkpoint keeps."""

import math

import pytest

from rayfed_kd.features.privacy.account import PrivacyAccount
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.recipe.loading import load_recipe


def account(central=True, clients=10, sampling=None, **privacy):
    recipe = load_recipe(
        {
            "method": {"name": "fedavg"},
            "partition": {"name": "iid", "clients": clients},
            "sampling": sampling or {"fraction": 1.0},
            "privacy": {"clip": 0.1, "noise_multiplier": 0.0, **privacy},
        }
    )
    return PrivacyAccount(recipe, central, ModulePool({}, 1), ())


def test_seven_of_ten_within_the_clip_lower_it():
    adapting = account(adaptive={})
    for client in range(10):
        adapting.note(client, 1, float(client < 7))
    assert adapting.end_round(1)["privacy"]["clip"] == 0.1  # of the round that has ended
    assert adapting.clip == pytest.approx(0.0960789439)


def test_the_quantile_and_the_rate_say_where_and_how_fast():
    adapting = account(adaptive={"quantile": 0.9, "rate": 1.0})
    for client in range(10):
        adapting.note(client, 1, 0.0)
    adapting.end_round(1)
    assert adapting.clip == pytest.approx(0.1 * math.exp(0.9))
    still = account(adaptive={"rate": 0.0})
    still.note(0, 1, 1.0)
    still.end_round(1)
    assert still.clip == 0.1


def test_an_absent_client_counts_as_half_as_one_client_may_change_the_sum_by_half_only():
    # One reply of ten expected: (1 - 1/2) / 10 + 1/2 = 0.55.
    adapting = account(adaptive={"rate": 1.0}, sampling={"fraction": 1.0, "poisson": True})
    adapting.note(4, 1, 1.0)
    adapting.end_round(1)
    assert adapting.clip == pytest.approx(0.1 * math.exp(-0.05))


def test_the_server_adds_noise_to_the_count():
    clips = []
    for round_index in range(400):
        adapting = account(adaptive={"rate": 1.0, "count_noise": 2.0}, noise_multiplier=1.0)
        adapting.end_round(round_index)
        clips.append(-math.log(adapting.clip / 0.1))
    mean = sum(clips) / 400
    deviation = math.sqrt(sum((clip - mean) ** 2 for clip in clips) / 400)
    assert deviation == pytest.approx(2.0 / 10, rel=5 / math.sqrt(800))
    assert mean == pytest.approx(0.0, abs=5 * 0.2 / 20)


def test_a_restored_account_goes_on_as_the_whole_one():
    def rounds(of, numbers):
        rows = []
        for index in numbers:
            for client in range(index % 3 + 1):
                of.note(client, 1, float(client < 1))
            rows.append(of.end_round(index)["privacy"])
        return rows

    options = {"adaptive": {"count_noise": 1.0}, "noise_multiplier": 0.5, "noise": "client"}
    whole, first, second = account(**options), account(**options), account(**options)
    expected = rounds(whole, range(1, 9))
    began = rounds(first, range(1, 5))
    second.restore(first.stored)
    assert [*began, *rounds(second, range(5, 9))] == expected
    assert second.stored == whole.stored


def test_a_round_counts_what_its_busiest_client_released():
    counting = account(noise_multiplier=1.0)
    for client, releases in ((0, 1), (1, 1), (1, 1), (2, 0)):
        counting.note(client, releases, None)
    assert counting.end_round(1)["privacy"]["releases"] == 2
    assert counting.end_round(2)["privacy"]["releases"] == 3  # an empty cohort's model has noise, too
    counting.note(0, 0, None)
    assert counting.end_round(3)["privacy"]["releases"] == 3
    assert counting.rounds == {2: 1, 1: 1}


def test_epsilons_by_who_adds_noise_and_by_how_replies_are_used():
    server, client = (account(noise_multiplier=1.0, noise=where) for where in ("server", "client"))
    single = account(noise_multiplier=1.0, noise="client", central=False)
    rows = []
    for one in (server, client, single):
        for k in range(10):
            one.note(k, 1, None)
        rows.append(one.end_round(1)["privacy"])
    assert rows[0]["epsilon"] == rows[1]["epsilon"]
    assert rows[0]["local_epsilon"] is None
    assert rows[1]["local_epsilon"] > rows[1]["epsilon"]
    assert rows[2]["epsilon"] is None
    assert rows[2]["local_epsilon"] == rows[1]["local_epsilon"]
