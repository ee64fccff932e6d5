"""Kills at random moments, of client hosts, server or command; checkpoints cut off. All end equal.

`python tests/tools/chaos.py` does the same over all methods, for as many kills as one has time for.
"""

import pytest
from killed_runs import METHODS, SCHEDULES, cases, kill_one_run

KILLS = 4  # of each run, a dozen in all


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "engine"), [("fedavg:sync", "ray"), ("fedkf:fedbuff", "ray"), ("dafkd:quorum", "local")]
)
def test_killed_at_random_moments_the_runs_end_as_undisturbed(case, engine, tmp_path):
    kills, runs = 0, 0
    while kills < KILLS:
        run = kill_one_run(case, engine, runs, KILLS - kills, tmp_path)
        assert run["wrong"] is None, run["wrong"]
        kills, runs = kills + sum(run["kills"].values()), runs + 1


def test_the_tools_cases_have_every_method_and_every_schedule():
    methods, schedules = zip(*(case.split(":") for case in cases()), strict=True)
    assert set(methods) == set(METHODS)
    assert set(schedules) == set(SCHEDULES)
