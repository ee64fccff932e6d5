"""Attacks in a run: whose replies change, by how much, and what is refused."""

import dataclasses

import numpy as np
import pytest
import torch
from broken_methods import Keeping
from runs import reply_of, run_in_process, simulation_of
from small_recipes import MADE_UP, refused

from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.cluster.server.cohort import EngineCohort
from rayfed_kd.cluster.server.features.round_features import Poisoning
from rayfed_kd.cluster.server.sender import ObservedClients
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import Message
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.sections.on_the_way import AttackRecipe
from rayfed_kd.setting.attacks import attackers

RECIPE = {
    **MADE_UP,
    "method": {"name": "fedavg", "weighting": "uniform"},
    "data": {**MADE_UP["data"], "samples": 90, "test_samples": 60},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 5, "public": {"fraction": 0.5}},
}
PAF = "attack={name: paf, clients: [3], scale: 10.0}"
FEDGEMS = "method={name: fedgems, server: {name: mlp, hidden: 16}, server_batch_size: 16}"


class Sending(Keeping):
    up = {"student": "weights", "logits": "logits", "counted": "counts"}  # noqa: RUF012


def run(*overrides):
    return run_in_process(RECIPE, *overrides)


def simulation(*overrides):
    return simulation_of(RECIPE, *overrides)


def poisoning(attack, clients=5):
    recipe = load_recipe(RECIPE, [f"attack={attack}", f"partition.clients={clients}"])
    return Poisoning(recipe, Sending(), Held)


def reply(client, **parts):
    return reply_of(client, 10 + client, **parts)


HONEST = [[1.0, 2.0], [1.2, 1.8], [0.8, 2.1], [1.1, 2.3]]


def five(**extra):
    return [reply(k, student=v, **extra) for k, v in enumerate([*HONEST, [77.0, 77.0]])]


def sent(found, name="student"):
    return [one[name].tolist() for one in found]


def test_only_the_attackers_reply_is_replaced():
    """B of the worked numbers: mean (1.025, 2.05), so theta' = 10 gives (11.025, 12.05)."""
    found = sent(poisoning("{name: paf, clients: [4], scale: 10.0}").replies(five()))
    assert found[:4] == [pytest.approx(row) for row in HONEST]
    assert found[4] == pytest.approx([11.025, 12.05])


def test_little_is_enough_by_one_and_a_half_deviations():
    found = sent(poisoning("{name: lie, clients: [4]}").replies(five()))
    assert found[4] == pytest.approx([1.2468529919, 2.3204163457])


def test_of_two_attackers_the_first_goes_far_and_the_second_is_the_mean():
    both = [*five(), reply(9, student=[0.0, 0.0])]
    # The worked example has four honest ones.
    found = sent(poisoning("{name: ofom, clients: [9, 4], scale: 10.0}", clients=10).replies(both))
    assert found[4:] == [pytest.approx([3.025, 4.05]), pytest.approx([11.025, 12.05])]


def test_attackers_start_from_all_honest_replies_also_two_of_one_client():
    """In an asynchronous update client 0 may reply twice: (1 + 1.2 + 0.8 + 1.1 + 4.4) / 5 = 1.7."""
    found = sent(poisoning("{name: paf, clients: [4]}").replies([*five(), reply(0, student=[4.4, 2.3])]))
    assert found[4] == pytest.approx([11.7, 12.1])


def test_parts_of_other_kinds_and_numbers_stay_and_references_hold():
    found = poisoning("{name: paf, clients: [4], scale: 1.0}").replies(five(counted=[3.0]))
    assert sent(found, "counted") == [[3.0]] * 5
    assert found[4]["samples"] == 14
    assert found[4].ref("student").load().tolist() == pytest.approx([2.025, 3.05])
    assert found[4].ref("counted").load().tolist() == [3.0]


def test_named_parts_alone_are_poisoned():
    found = poisoning("{name: paf, clients: [4], scale: 1.0, parts: [logits]}").replies(five(logits=[0.0]))
    assert (sent(found)[4], sent(found, "logits")[4]) == ([77, 77], [1.0])


