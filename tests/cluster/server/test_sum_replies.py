"""Replies that their hosts sum: the same bits everywhere, the plain form's result, and what is refused."""

import shutil

import numpy as np
import pytest
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, SIX_CLIENTS, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.algorithms import METHODS
from rayfed_kd.cluster.engine.calls import DispatchFacts, StepCall, StepError
from rayfed_kd.cluster.engine.local import Held
from rayfed_kd.cluster.ray_backend.handles import RayHandle
from rayfed_kd.cluster.server.cohort import BadReplyError
from rayfed_kd.cluster.server.run_state import jobs
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol.declaration import means_suffice
from rayfed_kd.recipe.registry import load_object

RECIPE = {**SIX_CLIENTS, "local": {"epochs": 1, "batch_size": 16, "sum_replies": 2}}
OWN = """
import os
from pathlib import Path

import torch

from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd.protocol import Averaged, Message, OneExchange, Reply

class Known(FedAvg):
    values, samples = (2.0**53, 1.0, 1.0, -(2.0**53)), (1, 1, 1, 1)
    def client_update(self, client, message, ctx):
        vector = torch.full_like(message["student"], self.values[ctx.client])
        return None, Reply(student=vector, samples=self.samples[ctx.client])

class Uneven(Known):
    values, samples = (1.0, 3.0, -2.0, 8.0), (1, 2, 5, 4)

class Exploding(Known):
    values = (1.0, float("inf"), 1.0, 1.0)

class Keeping(FedAvg):
    up = {"student": Averaged("weights", by="samples")}

class OtherWeights(Uneven):
    up = {"student": Averaged("weights")}

class NoSuchNumber(Uneven):
    up = {"student": Averaged("weights", by="images")}

class OnePartAlone(Uneven):
    up = {"student": Averaged("weights", by="samples"), "counts": "counts"}

class Reading(Uneven):
    def absorb(self, server, replies, ctx):
        sum(reply["student"] for reply in replies)
        return super().absorb(server, replies, ctx)

class Shapes(OneExchange):
    up = {"logits": Averaged("logits")}
    sizes = (2, 3, 3, 3)
    def init_server(self, ctx):
        return ctx.initial_vector()
    def dispatch(self, server, ctx):
        return Message()
    def client_update(self, client, message, ctx):
        return None, Reply(logits=torch.ones(self.sizes[ctx.client]))
    def absorb(self, server, replies, ctx):
        replies.mean("logits")
        return server
    def evaluated(self, server):
        return {"global": server}

class ShapesOfGroups(Shapes):
    sizes = (2, 2, 1, 1)

class DyingOnce(FedAvg):
    def client_update(self, client, message, ctx):
        marker = Path("MARKER")
        if ctx.round == 2 and ctx.client == 1 and not marker.exists():
            marker.touch()
            os._exit(1)
        return super().client_update(client, message, ctx)
"""


@pytest.fixture
def own(own_module, tmp_path):
    """Methods in a file of their own: `own("Known")` is a recipe's name of one."""
    module = own_module(f"own_sums_{tmp_path.name}", OWN.replace("MARKER", str(tmp_path / "marker")))
    return lambda name: f"{module}:{name}"


def four(method, **options):
    """All of four clients take part, in sums of two."""
    changed = {
        "partition": {"name": "iid", "clients": 4},
        "sampling": {"count": 4},
        "rounds": 1,
        "method": {"name": method, **options},
    }
    return {**RECIPE, **changed}


def recipe(method, **local):
    return small_recipe({**RECIPE, "local": {**RECIPE["local"], **local}}, method)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        # ((2^53 + 1) + 1) - 2^53 is 0 in float64, as 2^53 + 1 rounds to 2^53.
        ("off", 0.0),
        (4, 0.0),
        # (2^53 + 1) + (1 - 2^53) is 2^53 + (1 - 2^53) = 1, of four clients.
        (2, 0.25),
        # ((2^53 + 1) + 1) + (-2^53): the last group has one client.
        (3, 0.0),
    ],
)
def test_sums_are_of_so_many_clients_in_a_row_and_then_of_the_groups(size, expected, own):
    result = run_in_process(four(own("Known")), f"local.sum_replies={size}")
    assert np.all(result.models["global"] == np.float32(expected))


