"""Whatever is lost, late, done twice or in another order: the run ends as the undisturbed one."""

import random
from functools import cache

import pytest
from disturbed_runs import SimulatedEngine, run_disturbed
from simulated_cluster import StoodStillError
from simulated_runs import CASES, FEW, Case

from rayfed_kd.cluster.ray_backend.dispatch.client_hosts import ClientHosts
from rayfed_kd.cluster.server.client_records import Records

case = cache(Case)
REPEAT = "python tests/tools/simulated_faults.py --case {} --first {} --seeds 1"


def assert_undisturbed(name, seeds):
    for seed in seeds:
        try:
            run_disturbed(case(name), seed)
        except Exception as error:
            raise AssertionError(f"{error}\nrepeat it: {REPEAT.format(name, seed)}") from error


@pytest.mark.parametrize("name", FEW)
def test_faults_change_nothing(name):
    assert_undisturbed(name, range(17))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_faults_by_the_thousand_change_nothing(name):
    assert_undisturbed(name, range(1000, 1015))


def failures(name, seeds):
    for seed in range(seeds):
        try:
            run_disturbed(case(name), seed)
        except AssertionError as error:
            yield error


# What the simulation is for: faults of the code under test that ordinary runs do not show.


def test_wake_up_that_is_lost_is_noticed(monkeypatch):
    async def build(self, host, lost):
        await ClientHosts.build(self._clients, host, lost)  # and the jobs that wait are not started

    monkeypatch.setattr(SimulatedEngine, "_build", build)
    assert any(isinstance(error, StoodStillError) for error in failures("fedavg:fedbuff", 5))


def test_job_that_is_not_tried_again_is_noticed(monkeypatch):
    again = SimulatedEngine._again
    monkeypatch.setattr(
        SimulatedEngine, "_again", lambda self, host, jobs, lost: again(self, host, jobs[:1], lost)
    )
    assert any(isinstance(error, StoodStillError) for error in failures("fedavg:fedbuff", 40))


def test_round_that_is_not_undone_is_noticed(monkeypatch):
    """A run that is stopped writes the state before the round that it abandons."""
    monkeypatch.setattr(Records, "undo", lambda self: None)
    assert any("differ" in str(error) for error in failures("fedavg:fedbuff", 20))


def test_the_same_seed_is_the_same_story():
    """Also after other runs: so the command that is printed repeats what was seen."""
    random.seed(1)
    first = run_disturbed(case("fedavg:fedbuff"), 3)
    random.seed(2)
    run_disturbed(case("fedavg:fedbuff"), 4)
    assert run_disturbed(case("fedavg:fedbuff"), 3) == first