def test_replies_without_the_part_are_left_alone():
    found = poisoning("{name: paf, clients: [4]}").replies([reply(k, counted=[1.0]) for k in range(5)])
    assert sent(found, "counted") == [[1.0]] * 5


def test_where_only_attackers_reply_their_own_work_stands_in_for_the_honest():
    found = sent(poisoning("{name: paf, clients: [0, 1]}").replies(five()[:2]))
    assert found == [pytest.approx([11.1, 11.9])] * 2


def test_z_from_a_formula_counts_the_replies_that_are_there():
    """Baruch, n = 5, f = 1: s = 3 - 1 = 2, (5 - 1 - 2) / 4 = 1/2, so z = 0: the honest mean."""
    attack = poisoning("{name: lie, clients: [4], z: baruch}")
    assert sent(attack.replies(five()))[4] == pytest.approx([1.025, 2.05])
    # Three honest and two of client 4: s = 3 - 2 = 1, (5 - 2 - 1) / 3 = 2/3: 1.0333 + 0.43073 x 0.16997.
    assert sent(attack.replies([*five()[1:], reply(4, student=[0.0, 0.0])]))[4][0] == pytest.approx(1.1065428)


def test_paf_moves_the_plain_mean_by_its_share_of_theta():
    """Uniform mean of four honest and mu + 10: mu + 10 / 5."""
    plain, attacked = (simulation(*changes) for changes in ([], [PAF]))
    weights = []
    for one in (plain, attacked):
        ctx, method = one.setting.server_context(1), one.setting.method
        server = one.begin().server
        replies = EngineCohort(1, one.run_state).broadcast(method.client_update, method.dispatch(server, ctx))
        weights.append((replies, method.absorb(server, replies, ctx).weights))
    honest = torch.stack([r["student"] for r in weights[0][0] if r.client != 3]).double().mean(0)
    torch.testing.assert_close(weights[1][1].double(), honest + 2, atol=1e-5, rtol=0)


@pytest.mark.parametrize("aggregation", ["median", "krum", "multi_krum", "trimmed_mean, trim: 0.2"])
def test_robust_aggregation_stays_near_the_honest(aggregation):
    change = f"method={{name: fedavg, weighting: uniform, aggregation: {aggregation}}}"
    honest, plain = run().models["global"], run(PAF).models["global"]
    robust = run(PAF, change).models["global"]
    assert np.abs(plain - honest).mean() > 2
    assert np.abs(robust - honest).mean() < 0.1


@pytest.mark.parametrize(
    "method",
    ["method.name=fedavg", "method={name: fedmd}", "method={name: cronus}", "method={name: dsfl}", FEDGEMS],
)
def test_an_attack_without_attackers_changes_no_bit(method):
    attacks = ("null", "{name: paf, clients: []}", "{name: lie, fraction: 0.0}")
    results = [run(method, f"attack={attack}") for attack in attacks]
    for name in ("metrics", "clients", "messages"):
        assert all(other.tables[name].equals(results[0].tables[name]) for other in results[1:])


@pytest.mark.parametrize("method", ["fedavg", "feddf", "fedmd", "cronus", "dsfl", "fedgem"])
def test_an_attack_changes_what_is_learned_and_no_byte(method):
    change = FEDGEMS.replace("fedgems", "fedgem") if method == "fedgem" else f"method={{name: {method}}}"
    honest, attacked = (run(change, "rounds=1", *more) for more in ([], [PAF]))
    assert honest.tables["messages"].equals(attacked.tables["messages"])
    if method in ("fedavg", "feddf"):
        assert np.abs(honest.models["global"] - attacked.models["global"]).mean() > 0.1
    else:
        losses = [dict(result.tables["rounds"].to_pylist()[0]["logged"]) for result in (honest, attacked)]
        assert losses[0] != losses[1]