@pytest.mark.parametrize("size", ["off", 2, 3])
@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("samples", (1 * 1 + 2 * 3 - 5 * 2 + 4 * 8) / (1 + 2 + 5 + 4)), ("uniform", (1 + 3 - 2 + 8) / 4)],
)
def test_a_client_weighs_what_the_recipe_says(size, weighting, expected, own):
    asked = four(own("Uneven"), weighting=weighting)
    result = run_in_process(asked, f"local.sum_replies={size}")
    assert np.all(result.models["global"] == np.float32(expected))


# Stateless; with states; with a mean of logits in a round of several exchanges, for two architectures.
@pytest.mark.parametrize("vectorise", ["off", 2])
@pytest.mark.parametrize("method", ["fedavg", "pfedsd", "fedmd"])
def test_one_two_and_three_hosts_give_the_local_engines_bits(method, vectorise, hosts):
    asked = recipe(method, vectorise=vectorise)
    if method == "fedmd":
        asked["client_models"] = {"models": [{"name": "mlp", "hidden": 16}, {"name": "mlp", "hidden": 8}]}
    expected = run_in_process(asked)
    for share in (6, 3, 2):
        assert_same_run(hosts.run(asked, f"placement.clients_per_actor={share}"), expected)


@pytest.fixture
def fetched(monkeypatch):
    """Of each fetch from a host: name -> type and size of an array."""
    noted, before = [], RayHandle.resolve

    def resolve(handle):
        arrays = before(handle)
        noted.append({name: (array.dtype, array.size) for name, array in arrays.items()})
        return arrays

    monkeypatch.setattr(RayHandle, "resolve", resolve)
    return noted


def test_the_server_fetches_one_vector_of_a_group(hosts, fetched):
    size = hosts.run(recipe("fedavg"), "placement.clients_per_actor=2").models["global"].size
    # Five clients in groups of two, two and one, three rounds.
    assert fetched == [{"student": (np.float64, size)}] * 9


def test_a_lost_hosts_group_runs_again_with_the_same_bits(own, hosts, tmp_path):
    asked = {**RECIPE, "method": {"name": own("DyingOnce")}}
    result = hosts.run(asked, "placement.clients_per_actor=3", "sampling.count=6")
    assert (tmp_path / "marker").exists()
    assert any("runs again" in line and "clients 0, 1" in line for line in result.told)
    expected = run_in_process({**RECIPE, "method": {"name": "fedavg"}}, "sampling.count=6")
    assert_same_run(result, expected)


@pytest.mark.parametrize("method", ["fedavg", "pfedsd"])
def test_a_resumed_run_gives_the_same_bits(method, tmp_path):
    asked = {**recipe(method), "rounds": 4, "checkpoint": {"every": 2}}
    whole = rayfed_kd.run(asked, [f"results.folder={tmp_path}/whole"], local=True)
    rayfed_kd.run({**asked, "rounds": 3}, [f"results.folder={tmp_path}/part"], local=True)
    # As after a crash in round 4 whose last checkpoint is of round 2.
    for checkpoint in sorted((tmp_path / "part" / "checkpoints").iterdir()):
        if "3" in checkpoint.name:
            shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
    assert_same_run(rayfed_kd.resume(tmp_path / "part", ["rounds=4"], local=True), whole)


AVERAGING = [
    name
    for name, entry in METHODS.items()
    for method in [load_object(entry, "")]
    if means_suffice(method(method.options_model()()).up)
]


@pytest.mark.parametrize("method", AVERAGING)
def test_sums_give_the_plain_forms_result_up_to_rounding(method):
    base = {**FOUR_CLIENTS, "rounds": 2, "sampling": {"fraction": 1.0}, "evaluation": {"samples": False}}
    asked = small_recipe(base, method)
    plain, summed = run_in_process(asked), run_in_process(asked, "local.sum_replies=3")
    # One rounding to float32 in each of two rounds, and what an epoch makes of the first.
    for name, vector in plain.models.items():
        assert np.allclose(summed.models[name], vector, rtol=1e-5, atol=1e-6), name
    rows = zip(plain.tables["rounds"]["logged"], summed.tables["rounds"]["logged"], strict=True)
    assert all(dict(a.as_py()) == pytest.approx(dict(b.as_py()), rel=1e-5, abs=1e-6) for a, b in rows)
    # What the simulated clients send is the same, one by one.
    assert summed.tables["messages"].equals(plain.tables["messages"])


def test_a_round_is_the_plain_forms_to_a_unit_in_the_last_place():
    asked = {**recipe("fedavg"), "rounds": 1}
    plain = run_in_process(asked, "local.sum_replies=off").models["global"]
    summed = run_in_process(asked).models["global"]
    assert np.all(np.abs(summed - plain) <= np.spacing(np.abs(plain)))


