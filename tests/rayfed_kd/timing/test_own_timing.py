"""A user's own schedule, clock and staleness rule, from the one file that docs/guide/schedules.md shows."""

import numpy as np
import pytest
from pages import PAGES, code_blocks
from runs import run_in_process
from small_recipes import SIX_LENETS, assert_resumed_is_whole, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.errors import RecipeError, RunError

(OWN,) = code_blocks(PAGES["guide/schedules.md"], "python")
BAD = '''

class Negative(StalenessRule):
    def weight(self, tau):
        return 1.0 - tau


class Endless(Schedule):
    """Does not say when an update ends."""


class Loose(Schedule):
    """Its options are no ScheduleOptions, and would take any key."""

    options: dict

    def is_complete(self, progress):
        return True


class Crowded(Doubling):
    def sample(self, available, count, draw):
        return list(available)


class Counting(Doubling):
    def sample(self, available, count, draw):
        self.draws = getattr(self, "draws", 0) + 1
        return super().sample(available, count, self.draws)


class Patient(Fixed):
    def earliest(self, client, at, bytes_down, least_samples):
        return at + 100.0
'''
RECIPE = {
    **SIX_LENETS,
    "rounds": 5,
    "schedule": {"name": "own_timing:Doubling", "staleness": {"name": "own_timing:InverseSquare"}},
    "clock": {"name": "own_timing:Fixed", "seconds": [1.0, 2.5, 4.0, 6.0]},
}


@pytest.fixture(autouse=True)
def own(own_module):
    own_module("own_timing", OWN + BAD)


def run(folder, *overrides, local=True, **changes):
    return rayfed_kd.run({**RECIPE, **changes}, [f"results.folder={folder}", *overrides], local=local)


def column(result, name):
    return result.tables["rounds"][name].to_pylist()


def test_own_schedule_clock_and_staleness_rule_decide_the_run(tmp_path):
    """Replies that are late for one update are part of a later one, with the weight of their staleness."""
    found = run(tmp_path / "a")
    assert max(column(found, "staleness")) > 0
    assert all(second % 0.5 == 0 for second in column(found, "sim_s"))  # sums of 1, 2.5, 4 and 6
    other = run(tmp_path / "b", "schedule.staleness.name=constant")
    assert column(other, "staleness") == column(found, "staleness")
    assert not np.array_equal(found.models["global"], other.models["global"])
    slower = run(tmp_path / "c", "clock.seconds=[2.0, 5.0, 8.0, 12.0]")
    assert column(slower, "sim_s") == [2 * second for second in column(found, "sim_s")]
    assert np.array_equal(found.models["global"], slower.models["global"])  # the order of replies is the same


def test_replies_of_an_update_double(tmp_path):
    """All six clients are asked at first; one update takes `first` replies, the next twice as many."""
    for first in (1, 2):
        found = run(tmp_path / str(first), f"schedule.first={first}", "rounds=2", "sampling.fraction=1.0")
        assert column(found, "cohort") == [first, 2 * first]


def test_ray_gives_the_bits_of_the_local_engine(hosts):
    """Its actors were started before the file was there."""
    recipe = small_recipe(RECIPE, "fedkf")
    assert_same_run(hosts.run(recipe, "placement.clients_per_actor=3"), run_in_process(recipe))


@pytest.mark.slow
def test_a_whole_run_on_ray_gives_the_bits_of_the_local_engine(shared_ray, tmp_path):
    """With a server's process, which runs the user's schedule and clock."""
    method = small_recipe(RECIPE, "fedkf")["method"]
    local = run(tmp_path / "local", method=method)
    assert_same_run(local, run(tmp_path / "ray", local=False, method=method))


def test_stopped_and_resumed_is_uninterrupted(tmp_path):
    assert_resumed_is_whole(RECIPE, tmp_path, 3, 5)


REFUSED = {
    "schedule.name=own_timing:Fixed": "own_timing:Fixed is no subclass of rayfed_kd.timing.schedule.Sch",
    "schedule.name=own_timing:Doublin": "has no 'Doublin'. Did you mean Doubling?",
    "schedule.name=own_timing:Endless": "own_timing:Endless must define is_complete()",
    "schedule.name=own_timing:Counting": "schedule.name: it samples other clients after a resume; expected",
    "schedule={name: own_timing:Loose}": "expected a subclass of rayfed_kd.timing.schedule.ScheduleOp",
    "schedule.frst=2": "schedule.frst is no option of own_timing:Doubling. Did you mean schedule.first?",
    "clock.name=own_timing:Doubling": "own_timing:Doubling is no subclass of rayfed_kd.timing.clock.Clock",
    "clock.secnds=[1.0]": "Did you mean clock.seconds?",
    "clock={name: own_timing:Fixed}": "clock.seconds is missing",
    "schedule.staleness={name: own_timing:Fixed}": "own_timing:Fixed is no subclass of rayfed_kd.timing.stal",
    "schedule.staleness.scal=2.0": "Did you mean schedule.staleness.scale?",
    "schedule.staleness=3": "schedule.staleness = 3: expected keys below it",
    "schedule.staleness={name: own_timing:Negative}": (
        "Negative weighs a reply of staleness 2 by -1.0; expected a finite number of at least 0"
    ),
    "schedule.staleness.scale=.inf": "schedule.staleness.scale = inf: expected",
}


@pytest.mark.parametrize(("override", "message"), REFUSED.items())
def test_bad_objects_are_refused_before_the_first_round(override, message):
    with pytest.raises(RecipeError) as caught:
        rayfed_kd.prepare(RECIPE, [override])
    assert message in str(caught.value)


def test_what_only_a_run_shows_ends_it_with_a_message(tmp_path):
    with pytest.raises(
        RunError, match=r"it sampled clients .*; expected at most 3 of the 6 that are available"
    ):
        run(tmp_path / "a", "schedule.name=own_timing:Crowded")
    with pytest.raises(RunError, match=r"and `earliest` gave 100.0 s as the least; expected a later arrival"):
        run(tmp_path / "b", "clock.name=own_timing:Patient")
    with pytest.raises(RunError, match=r"arrives at -1.0 s, and `earliest` gave 0.0 s as the least"):
        run(tmp_path / "c", "clock.seconds=[-1.0]")
    with pytest.raises(RunError, match=r"arrives at inf s, .* expected a later arrival, at a finite second"):
        run(tmp_path / "d", "clock.seconds=[1.0e+308]")
