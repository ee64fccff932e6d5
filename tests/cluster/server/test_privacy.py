"""Runs with `privacy`: identities, engines, resuming, empty cohorts, and what a run says of epsilon."""

import json

import numpy as np
import pytest
from runs import Outcome, run_in_process, simulation_of
from small_recipes import FOUR_CLIENTS, THREE_CLIENTS, assert_resumed_is_whole, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.experiment.header import describe_run
from rayfed_kd.features.privacy.accountant import Mechanism

RECIPE = {**FOUR_CLIENTS, "rounds": 3, "sampling": {"fraction": 0.5}}
PUBLIC = {"partition": {**FOUR_CLIENTS["partition"], "public": {"count": 60}}}
NOISED = {"clip": 0.5, "row_clip": 2.0, "noise_multiplier": 0.1}
ADAPTIVE = {**NOISED, "adaptive": {"count_noise": 0.5}}
POISSON = {"sampling": {"fraction": 0.3, "poisson": True}}


def private(method="fedavg", base=RECIPE, privacy=NOISED, **changes):
    return {**small_recipe({**base, **changes}, method), "privacy": privacy}


@pytest.mark.parametrize("noise", ["server", "client"])
def test_without_clip_and_noise_a_whole_cohort_gives_uniform_fedavg_to_the_bit(noise):
    recipe = {
        **small_recipe(THREE_CLIENTS, "fedavg"),
        "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 3},
    }
    off = run_in_process({**recipe, "privacy": {"noise_multiplier": 0.0, "noise": noise}})
    uniform = run_in_process({**recipe, "method": {"name": "fedavg", "weighting": "uniform"}})
    by_samples = run_in_process(recipe)
    assert np.array_equal(off.models["global"], uniform.models["global"])
    assert not np.array_equal(off.models["global"], by_samples.models["global"])
    assert off.rows["privacy"][-1]["epsilon"] == np.inf


def test_without_clip_and_noise_fedmd_is_fedmd_to_the_bit():
    recipe = small_recipe({**RECIPE, **PUBLIC, "rounds": 2}, "fedmd")
    off = run_in_process({**recipe, "privacy": {"noise_multiplier": 0.0}})
    assert off.rows["clients"] == run_in_process(recipe).rows["clients"]


def test_clip_and_noise_each_change_the_model():
    models = [
        run_in_process(private(privacy={"noise_multiplier": z, "clip": clip}, rounds=1)).models["global"]
        for z, clip in ((0.0, 10.0), (0.0, 0.01), (0.01, 10.0))
    ]
    assert not np.array_equal(models[0], models[1])
    assert not np.array_equal(models[0], models[2])


