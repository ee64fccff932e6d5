"""What `privacy` refuses before the first round, and where the recipe says it."""

import re

import pytest
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, small_recipe

from rayfed_kd.algorithms import METHODS
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.features.privacy.covered_parts import CoveredParts, covered_parts
from rayfed_kd.protocol.declaration import means_suffice
from rayfed_kd.recipe.registry import load_object

SMALL = {**FOUR_CLIENTS, "rounds": 1, "sampling": {"fraction": 0.5}}
CLIPPED = {"clip": 1.0, "row_clip": 1.0, "noise_multiplier": 1.0}


def refused(message, method="fedavg", privacy=None, changes=(), **options):
    recipe = {**small_recipe(SMALL, method, **options)}
    recipe |= {"privacy": {**CLIPPED, **(privacy or {})}}
    with pytest.raises(RecipeError, match=re.escape(message)):
        prepare(recipe, changes)


REFUSED_PARTS = {
    "fedftg": "fedftg sends 'label_counts', which is of the kind counts",
    "fedgen": "fedgen sends 'label_counts', which is of the kind counts",
    "feddisco": "feddisco sends 'discrepancy', which is of the kind scalars",
    "fd": "fd sends 'outputs', which is logits, and not of public samples",
    "fedproto": "fedproto sends 'prototypes', which is prototypes, and not of public samples",
    "fedd2s": "fedd2s sends 'first', which is features, and not of public samples",
    "qffl": "qffl sends 'delta', which has no part of its name going down",
    "dafkd": "dafkd sends 'discriminator', which has no part of its name going down",
    "kdia": "kdia sends 'real', which helps the simulation",
    "centralized": "centralized sends 'model', which helps the simulation",
    "standalone": "clients of standalone send nothing",
}


@pytest.mark.parametrize("name", REFUSED_PARTS)
def test_parts_without_noise_are_named(name):
    with pytest.raises(RecipeError, match=re.escape(f"privacy: {REFUSED_PARTS[name]}")):
        covered_parts(load_object(METHODS[name], "")(), name)


COVERED = {
    "fedavg": CoveredParts(("student",), ()),
    "fedper": CoveredParts(("base",), ()),
    "fedmd": CoveredParts((), ("logits",)),
    "cronus": CoveredParts((), ("probabilities",)),
}


@pytest.mark.parametrize("name", COVERED)
def test_parts_that_are_covered(name):
    assert covered_parts(load_object(METHODS[name], "")(), name) == COVERED[name]


AVERAGES = {
    ("fedavg", ()): True,
    ("fedavg", (("aggregation", "median"),)): False,
    ("fedavg", (("track_oca", True),)): False,
    ("fedprox", ()): True,
    ("moon", ()): True,
    ("feddf", ()): False,
    ("fedkf", ()): False,
    ("fedper", ()): True,
    ("fedper_plus", ()): False,
    ("fedmd", ()): True,
    ("fedmd", (("consensus", "probabilities"), ("digest", "kl"))): False,
    ("fedmd", (("aggregation", "krum"),)): False,
    ("dsfl", (("aggregation", "era"),)): True,
    ("cronus", ()): False,
}


@pytest.mark.parametrize(("name", "options"), AVERAGES)
def test_which_methods_use_replies_through_their_means_only(name, options):
    kind = load_object(METHODS[name], "")
    assert means_suffice(kind(kind.options_model()(**dict(options))).up) is AVERAGES[name, options]


def test_what_is_not_sampled_or_not_seen_as_accounted_is_refused():
    refused("attack: attackers know", changes=["attack={name: paf}"])
    refused(
        "schedule.name = 'fedbuff'", changes=["schedule={name: fedbuff, buffer: 2}", "clock.name=lognormal"]
    )
    refused("schedule.name = 'quorum'", changes=["schedule.name=quorum", "clock.name=lognormal"])
    refused("privacy: the server of fedgems asks", method="fedgems")


def test_clients_that_are_not_always_available_are_refused(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "client,seconds_per_sample,up_mbit_s,down_mbit_s,from_s,until_s\n"
        + "".join(f"{k},0.001,10,10,0,{1000 + k}\n" for k in range(4))
        + "0,0.001,10,10,5000,6000\n"
    )
    refused("clock.name = 'trace'", changes=[f"clock={{name: trace, file: {trace}}}"])


def test_noise_at_the_server_needs_means():
    refused("privacy.noise = 'server': feddf", method="feddf")
    refused("privacy.noise = 'server': fedavg", aggregation="median")


def test_noise_at_clients_needs_a_whole_cohort():
    refused(
        "sampling.poisson: with privacy.noise = 'client'",
        privacy={"noise": "client"},
        changes=["sampling={fraction: 0.5, poisson: true}"],
    )
    refused("faults.bad_replies = 'drop'", privacy={"noise": "client"}, changes=["faults.bad_replies=drop"])


def test_a_poisson_cohort_needs_one_exchange_of_weights(own_module):
    own = "from rayfed_kd.algorithms.fedmd import FedMD\n\n\nclass One(FedMD):\n    asynchronous = True\n"
    own_module("own_one", own)
    for method in ("fedmd", "own_one:One"):
        message = f"sampling.poisson: rounds of {method} have several exchanges"
        refused(message, method=method, changes=["sampling={fraction: 0.5, poisson: true}"])


def test_poisson_cohorts_need_rounds():
    changes = ["sampling={fraction: 0.5, poisson: true}", "schedule.name=fedbuff", "clock.name=lognormal"]
    refused("schedule.name = 'fedbuff': sampling.poisson draws a whole cohort", changes=changes)


@pytest.mark.parametrize(
    ("method", "key", "privacy"),
    [("fedavg", "clip", {"row_clip": 1.0}), ("fedmd", "row_clip", {"clip": 1.0})],
)
def test_a_clip_of_what_is_not_sent_is_refused_with_noise_and_without(method, key, privacy):
    for noise, message in ((1.0, f"privacy.{key} is missing"), (0.0, "_?clip = 1 bounds nothing")):
        recipe = {**small_recipe(SMALL, method), "privacy": {"noise_multiplier": noise, **privacy}}
        with pytest.raises(RecipeError, match=f"{message}: {method} sends"):
            prepare(recipe)


def test_an_adaptive_clip_needs_weights_a_start_and_a_count_that_leaves_noise():
    refused("privacy.adaptive: the clip follows", method="fedmd", privacy={"adaptive": {}})
    refused("privacy.adaptive.count_noise = 0.2", privacy={"adaptive": {}}, changes=["sampling.fraction=1.0"])
    refused("adaptive needs clip", privacy={"adaptive": {}, "clip": None})


def test_a_lossy_codec_is_refused_with_noise_at_the_server():
    refused("codec.up.weights: a reply may be larger", changes=["codec.up.weights={name: cast, to: fp16}"])
    refused(
        "codec.down.weights: clients would change another vector",
        changes=["codec.down.weights={name: cast, to: fp16}"],
    )


def test_a_bad_value_names_its_path():
    refused("privacy.noise_multiplier = -1.0", privacy={"noise_multiplier": -1.0})
    refused("privacy.delta = 1.0", privacy={"delta": 1.0})
    refused("privacy.quantile is no key", privacy={"quantile": 0.5})


def test_questions_are_refused_in_a_run_too():
    recipe = small_recipe(SMALL, "fedgem")
    with pytest.raises(RecipeError, match="asks its clients"):
        run_in_process({**recipe, "privacy": CLIPPED})
