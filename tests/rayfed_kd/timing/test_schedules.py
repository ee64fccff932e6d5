"""Who is dispatched, and when an update has enough: pure decisions."""

import math

import pytest

from rayfed_kd.algorithms.dafkd.dafkd import DaFKD
from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.timing import cohort_size
from rayfed_kd.timing import Progress, ScheduleFacts
from rayfed_kd.timing.reading import check_exchanges, check_schedule, check_timing, read_timing
from rayfed_kd.timing.schedule import Synchronous, check_sample

CLOCK = ["clock.name=constant"]


def recipe(*overrides, clients=20, fraction=0.2):
    whole = {
        "method": {"name": "fedavg"},
        "partition": {"clients": clients},
        "sampling": {"fraction": fraction},
    }
    return load_recipe(whole, overrides)


def make_schedule(asked):
    return read_timing(asked).schedule


def sampling(seed=1):
    """A schedule with the sampling that all have unless they say otherwise."""
    return Synchronous(Synchronous.options_model()(), ScheduleFacts(clients=100, cohort=10, seed=seed))


def asks(schedule, at_work, starting):
    return schedule.clients_to_ask(Progress(1, 0, at_work, starting))


def completes(schedule, replies, at_work, past_deadline=False):
    return schedule.is_complete(Progress(1, replies, at_work, past_deadline=past_deadline))


@pytest.mark.parametrize(
    ("fraction", "clients", "size"), [(0.2, 20, 4), (0.05, 20, 1), (1.0, 7, 7), (0.1, 100, 10)]
)
def test_cohort_has_max_of_one_and_ck_clients(fraction, clients, size):
    assert cohort_size(recipe(clients=clients, fraction=fraction)) == size


def test_draw_is_a_function_of_seed_and_number():
    free = range(100)
    schedule = sampling(seed=1)
    assert schedule.sample(free, 10, 3) == sampling(seed=1).sample(free, 10, 3)
    assert schedule.sample(free, 10, 3) != schedule.sample(free, 10, 4)
    assert schedule.sample(free, 10, 3) != sampling(seed=2).sample(free, 10, 3)


def test_draw_is_ascending_without_repeats_and_of_the_free_alone():
    free = list(range(0, 100, 2))
    drawn = sampling().sample(free, 25, 1)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 25
    assert set(drawn) <= set(free)


def test_no_more_are_drawn_than_are_free():
    assert sampling().sample([4, 7], 10, 1) == [4, 7]


def test_clients_are_drawn_uniformly():
    """Each of 10 clients is among 3 with probability 0.3: 600 of 2,000, deviation 20.5."""
    counts = [0] * 10
    for number in range(1, 2001):
        for client in sampling(seed=5).sample(range(10), 3, number):
            counts[client] += 1
    assert all(abs(count - 600) < 5 * 20.5 for count in counts)


def test_sync_asks_its_cohort_once_and_ends_when_nobody_is_at_work():
    schedule = make_schedule(recipe())
    assert [asks(schedule, 0, True), asks(schedule, 3, False)] == [4, 0]
    assert not completes(schedule, 3, 1)
    assert completes(schedule, 4, 0)


def test_quorum_with_a_deadline_waits_for_all_until_then_and_after_it_for_the_least():
    """Cohort 4, 30 % more asked: ceil(5.2) = 6; ceil(0.7 * 4) = 3 must answer."""
    schedule = make_schedule(
        recipe(*CLOCK, "schedule={name: quorum, min_fraction: 0.7, deadline_s: 9.0, over_selection: 0.3}")
    )
    assert asks(schedule, 0, True) == 6
    assert not completes(schedule, 3, 3)
    assert completes(schedule, 4, 2)
    assert not completes(schedule, 2, 4, past_deadline=True)
    assert completes(schedule, 3, 3, past_deadline=True)


def test_quorum_without_a_deadline_ends_with_the_least():
    schedule = make_schedule(recipe(*CLOCK, "schedule={name: quorum, min_fraction: 0.5}"))
    assert completes(schedule, 2, 2)
    assert not completes(schedule, 1, 3)


def test_over_selection_asks_no_more_than_there_are():
    schedule = make_schedule(
        recipe(*CLOCK, "schedule={name: quorum, over_selection: 1.0}", clients=5, fraction=0.8)
    )
    assert asks(schedule, 0, True) == 5


def test_buffered_keeps_its_number_at_work():
    schedule = make_schedule(recipe(*CLOCK, "schedule={name: buffered, buffer: 2, concurrency: 7}"))
    assert [asks(schedule, 0, True), asks(schedule, 5, False), asks(schedule, 7, True)] == [7, 2, 0]
    assert completes(schedule, 2, 5)
    assert not completes(schedule, 1, 6)