VARIANTS = {
    "server": private(),
    "client": private(privacy={**NOISED, "noise": "client"}),
    "adaptive": private(privacy=ADAPTIVE),
    "adaptive at clients": private(privacy={**ADAPTIVE, "noise": "client"}),
    "poisson": private(privacy=ADAPTIVE, rounds=4, **POISSON),
    "fedmd": private("fedmd", **PUBLIC),
    "ensemble": private("feddf", privacy={**NOISED, "noise": "client"}, **PUBLIC),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_ray_gives_the_local_engines_bits(variant, hosts):
    on_hosts = hosts.run(VARIANTS[variant], "placement.clients_per_actor=2")
    local = run_in_process(VARIANTS[variant])
    assert_same_run(on_hosts, local)
    assert on_hosts.rows["privacy"] == local.rows["privacy"]


def test_a_resumed_run_is_the_whole_one_with_its_epsilon(tmp_path):
    recipe = private(privacy={**ADAPTIVE, "noise": "client"})
    resumed, whole = assert_resumed_is_whole(recipe, tmp_path, 2, 4)
    assert resumed.tables["privacy"].to_pylist() == whole.tables["privacy"].to_pylist()
    assert whole.tables["privacy"]["releases"].to_pylist() == [1, 2, 3, 4]
    clips = whole.tables["privacy"]["clip"].to_pylist()
    assert len(set(clips)) == 4
    last = whole.tables["privacy"].to_pylist()[-1]
    for name in ("round", "sim_s"):
        del last[name]
    said = json.loads((tmp_path / "whole" / "summary.json").read_text())["privacy"]
    assert said.pop("not_covered").startswith("epsilon does not cover")
    assert said == last


def models_by_round(recipe):
    """A run, and the server's model after each of its rounds."""
    simulation, outcome = simulation_of(recipe), Outcome(clients=4)
    simulation.run()
    for record in simulation.recorder:
        outcome.record(record)
    return outcome, [server.weights.numpy() for server in simulation.servers]


def test_a_cohort_may_be_empty_and_changes_nothing():
    outcome, models = models_by_round({**small_recipe({**RECIPE, **POISSON, "rounds": 6}, "fedavg")})
    cohorts = [row["cohort"] for row in outcome.rows["rounds"]]
    assert 0 in cohorts
    assert len(set(cohorts)) > 1
    for place, cohort in enumerate(cohorts[1:], start=1):
        assert np.array_equal(models[place], models[place - 1]) == (cohort == 0)
    empty = [row["round"] for row in outcome.rows["rounds"] if row["cohort"] == 0]
    assert not [row for row in outcome.rows["messages"] if row["round"] in empty]


def test_a_method_with_several_exchanges_sits_an_empty_cohort_out():
    recipe = small_recipe({**RECIPE, **POISSON, **PUBLIC, "rounds": 4}, "fedmd")
    assert 0 in [row["cohort"] for row in run_in_process(recipe).rows["rounds"]]


def test_an_empty_cohorts_model_has_noise_and_counts():
    outcome, models = models_by_round(private(**POISSON, rounds=6))
    assert 0 in [row["cohort"] for row in outcome.rows["rounds"]]
    assert not any(np.array_equal(models[place], models[place - 1]) for place in range(1, 6))
    assert [row["releases"] for row in outcome.rows["privacy"]] == [1, 2, 3, 4, 5, 6]
    expected = Mechanism(0.1, "poisson", 4, 1, 0.3).epsilon({1: 6}, 1e-5)
    assert outcome.rows["privacy"][-1]["epsilon"] == expected


def test_a_table_row_says_of_what_epsilon_is():
    row = run_in_process(private("fedmd", **PUBLIC)).rows["privacy"][-1]
    assert row["accountant"].startswith("dp-accounting")
    assert row["epsilon"] == Mechanism(0.1, "fixed", 4, 2, 0.5).epsilon({1: 3}, 1e-5)
    assert {key: row[key] for key in ("unit", "neighbours", "noise", "sampling", "delta")} == {
        "unit": "client",
        "neighbours": "replace one client",
        "noise": "server",
        "sampling": "2 of 4 clients without replacement",
        "delta": 1e-5,
    }


UNDECLARED = """
from rayfed_kd.algorithms.fedmd import FedMD
from rayfed_kd.protocol import Message


class Asking(FedMD):
    def run_round(self, server, cohort, ctx):
        cohort.questions(self.predict, Message(seed=1), answer="logits")


class Alone(FedMD):
    def run_round(self, server, cohort, ctx):
        replies = cohort.broadcast(self.predict, Message(seed=1))
        replies[0]["logits"]


class Kept(FedMD):
    def run_round(self, server, cohort, ctx):
        cohort.broadcast(self.predict, Message(seed=1)).refs("logits")
"""


@pytest.mark.parametrize("noise", ["server", "client"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Asking", "expected that part as Answers"),
        *((name, "a reply's 'logits' by itself") for name in ("Alone", "Kept")),
    ],
)
def test_what_a_method_does_not_declare_is_stopped(name, message, noise, own_module):
    own_module("own_undeclared", UNDECLARED)
    method, privacy = {"name": f"own_undeclared:{name}"}, {**NOISED, "noise": noise}
    recipe = {**RECIPE, **PUBLIC, "method": method, "privacy": privacy}
    with pytest.raises(RunError, match=message):
        run_in_process(recipe)


def test_a_clip_that_moves_is_counted_with_the_numbers_of_messages():
    def numbers(privacy):
        rows = run_in_process(private(privacy=privacy)).rows["messages"]
        return {(row["direction"], row["bytes"]) for row in rows if row["kind"] == "metadata"}

    assert numbers(NOISED) == {("up", 8)}  # `samples`
    assert numbers(ADAPTIVE) == {("up", 16), ("down", 8)}


def test_a_run_says_epsilon_on_the_screen_in_tensorboard_and_in_its_report(tmp_path):
    from rayfed_kd.results.console import round_line
    from rayfed_kd.results.summary_table import summary_notes

    events = []
    folder = tmp_path / "run"
    recipe = private(rounds=1, privacy={**NOISED, "noise": "client"})
    result = rayfed_kd.run(recipe, [f"results.folder={folder}"], local=True, on_event=events.append)
    row = result.tables["privacy"].to_pylist()[-1]
    assert f"epsilon {row['epsilon']:.4g}" in round_line(events[-1])
    (note,) = [note for note in summary_notes(result.summary) if note.startswith("privacy")]
    for text in (
        f"epsilon under secure aggregation {row['epsilon']:.4g}",
        f"single messages, {row['local_epsilon']:.4g}",
        "delta 1e-05",
        "replace one client",
        "noise at the client",
        "2 of 4 clients without replacement, 1 release,",
        "dp-accounting",
        "epsilon does not cover what preparing the data computes over all clients' samples",
    ):
        assert text in note
    assert "does not cover" in json.loads((folder / "summary.json").read_text())["privacy"]["not_covered"]
    assert "does not cover" in describe_run(rayfed_kd.prepare(recipe), "local", 1)["privacy"]
    page, markdown = rayfed_kd.report(folder, to=tmp_path / "report.html")
    assert f"{row['local_epsilon']:.6g}" in markdown.read_text()
    assert "## Privacy" in markdown.read_text()
    assert "Epsilon by round" in page.read_text()
    assert b"privacy/epsilon" in b"".join(p.read_bytes() for p in (folder / "tensorboard").iterdir())


def test_an_infinite_epsilon_is_said(tmp_path):
    from rayfed_kd.results.summary_table import summary_notes

    recipe = private(rounds=1, privacy={"noise_multiplier": 0.0})
    result = rayfed_kd.run(recipe, [f"results.folder={tmp_path / 'run'}"], local=True)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["epsilon"] == "inf"
    assert any("epsilon inf at delta" in note for note in summary_notes(result.summary))


TWICE = """
from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd.protocol import Averaged, Message, Method, Reply


class Twice(Method):
    down = {"student": "weights"}
    up = {"student": Averaged("weights")}

    def init_server(self, ctx):
        return {"sent": ctx.initial_vector(), "first": None, "second": None}

    def same(self, client, message, ctx):
        return None, Reply(student=message["student"])

    def run_round(self, server, cohort, ctx):
        sent = server["sent"]
        replies = [cohort.broadcast(self.same, Message(student=sent)) for _ in range(2)]
        first, second = (one.aggregated("student", [1.0] * len(one), into=sent) for one in replies)
        return {"sent": sent, "first": first, "second": second}

    def evaluated(self, server):
        return {"first": server["first"], "second": server["second"]}
"""
TWO_RELEASES = {**RECIPE, "model": {"name": "mlp", "hidden": 64}, "sampling": {"fraction": 1.0}}


@pytest.fixture
def twice(own_module):
    own_module("own_twice", TWICE)
    return {**TWO_RELEASES, "method": {"name": "own_twice:Twice"}}


@pytest.mark.parametrize("noise", ["server", "client"])
def test_two_releases_of_a_part_in_a_round_have_noises_of_their_own(noise, twice):
    """z = 0.5, S = 1 and m = 4 clients: each release has the deviation 0.5 / 4 in each coordinate."""
    privacy = {"clip": 1.0, "noise_multiplier": 0.5, "noise": noise}
    models = run_in_process({**twice, "privacy": privacy, "rounds": 1}).models
    start = rayfed_kd.prepare(twice).setting.module_pool().initial_vector("model").numpy()
    variance, count = (0.5 / 4) ** 2, len(start)
    # Four deviations of a mean of squares of normal numbers: its own is sqrt(2 / n) of it.
    close = pytest.approx(1.0, abs=4 * (2 / count) ** 0.5)
    for name in ("first", "second"):
        assert np.square(models[name].astype(float) - start).mean() / variance == close
    assert np.square(models["first"].astype(float) - models["second"]).mean() / (2 * variance) == close


def test_a_method_with_two_releases_has_the_same_bits_on_hosts_and_resumed(twice, hosts, tmp_path):
    recipe = {**twice, "privacy": {"clip": 1.0, "noise_multiplier": 0.5}, "rounds": 3}
    assert_same_run(hosts.run(recipe, "placement.clients_per_actor=2"), run_in_process(recipe))
    assert_resumed_is_whole({**recipe, "checkpoint": {"every": 1}}, tmp_path, 2, 3)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "noise_multiplier",
            1e300,
            r"privacy.noise_multiplier = 1e\+300: expected a number of at most 1000000",
        ),
        ("noise_multiplier", 1e-300, "noise_multiplier is 1e-300; expected 0, or at least 1e-06"),
        ("clip", 1e300, r"privacy.clip = 1e\+300: expected a number of at most 1000000"),
        ("row_clip", 1e-300, "privacy.row_clip = 1e-300: expected a number of at least 0.000001"),
    ],
)
def test_a_bound_without_an_epsilon_is_refused_in_a_line(key, value, message):
    with pytest.raises(RecipeError, match=message) as caught:
        rayfed_kd.prepare(private(privacy={**NOISED, key: value}))
    assert "\n" not in str(caught.value)


