"""A comparison whose every number is known, and how tests write, label and run a study."""

from functools import partial

import yaml

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.curves import Cost, Curve, RunTotals
from rayfed_kd.comparison.runs import run_each
from rayfed_kd.comparison.studies import Study


def write_yaml(path, content):
    path.write_text(yaml.safe_dump(content))
    return path


def run_locally(told=None):
    tell = (lambda line: None) if told is None else told.append
    return partial(run_each, local=True, address=None, jobs=None, tell=tell)


COSTS = {
    "A": [Cost(4 * step, 6 * step, sim_s=float(step), wall_s=step / 2) for step in (1, 2, 3)],
    "B": [Cost(2 * step, 3 * step, wall_s=step / 2) for step in (1, 2, 3)],
}
RAW = {"A": (12, 18), "B": (6, 9)}  # up and down, without a codec: as much


def any_costs(count):
    """Costs of so many evaluations that a test does not look at."""
    return [Cost(0, 0)] * count


def compared(**study):
    """A seen twice: official test .5, .6, .4 and .7, .6, .8; B once the seed 1 has run: .9.

    A sends 4 bytes up and 6 down between two evaluations, in 1 simulated and half a real second; B 2 and 3,
    without a clock.
    """
    content = {"folder": "x", "seeds": [1, 2], "runs": [{"label": "A"}, {"label": "B"}], "last": 2, **study}
    curves_by_run = {
        ("A", 1): [0.5, 0.6, 0.4],
        ("A", 2): [0.7, 0.6, 0.8],
        ("B", 1): [0.1, 0.2, 0.9],
        ("B", 2): [0.1, 0.2, 0.3],
    }
    curves = {
        (label, "global", seed, "server_accuracy"): Curve([2, 4, 6], values, COSTS[label])
        for (label, seed), values in curves_by_run.items()
    }
    totals = {key: RunTotals(COSTS[key[0]][-1], Cost(*RAW[key[0]])) for key in curves_by_run}
    return Comparison(Study.model_validate(content), curves, totals)


KDIA = {"paper": "kdia", "table": "2", "where": {"dataset": "CIFAR-10", "beta": 0.1}}


def relabelled(label):
    """The numbers of `compared`, whose row B has another label."""
    numbers = compared()
    runs = [numbers.study.runs[0], numbers.study.runs[1].model_copy(update={"label": label})]
    study = numbers.study.model_copy(update={"runs": runs})
    names = {"A": "A", "B": label}
    curves = {(names[key[0]], *key[1:]): curve for key, curve in numbers.curves.items()}
    return Comparison(study, curves, {(names[key[0]], key[1]): run for key, run in numbers.totals.items()})
