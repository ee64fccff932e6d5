"""A comparison whose every number is known, and how tests write, label and run a study."""

from functools import partial

import yaml

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.curves import Curve
from rayfed_kd.comparison.runs import run_each
from rayfed_kd.comparison.studies import Study


def write_yaml(path, content):
    path.write_text(yaml.safe_dump(content))
    return path


def run_locally(told=None):
    tell = (lambda line: None) if told is None else told.append
    return partial(run_each, local=True, address=None, jobs=None, tell=tell)


def compared(**study):
    """A seen twice: official test .5, .6, .4 and .7, .6, .8; B once the seed 1 has run: .9."""
    content = {"folder": "x", "seeds": [1, 2], "runs": [{"label": "A"}, {"label": "B"}], "last": 2, **study}
    rounds, wall_s = [2, 4, 6], [0.5, 1.0, 1.5]
    simulated, no_clock = [1.0, 2.0, 3.0], [None, None, None]
    curves_by_run = {
        ("A", 1): Curve(rounds, [0.5, 0.6, 0.4], [10, 20, 30], simulated, wall_s),
        ("A", 2): Curve(rounds, [0.7, 0.6, 0.8], [10, 20, 30], simulated, wall_s),
        ("B", 1): Curve(rounds, [0.1, 0.2, 0.9], [5, 10, 15], no_clock, wall_s),
        ("B", 2): Curve(rounds, [0.1, 0.2, 0.3], [5, 10, 15], no_clock, wall_s),
    }
    curves = {
        (label, "aca", seed, "server_accuracy"): curve for (label, seed), curve in curves_by_run.items()
    }
    return Comparison(Study.model_validate(content), curves)


KDIA = {"paper": "kdia", "table": "2", "where": {"dataset": "CIFAR-10", "beta": 0.1}}


def relabelled(label):
    """The numbers of `compared`, whose row B has another label."""
    numbers = compared()
    study = numbers.study.model_copy(
        update={"runs": [numbers.study.runs[0], numbers.study.runs[1].model_copy(update={"label": label})]}
    )
    names = {"A": "A", "B": label}
    return Comparison(study, {(names[key[0]], *key[1:]): curve for key, curve in numbers.curves.items()})