SERVER = ("fedavg", "fedavgm", "fedprox", "moon", "fedntd", "fedcog", "fedgkd", "fml", "pfedsd", "fedper")
SERVER += ("fedrep", "lg_fedavg", "fedmd", "dsfl")


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["server", "client"])
@pytest.mark.parametrize("method", [*SERVER, "feddf", "fedkf", "cronus", "fedper_plus"])
def test_methods_that_the_page_names_run(method, noise):
    public = method in ("fedmd", "dsfl", "feddf", "cronus")
    recipe = private(method, {**RECIPE, **PUBLIC} if public else RECIPE, {**NOISED, "noise": noise}, rounds=2)
    if noise == "server" and method not in SERVER:
        with pytest.raises(RecipeError, match=r"privacy\.noise = 'server'"):
            run_in_process(recipe)
        return
    row = run_in_process(recipe).rows["privacy"][-1]
    assert row["releases"] == 2
    assert (row["epsilon"] is None) == (method not in SERVER)


@pytest.mark.slow
def test_every_method_with_one_exchange_outlives_an_empty_cohort():
    for method in SERVER:
        if method not in ("fedmd", "dsfl"):
            outcome = run_in_process(private(method, rounds=5, **POISSON))
            assert 0 in [row["cohort"] for row in outcome.rows["rounds"]]
