"""Kills at random moments, of client hosts, server or command; checkpoints cut off. All end equal.

`python tests/tools/chaos.py` does the same over all methods, schedules, codecs and privacy settings.
"""

import runpy
from collections import Counter
from pathlib import Path

import pytest
from killed_runs import cases, kill_one_run

from rayfed_kd.algorithms import METHODS
from rayfed_kd.features.codecs.loading import CODECS
from rayfed_kd.recipe.sections.on_the_way import PrivacyRecipe
from rayfed_kd.recipe.timing import SCHEDULES

CHAOS = Path(__file__).parents[1] / "tools" / "chaos.py"
KILLS = 4  # of each run


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fedavg:sync:none:none", "fedkf:fedbuff:none:none"])
def test_killed_at_random_moments_on_ray_the_runs_end_as_undisturbed(case, tmp_path):
    kills, runs = 0, 0
    while kills < KILLS:
        run = kill_one_run(case, "ray", runs, KILLS - kills, tmp_path)
        assert run["wrong"] is None, run["wrong"]
        kills, runs = kills + sum(run["kills"].values()), runs + 1


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "least"), [("local", 3), ("ray", 1)])
def test_everything_registered_is_killed_in_three_cases_without_ray_and_in_one_on_ray(engine, least):
    by_kind = [Counter(names) for names in zip(*(case.split(":") for case in cases(engine)), strict=True)]
    registered = [METHODS, SCHEDULES, CODECS, PrivacyRecipe.model_fields]
    for times, names in zip(by_kind, registered, strict=True):
        assert {name: times[name] for name in names if times[name] < least} == {}


def test_the_table_counts_kills_by_name_and_victim_and_says_which_run_was_wrong():
    run = {
        "case": "fedavg:sync:none:clip",
        "engine": "ray",
        "checkpoints cut off": 1,
        "resumes": 2,
        "wrong": None,
    }
    runs = [
        {**run, "kills": {"server": 2, "command": 1}},
        {**run, "kills": {"command": 1}, "engine": "local"},
        {**run, "kills": {"all client hosts": 1}, "case": "fedkf:sync:sign:none", "wrong": "the rows differ"},
    ]
    assert runpy.run_path(str(CHAOS))["table"](runs).splitlines()[2:] == [
        "| method fedavg | 2 | 1 | 0 | 0 | 2 | 1 | 2 | 4 | yes |",
        "| method fedkf | 1 | 0 | 0 | 1 | 0 | 0 | 1 | 2 | NO |",
        "| schedule sync | 3 | 1 | 0 | 1 | 2 | 1 | 3 | 6 | NO |",
        "| codec sign | 1 | 0 | 0 | 1 | 0 | 0 | 1 | 2 | NO |",
        "| privacy clip | 2 | 1 | 0 | 0 | 2 | 1 | 2 | 4 | yes |",
        "| **5 kills** | 3 | 1 | 0 | 1 | 2 | 1 | 3 | 6 | NO |",
    ]