def test_answers_to_questions_are_poisoned_row_by_row():
    one = simulation(FEDGEMS, PAF)
    method = one.setting.method
    answers = []
    one.begin()
    for features in ((), one.run_state.features):
        cohort = EngineCohort(1, dataclasses.replace(one.run_state, features=features))
        questions = cohort.questions(method.predict, Message(), answer="logits", question="ids")
        answers.append(questions.ask(torch.tensor([7, 2])))
    honest, attacked = answers
    mean = honest[[0, 1, 2, 4]].double().mean(0)
    torch.testing.assert_close(attacked[3].double(), mean + 10, atol=1e-5, rtol=0)
    assert torch.equal(attacked[[0, 1, 2, 4]], honest[[0, 1, 2, 4]])


def test_a_poisoned_prediction_moves_the_plain_mean_of_ds_fl_by_its_share():
    """Labels are the mean of four honest ones and mu + 10: mu + 10 / 5, off the simplex."""
    one = simulation("method={name: dsfl, aggregation: sa}", PAF)
    method = one.setting.method
    one.begin()
    replies = EngineCohort(1, one.run_state).broadcast(method.update, Message(seed=1))
    honest = torch.stack([r["probabilities"] for r in replies if r.client != 3]).double().mean(0)
    torch.testing.assert_close(replies[3]["probabilities"].double(), honest + 10, atol=1e-5, rtol=0)
    torch.testing.assert_close(method.agreed(replies).double(), honest + 2, atol=1e-5, rtol=0)


def test_round_releases_poisoned_replies_as_well():
    """A view that stays keeps its object in the store's memory, as long as a slot has the reply."""
    one, method = (made := simulation(PAF)), made.setting.method
    message = method.dispatch(one.begin().server, one.setting.server_context(1))
    cohort = EngineCohort(1, one.run_state)
    replies = cohort.broadcast(method.client_update, message)
    views = [reply.parts.resolve() for reply in replies]
    assert all(reply.parts.resolve() is view for reply, view in zip(replies, views, strict=True))
    cohort.end_round()
    assert all(reply.parts.resolve() is reply.parts._handle.resolve() for reply in replies)
    assert all(reply.parts._arrays is None for reply in replies)


def test_attackers_are_drawn_once_from_a_stream_of_their_own():
    attack = AttackRecipe(name="lie", fraction=0.4)
    drawn = [attackers(attack, 10, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 4
    assert [len(attackers(AttackRecipe(name=name), 10, 1)) for name in ("paf", "lie", "ofom")] == [1, 1, 2]


def test_random_theta_is_the_same_at_every_sample_and_in_every_exchange():
    """[C] numbers along the last dimension, so that softmax sees them."""
    work = poisoning("{name: paf, clients: [1], scale: 10.0, theta: random}")
    rows = torch.zeros(2, 4, 3)
    first, again = work.answers("logits", [0, 1], rows), work.answers("logits", [0, 1], rows[:, :2])
    assert torch.equal(first[1, 0], first[1, 3])
    assert torch.equal(first[1, :2], again[1])
    assert 1 < first[1].std() < 30
    assert len(first[1, 0].unique()) == 3
    assert torch.equal(first[0], rows[0])


def test_looks_for_people_see_honest_replies():
    one, method = (made := simulation(PAF)), made.setting.method
    message = method.dispatch(one.begin().server, one.setting.server_context(1))
    clients = EngineCohort(1, one.run_state).clients
    looked = ObservedClients(clients, 1, one.run_state).broadcast(method.client_update, message)
    honest = ObservedClients(clients, 1, dataclasses.replace(one.run_state, features=()))
    again = honest.broadcast(method.client_update, message)
    assert all(torch.equal(a["student"], b["student"]) for a, b in zip(looked, again, strict=True))


def test_ray_gives_the_local_engines_bits_under_attack(hosts):
    changes = ["method={name: fedavg, track_oca: true}", "attack={name: ofom, fraction: 0.4}"]
    expected = run_in_process(RECIPE, *changes)
    found = hosts.run(RECIPE, *changes, "placement.clients_per_actor=2")
    assert all(np.array_equal(found.models[name], expected.models[name]) for name in ("global", "oca"))
    assert found.tables["messages"].equals(expected.tables["messages"])


@pytest.mark.parametrize(("change", "message"), refused("poisoning"))
def test_what_does_not_fit_is_refused_before_the_first_round(change, message):
    with pytest.raises(RecipeError, match=message):
        prepare(RECIPE, change.splitlines())