def test_a_lossless_codec_is_counted_and_changes_no_sum():
    asked = recipe("fedavg")
    plain = run_in_process(asked)
    packed = run_in_process(asked, "codec.up={weights: {name: zstd}}")
    assert np.array_equal(packed.models["global"], plain.models["global"])
    assert packed.summary["bytes"]["up"] < plain.summary["bytes"]["up"]


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        ("Exploding", BadReplyError, r"client 1, client_update: reply part student has NaN or infinite"),
        ("OtherWeights", RunError, r"client 1, client_update: the server weighs 'student' by 2, .* by 1"),
        ("NoSuchNumber", StepError, r"client 0, .* no number 'images', .* there are \['samples'\]"),
        ("Keeping", RunError, r"local\.sum_replies: the method reads a reply's 'student' by itself"),
        ("Reading", RunError, r"local\.sum_replies: the method reads a reply's 'student' by itself"),
        ("Shapes", StepError, r"client 1, .* 'logits' has the shape \[3\], .* \[2\]"),
        ("ShapesOfGroups", RunError, r"'logits' have the shapes \[2\] and \[1\], .* clients \[2, 3\]"),
    ],
)
def test_what_cannot_be_summed_ends_the_run_with_the_reason(method, error, message, own):
    with pytest.raises(error, match=message):
        run_in_process(four(own(method), **({"track_oca": True} if method == "Keeping" else {})))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"method": {"name": "fedavg", "track_oca": True}}, "fedavg with these options uses single replies"),
        ({"method": {"name": "fedkf"}}, "fedkf with these options uses single replies"),
        ({"method": {"name": "kdia"}}, "kdia with these options uses single replies"),
        ({"method": {"name": "fedavg", "aggregation": "median"}}, "fedavg with these options uses single"),
        ({"method": {"name": "qffl"}}, "qffl with these options uses single replies"),
        (
            {"schedule": {"name": "quorum", "min_fraction": 0.5}, "clock": {"name": "lognormal"}},
            "schedule.name = 'quorum' may drop a reply",
        ),
        (
            {"schedule": {"name": "fedbuff", "buffer": 2}, "clock": {"name": "lognormal"}},
            "schedule.name = 'fedbuff'",
        ),
        ({"attack": {"name": "paf", "clients": [3], "theta": "random"}}, "attack replaces"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}}, "privacy weighs"),
        ({"faults": {"bad_replies": "drop"}}, "faults.bad_replies = 'drop'"),
        ({"codec": {"up": {"weights": {"name": "uniform", "bits": 8}}}}, "codec.up.weights: "),
        ({"codec": {"up": {"weights": {"name": "difference"}}}}, "codec.up.weights: "),
        ({"placement": {"clients_per_actor": 1}}, "placement.clients_per_actor = 1"),
    ],
)
def test_what_needs_single_replies_is_refused_before_the_first_round(changed, reason):
    with pytest.raises(RecipeError, match=rf"local\.sum_replies = 2: {reason}.*; expected off"):
        prepare({**recipe("fedavg"), **changed})


def test_a_method_must_declare_every_part_as_averaged(own):
    with pytest.raises(RecipeError, match=r"local\.sum_replies = 2: .*declares all parts .* as Averaged"):
        prepare(four(own("OnePartAlone")))


@pytest.mark.parametrize("size", [1, 0, "auto"])
def test_other_sizes_are_refused(size):
    with pytest.raises(RecipeError, match=r"local\.sum_replies"):
        prepare({**RECIPE, "method": {"name": "fedavg"}}, [f"local.sum_replies={size}"])


def test_groups_that_train_together_lie_within_sums():
    one = prepare(recipe("fedavg", sum_replies=3, vectorise=2)).setting

    def calls(clients):
        return [StepCall("client_update", DispatchFacts(c, 1, 1), Held({}), {}, None, -1) for c in clients]

    # Of the first three clients one trains alone: groups of a job are of about equal size.
    assert list(jobs(calls(range(5)), one)) == [([0, 1, 2], [1, 2]), ([3, 4], [2])]
    alone = prepare(recipe("fedavg", sum_replies=3, vectorise="off")).setting
    assert list(jobs(calls(range(5)), alone)) == [([0, 1, 2], [1, 1, 1]), ([3, 4], [1, 1])]
