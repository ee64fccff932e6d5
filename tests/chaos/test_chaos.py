"""Kills at random moments, of client hosts, server or command; checkpoints cut off. All end equal.

`python tests/tools/chaos.py` does the same over all methods, for as many kills as one has time for.
"""

import runpy
from pathlib import Path

import pytest
from killed_runs import METHODS, SCHEDULES, cases, kill_one_run

CHAOS = Path(__file__).parents[1] / "tools" / "chaos.py"
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


def test_the_table_counts_kills_by_victim_and_says_which_case_was_wrong():
    run = {"case": "fedavg:sync", "checkpoints cut off": 1, "resumes": 2, "wrong": None}
    runs = [
        {**run, "kills": {"server": 2, "command": 1}},
        {**run, "kills": {"command": 1}},
        {**run, "case": "fedkf:fedbuff", "kills": {"all client hosts": 1}, "wrong": "the rows differ"},
    ]
    assert runpy.run_path(str(CHAOS))["table"](runs).splitlines()[2:] == [
        "| fedavg, sync | 2 | 0 | 0 | 2 | 2 | 2 | 4 | yes |",
        "| fedkf, fedbuff | 1 | 0 | 1 | 0 | 0 | 1 | 2 | NO |",
        "| **5 kills** | 3 | 0 | 1 | 2 | 2 | 3 | 6 | NO |",
    ]
