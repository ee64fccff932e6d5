"""FedMD against hand-worked numbers, its identities, its bytes."""

import numpy as np
import pytest
import torch
from runs import reply_of, run_in_process, simulation_of, states_of
from small_recipes import FEDGEMS_TABLE_4, MADE_UP, small_recipe

from rayfed_kd.algorithms.fedmd import FedMD, Options
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import Message, OneExchange, Replies, Reply
from rayfed_kd.toolbox.losses import logit_error
from rayfed_kd.toolbox.optimizers import Optimizer

SMALL = small_recipe(MADE_UP, "fedmd", public_samples=None)
TWO = torch.tensor([[[2.0, 0.0]], [[0.0, 4.0]]])
ALONE = ["method.digest_epochs=0", "method.pretrain_public=0", "method.pretrain_private=0"]


def run(*overrides, recipe=SMALL):
    return run_in_process(recipe, *overrides)


def states(method=None):
    """Every client's state after a run; FedMD without digest, or another method."""
    # The loop by hand knows no groups.
    simulation = simulation_of(SMALL, *ALONE, "local.vectorise=off", method=method)
    simulation.run()
    return list(states_of(simulation).values())


def test_consensus_is_the_mean_of_the_logits():
    agreed = FedMD().agreed(Replies([reply_of(0, logits=TWO[0]), reply_of(1, logits=TWO[1])]))
    assert agreed.tolist() == [[1.0, 2.0]]


def test_digest_fits_logits_by_their_mean_absolute_difference():
    for own in TWO:
        assert logit_error(torch.tensor([[1.0, 2.0]]), own).item() == 1.5
        assert logit_error(torch.tensor([[1.0, 2.0]]), own, squared=True).item() == 2.5


def test_averaged_probabilities_are_not_the_softmax_of_averaged_logits():
    replies = Replies([reply_of(0, logits=TWO[0]), reply_of(1, logits=TWO[1])])
    softmax_of_mean = FedMD().agreed(replies).softmax(1)[0]
    assert softmax_of_mean.tolist() == pytest.approx([0.2689414214, 0.7310585786], abs=1e-6)
    mean_of_softmax = FedMD(Options(consensus="probabilities", digest="kl")).agreed(replies).softmax(1)[0]
    assert mean_of_softmax.tolist() == pytest.approx([0.4493916440, 0.5506083560], abs=1e-6)