def test_presets_are_the_published_rules():
    fedbuff = make_schedule(recipe(*CLOCK, "schedule={name: fedbuff}", fraction=0.5))
    assert (fedbuff.options.buffer, fedbuff.rule.normalisation, fedbuff.rule.difference) == (
        10,
        "count",
        True,
    )
    assert fedbuff.rule.staleness.weight(3) == 0.5
    fedasync = make_schedule(recipe(*CLOCK, "schedule={name: fedasync}"))
    assert (fedasync.rule.server_lr, fedasync.rule.normalisation) == (0.6, "none")
    assert not fedasync.rule.difference
    assert completes(fedasync, 1, at_work=3)
    assert fedasync.rule.staleness.weight(3) == 0.5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["schedule.name=fedasync"], "which reply comes first is a question of time; expected a clock"),
        ([*CLOCK, "schedule.name=fedasnc"], "Did you mean fedasync"),
        ([*CLOCK, "schedule={name: buffered, bufer: 3}"], "Did you mean schedule.buffer"),
        (
            [*CLOCK, "schedule={name: buffered, buffer: 5}"],
            "schedule.buffer = 5: larger than the 4 clients at work at a time",
        ),
        (
            [*CLOCK, "schedule={name: fedasync, concurrency: 21}"],
            "schedule.concurrency = 21: more than partition.clients = 20",
        ),
        (
            [*CLOCK, "schedule={name: fedasync, staleness: {name: constant, a: 2.0}}"],
            "schedule.staleness.a is no option of constant",
        ),
        (["clock.name=constnt"], "Did you mean constant"),
    ],
)
def test_bad_schedules_and_clocks_are_answered(overrides, message):
    with pytest.raises(RecipeError) as caught:
        asked = recipe(*overrides)
        check_timing(read_timing(asked), asked, FedAvg())
    assert message in str(caught.value)


def checked(method, *overrides):
    asked = recipe(*overrides, "local.epochs=2", clients=4, fraction=1.0)
    check_exchanges(asked, method)
    timing = read_timing(asked)
    check_timing(timing, asked, method)
    clock = timing.make_clock(timing.load_devices())
    check_schedule(timing.schedule, clock, method, asked, [100, 200, 300, 400])


def test_deadline_that_nobody_can_meet_is_told_at_the_start():
    """The fastest trains on 2 * 100 samples of 0.01 s, and two messages take 0.5 s each: 3 s."""
    clock = "clock={name: constant, seconds_per_sample: 0.01, latency_s: 0.5}"
    checked(FedAvg(), clock, "schedule={name: quorum, deadline_s: 3.01}")
    with pytest.raises(RecipeError, match=r"deadline_s = 2.9: nobody can meet it, the fastest .* 3.0 s"):
        checked(FedAvg(), clock, "schedule={name: quorum, deadline_s: 2.9}")


def test_methods_with_several_exchanges_are_refused_where_there_are_no_rounds():
    twice = DaFKD(DaFKD.options_model()(protocol="local"))
    checked(twice, *CLOCK, "schedule={name: quorum}")
    with pytest.raises(RecipeError, match="several exchanges; expected sync or quorum"):
        checked(twice, *CLOCK, "schedule={name: fedasync}")
    with pytest.raises(RecipeError, match="several exchanges, a late reply"):
        checked(twice, *CLOCK, "schedule={name: quorum, late: next_round}")
    checked(DaFKD(DaFKD.options_model()(protocol="upload")), *CLOCK, "schedule={name: fedasync}")


def test_staleness_where_late_replies_are_dropped_is_refused():
    late = "schedule={name: quorum, staleness: {name: polynomial}}"
    with pytest.raises(RecipeError, match="schedule: staleness belongs to late: next_round"):
        checked(FedAvg(), *CLOCK, late)
    checked(FedAvg(), *CLOCK, late, "schedule.late=next_round")
    with pytest.raises(RecipeError, match="schedule: update belongs to late: next_round"):
        checked(FedAvg(), *CLOCK, "schedule={name: quorum, update: model}")


def test_without_a_deadline_there_is_none():
    assert make_schedule(recipe()).deadline_s(1) == math.inf


@pytest.mark.parametrize("sampled", [[1, 1], [2, 1], [0], [8], [1, 2, 5]])
def test_sample_of_others_than_the_available_is_refused(sampled):
    check_sample([1, 5], [1, 2, 5], 2)
    with pytest.raises(RunError, match="expected at most 2 of the 3 that are available"):
        check_sample(sampled, [1, 2, 5], 2)