def test_averaged_probabilities_keep_their_temperature():
    """At T = 2 the softened mean is that of softmax(z / 2): (1, 0) and (0, 2)."""
    method = FedMD(Options(consensus="probabilities", digest="kl", temperature=2.0))
    agreed = method.agreed(Replies([reply_of(0, logits=TWO[0]), reply_of(1, logits=TWO[1])]))
    expected = (torch.tensor([1.0, 0.0]).softmax(0) + torch.tensor([0.0, 2.0]).softmax(0)) / 2
    assert (agreed / 2).softmax(1)[0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_gradient_reaches_the_student_alone():
    teacher, student = TWO[0].clone().requires_grad_(), TWO[1].clone().requires_grad_()
    logit_error(teacher, student).backward()
    assert teacher.grad is None
    assert student.grad.tolist() == [[-0.5, 0.5]]


class Alone(OneExchange):
    """Stand-alone training, its optimiser kept: what FedMD without digest must equal."""

    def init_server(self, ctx):
        return ()

    def init_client(self, ctx):
        return (ctx.own_initial_vector(), {})

    def dispatch(self, server, ctx):
        return Message()

    def client_update(self, client, message, ctx):
        student = ctx.model(client[0])
        optimizer = Optimizer(ctx.local.optimizer, student, client[1])
        for epoch in range(ctx.local.epochs):
            for images, labels in ctx.epoch(epoch):
                optimizer.minimise(torch.nn.functional.cross_entropy(student(images), labels))
        return (student.vector(), optimizer.state()), Reply()

    def absorb(self, server, replies, ctx):
        return server

    def evaluated(self, server):
        return {}


def test_without_digest_everybody_trains_alone_bit_for_bit():
    for found, (model, moments) in zip(states(), states(Alone()), strict=True):
        assert np.array_equal(found.model, model)
        assert np.array_equal(found.private["first"], moments["first"])
        assert not found.public["steps"]


def test_without_digest_nothing_travels():
    rows = run(*ALONE).tables["rounds"].to_pylist()
    assert [(row["bytes_up"], row["bytes_down"]) for row in rows] == [(0, 0)] * 2


@pytest.mark.parametrize("public", [5000, 10_000, 15_000, 20_000, 25_000])
def test_ledger_of_a_run_is_the_published_communication(public):
    """FedGEMS Table 6: 16 clients upload 16 x N0 x 40 bytes: 3125 KiB for each 5,000; as much goes down."""
    recipe = {
        **SMALL,
        **FEDGEMS_TABLE_4,
        "data": {"name": "synthetic", "samples": 30_000, "shape": [1], "classes": 10},
        "partition": {"name": "iid", "clients": 16, "public": {"count": 25_000, "keep": public}},
        "evaluation": {"every": 1, "samples": False},
    }
    rows = run(recipe=recipe).tables["messages"].to_pylist()
    sums = {way: sum(row["bytes"] for row in rows if row["direction"] == way) for way in ("up", "down")}
    metadata = sum(row["bytes"] for row in rows if row["kind"] == "metadata")
    assert {row["kind"] for row in rows} == {"logits", "metadata"}
    assert sums["up"] / 1024 == 3125.0 * public / 5000
    assert (sums["down"] - metadata) / 1024 == 3125.0 * public / 5000


def test_public_samples_of_a_round_are_drawn_afresh_and_are_all_that_travels():
    """Seven of them, three classes, four clients: 7 x 3 x 4 x 4 = 336 bytes either way."""
    result = run("method.public_samples=7")
    for row in result.tables["rounds"].to_pylist():
        assert (row["bytes_up"], row["bytes_down"]) == (336, 336)


def test_digest_moves_a_client_towards_the_others():
    """Without labels, and with one private batch a round, the clients' predictions on public samples meet."""
    quiet = [*ALONE, "method.digest_epochs=20", "local.epochs=0.001", "rounds=6"]
    losses = [dict(row["logged"])["digest"] for row in run(*quiet).tables["rounds"].to_pylist()]
    assert losses[-1] < 0.3 * losses[0]


def test_clients_of_other_architectures_learn_together():
    models = "client_models={models: [{name: mlp, hidden: 4}, {name: mlp, hidden: 16}]}"
    result = run(models, "rounds=6", "data.samples=600")
    assert result.summary["models"]["personal"]["last"]["ua"] > 0.6  # three classes: 1/3 by chance


def test_newcomers_are_trained_first():
    """Two of four a round: in each round those not seen yet do the first training, and no others."""
    tables, steps, told = run("sampling={count: 2}", "rounds=5").tables, {}, []
    assert tables["rounds"]["cohort"].to_pylist() == [2] * 5  # however many of them are new
    for row in tables["messages"].to_pylist():
        if row["direction"] == "down" and row["kind"] == "logits":
            steps.setdefault(row["round"], []).append(row["client"])
    setting = prepare(SMALL, ["sampling={count: 2}"]).setting
    server = setting.method.init_server(setting.server_context())

    class Watching:
        def __init__(self, clients):
            self.clients = clients

        def scatter(self, step, messages):
            told.append((step.__name__, sorted(messages)))
            return Replies([reply_of(client) for client in messages])

        def broadcast(self, step, message):
            return Replies([reply_of(k, logits=torch.zeros(1, 3)) for k in self.clients])

    for number, clients in steps.items():
        server = setting.method.run_round(server, Watching(clients), setting.server_context(number))
    seen = [client for _, new in told for client in new]
    assert sorted(seen) == sorted(set(seen)) == sorted(server.started)
    assert {step for step, _ in told} == {"start"}


@pytest.mark.parametrize("name", ["fedmd", "fedgem", "fedgems"])
def test_who_is_too_late_with_its_first_training_stays_new(name):
    """Two of four make the first round; the state of the others is given up, and is untrained."""
    recipe, quorum = small_recipe(MADE_UP, name), "schedule={name: quorum, min_fraction: 0.5}"
    simulation = simulation_of(recipe, "rounds=1", "data.samples=120", "clock.name=lognormal", quorum)
    simulation.run()
    assert list(simulation.servers[0].started) == list(states_of(simulation))


NO_LABELS = "partition.public={count: 9, labels: false}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.consensus=probabilities"], "consensus: probabilities has no logits for digest: mae_logits"),
        (["method.aggregation=krum"], "needs 5 clients a round or more"),
        (
            ["method.digest=ce_kl", "method.pretrain_public=0", NO_LABELS],
            "fedmd needs the labels of public samples with these options",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_round(changes, message):
    with pytest.raises(RecipeError, match=message):
        prepare(SMALL, changes)


def test_unlabelled_public_samples_do_without_the_first_training():
    assert prepare(SMALL, [NO_LABELS, "method.pretrain_public=0"]).recipe


def test_robust_consensus_ignores_a_liar():
    honest = [reply_of(k, logits=torch.tensor([[1.0, 2.0]])) for k in range(4)]
    replies = Replies([*honest, reply_of(4, logits=torch.tensor([[1e6, -1e6]]))])
    for name in ("median", "krum", "multi_krum"):
        assert FedMD(Options(aggregation=name)).agreed(replies).tolist() == [[1.0, 2.0]]
    assert FedMD(Options(aggregation="trimmed_mean", trim=0.2)).agreed(replies).tolist() == [[1.0, 2.0]]


def test_digest_with_labels_is_cross_entropy_and_t_squared_kl():
    """Logits (0, 0), label 0: CE log 2. Consensus (2, 0) at T 2 is (1, 0): p = e / (e + 1) against 1/2."""
    method = FedMD(Options(digest="ce_kl", temperature=2.0, pretrain_public=0))
    assert method.public == "labels"
    batch = {"images": None, "said": torch.tensor([[2.0, 0.0]]), "labels": torch.tensor([0])}
    loss = method.digest_loss({"student": lambda images: torch.zeros(1, 2)}, batch, {})
    p = np.e / (np.e + 1)
    kl = p * np.log(2 * p) + (1 - p) * np.log(2 * (1 - p))
    assert loss.value.item() == pytest.approx(np.log(2) + 4 * kl, rel=1e-5)


def test_a_round_of_digest_with_labels_runs_on_the_rounds_public_samples():
    result = run("method.digest=ce_kl", "method.pretrain_public=0", "method.public_samples=7", "rounds=1")
    assert dict(result.tables["rounds"].to_pylist()[0]["logged"])["digest"] > 0


def test_controls_are_labels_alone_a_uniform_teacher_and_the_exchange_without_labels():
    """Labels alone are pre-training and local training, to the bit, and send nothing."""
    alone, without = run("method.teacher=none"), run("method.digest_epochs=0")
    assert alone.tables["metrics"].equals(without.tables["metrics"])
    assert alone.tables["rounds"]["bytes_up"].to_pylist() == [0, 0]
    assert not Options(digest="ce_kl", teacher="none").controls
    assert Options(digest="ce_kl").controls == {
        "labels alone": ["method.teacher=none"],
        "teacher at chance": ["method.teacher=uniform"],
        "no labels": ["method.pretrain_public=0", "method.digest=kl"],
    }
    assert not Options(pretrain_public=0).controls  # nothing of it is learned from public labels


@pytest.mark.parametrize(
    ("teacher", "expected"),
    # CE of (1, 0.5, 0) at label 0 is 0.6802696706; KL from uniform to its softmax 0.0816573820.
    [("none", 0.6802696706), ("uniform", 0.6802696706 + 0.0816573820)],
)
def test_loss_of_a_control_is_worked_by_hand(teacher, expected):
    method = FedMD(Options(digest="ce_kl", teacher=teacher))
    said = method.options.taught(torch.tensor([[2.0, 0.0, -1.0]]))
    batch = {"images": torch.tensor([[1.0, 0.5, 0.0]]), "labels": torch.tensor([0]), "said": said}
    found = method.digest_loss({"student": torch.nn.Identity()}, batch, {}).value
    assert float(found) == pytest.approx(expected, abs=1e-6)
