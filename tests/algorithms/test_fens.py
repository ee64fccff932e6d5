"""FENS: f and FedAdam by hand, proxy samples, the one shot, what travels, composites and what they refuse."""

import math

import numpy as np
import pytest
import torch
from runs import reply_of, run_in_process
from small_recipes import MADE_UP
from torch import nn

import rayfed_kd
from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd.algorithms.fens import FENS, MODEL, Options, ServerState, fedadam, samples_in
from rayfed_kd.errors import MisuseError, RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import Evaluated, Message, Replies, composite
from rayfed_kd.protocol.evaluated import check_evaluated
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.optimizers import StepRule

LOGITS = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])  # of two models
MODELS = [{"name": "mlp", "hidden": 8}, {"name": "mlp", "hidden": 4}]
# A perceptron of 64 pixels and 3 classes with so many hidden units.
LENGTHS = {hidden: 65 * hidden + 3 * (hidden + 1) for hidden in (8, 4)}
HIDDEN = [8, 4, 8, 4]  # of the four clients
NUMBERS = {"linear": 4 + 3, "linear_by_class": 4 * 3 + 3, "mlp": 8 * 13 + 3 * 9}  # A of 4 models, 3 classes


def several(*, rounds=3, **options):
    method = {"name": "fens", "batch_size": 4, "proxy": 0.3, **options}
    return {**MADE_UP, "client_models": {"models": MODELS}, "method": method, "rounds": rounds}


@pytest.mark.parametrize(
    ("aggregator", "f", "expected"),
    [
        ("mean", [], [1.0, 0.5]),
        ("label_counts", [30.0, 10.0, 10.0, 30.0], [0.75, 0.375]),
        ("label_counts", [30.0, 0.0, 10.0, 0.0], [0.75, 0.25]),  # nobody has class 1: (0 + 1) / 2 / 2
        ("linear", [1.0] * 4, [3.0, 2.0]),
        ("linear", [0.5, 2.0, 0.0, -1.0], [1.0, 1.0]),
        ("linear_by_class", [1.0] * 6, [3.0, 2.0]),
        ("linear_by_class", [0.5, 1.0, 1.0, 3.0, 0.25, 0.0], [1.25, 3.0]),
    ],
)
def test_aggregators_by_hand(aggregator, f, expected):
    method = FENS(Options(aggregator=aggregator))
    assert method.aggregated(torch.tensor(f), LOGITS).tolist() == [expected]


def test_perceptron_is_torchs_on_the_models_logits_one_after_the_other():
    layers = nn.Sequential(nn.Flatten(), nn.Linear(2 * 3, 2 * 2), nn.ReLU(), nn.Linear(2 * 2, 3))
    logits = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1))
    f = torch.cat([parameter.detach().flatten() for parameter in layers.parameters()])
    expected = layers(logits).detach()
    torch.testing.assert_close(FENS(Options(aggregator="mlp")).aggregated(f, logits), expected)


@pytest.mark.parametrize(("classes", "width", "length"), [(10, 2, 8_450), (10, 4, 16_890), (100, 2, 84_140)])
def test_perceptrons_length_of_twenty_models(bench, classes, width, length):
    ctx = bench({"name": "fens"}).server()
    ctx.classes = classes
    f = FENS(Options(width=width)).initial(Replies([reply_of(k, 1) for k in range(20)]), ctx)
    assert f.shape == (length,)
    first = f[: 20 * width * (20 * classes + 1)]
    assert first.abs().max() <= (20 * classes) ** -0.5 < 1.01 * first.abs().max()


def test_fedadam_by_hand():
    server = ServerState(torch.empty(0), "", *[torch.zeros(1, dtype=torch.float64)] * 3)
    change = torch.tensor([0.5], dtype=torch.float64)
    once = fedadam(server, change, 0.001)
    twice = fedadam(once, change, 0.001)
    assert once.aggregator.item() == pytest.approx(0.0009803922, abs=1e-10)
    assert (once.first.item(), once.second.item()) == pytest.approx((0.05, 0.0025))
    assert (twice.aggregator - once.aggregator).item() == pytest.approx(0.0013280458, abs=1e-10)
    assert (twice.first.item(), twice.second.item()) == pytest.approx((0.095, 0.004975))


class AnsweringCohort:
    """A cohort whose answers are given; it keeps the messages."""

    def __init__(self, *replies):
        self.clients, self.replies = [reply.client for reply in replies], replies

    def scatter(self, step, messages):
        self.messages = messages
        return Replies(self.replies)


def test_a_round_weighs_clients_by_the_samples_of_their_step_and_leaves_late_models_out(bench):
    table = bench({"name": "fens", "aggregator": "linear", "server_lr": 1.0})
    zeros = torch.zeros(2)
    server = ServerState(torch.ones(3), composite(["model"]), torch.ones(2), zeros, zeros, having=(1,))
    answers = [
        reply_of(0, 3, aggregator=torch.tensor([2.0, 1.0])),
        reply_of(1, 1, aggregator=torch.tensor([1.0, 5.0])),
        reply_of(2, 9, student=torch.ones(3)),
    ]
    cohort = AnsweringCohort(*answers)
    after = table.method.run_round(server, cohort, table.server(2))
    change = torch.tensor([0.75, 1.0])  # (3 (2, 1) + (1, 5)) / 4 - (1, 1)
    torch.testing.assert_close(after.aggregator, 1 + 0.1 * change / (0.1 * change + 1e-3))
    assert after.having == (0, 1)
    assert ["models" in message for message in cohort.messages.values()] == [True, False, True]


def test_proxy_samples_are_a_tenth_and_never_trained_on(bench):
    ctx = bench({"name": "fens"}).client(0)
    proxy = FENS(Options()).proxy(ctx.num_samples)
    assert int(proxy.sum()) == ctx.num_samples // 10 > 0
    assert int(FENS(Options(proxy=0.29)).proxy(100).sum()) == 29  # 28.999999999999996 in floating point
    assert proxy.nonzero().flatten().tolist() == list(range(9, ctx.num_samples, 10))
    for index in range(2):
        seen = [number for drawn in samples_in(ctx, index, ~proxy) for number in drawn[0].tolist()]
        assert sorted(seen) == (~proxy).nonzero().flatten().tolist()
    told = [number for drawn in samples_in(ctx, 0, proxy, trains=False) for number in drawn[0].tolist()]
    assert sorted(told) == proxy.nonzero().flatten().tolist()


def test_a_cosine_falls_over_the_steps_without_proxy_samples(bench, monkeypatch):
    words = ["local.epochs=2", "local.batch_size=8", "local.lr_schedule={steps: {name: cosine}}"]
    table, factors = bench({"name": "fens", "proxy": 0.5}, *words), []
    ctx = table.client(0)
    monkeypatch.setattr(StepRule, "step", lambda *_: factors.append(_[-1]))
    table.method.train(None, Message(), ctx)
    steps = 2 * math.ceil((ctx.num_samples - ctx.num_samples // 2) / 8)
    assert factors == pytest.approx([(1 + math.cos(math.pi * n / steps)) / 2 for n in range(steps)])


def test_without_proxy_samples_a_model_is_trained_as_alone_bit_for_bit(bench):
    table = bench({"name": "fens", "proxy": 0.0})
    _, reply = table.method.train(None, Message(), table.client(2))
    ctx = table.client(2)
    alone = ctx.model(ctx.own_initial_vector())
    train_on_labels(alone, ctx)
    assert torch.equal(reply["student"], alone.vector())
    assert "label_counts" not in reply


def test_ensemble_is_the_mean_of_all_models_logits_of_any_architecture():
    """Round 1 leaves the models; what they say of the official test set is counted here by another way."""
    outcome = run_in_process(several(rounds=1, aggregator="mean"))
    setting = prepare(several()).setting
    pool, data = setting.module_pool(), setting.device_data()
    images, labels = data.gather(torch.arange(40), "test")
    vectors = torch.from_numpy(outcome.models["ensemble"]).split([LENGTHS[hidden] for hidden in HIDDEN])
    names = setting.models_by_client
    models = [pool.lend(name, vector).freeze() for name, vector in zip(names, vectors, strict=True)]
    logits = sum(model(data.normalise(images)).double() for model in models) / 4
    (row,) = outcome.rows["metrics"]
    assert row["server_accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert row["server_loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_the_ensembles_models_have_the_frozen_layers_that_clients_trained_on():
    """Drawn under another name they were others, and the ensemble's accuracy was that of chance."""
    setting = prepare(
        {**MADE_UP, "method": {"name": "fens"}, "model": {"name": "zoo_modules:FrozenBody"}}
    ).setting
    pool, images = setting.module_pool(), setting.device_data().gather(torch.arange(9)).images.float()
    vector = pool.initial_vector("model")
    assert torch.equal(*(pool.lend(name, vector).freeze()(images) for name in ("model", MODEL)))


def test_of_one_client_the_mean_is_its_own_model():
    one = {**several(rounds=1, aggregator="mean"), "partition": {"name": "iid", "clients": 1}}
    own = {**one, "client_models": None, "method": {"name": "fens", "aggregator": "mean"}}
    outcome = run_in_process(own)
    setting = prepare(own).setting
    model = setting.module_pool().lend("model", torch.from_numpy(outcome.models["ensemble"])).freeze()
    data = setting.device_data()
    images, labels = data.gather(torch.arange(40), "test")
    expected = float((model(data.normalise(images)).argmax(1) == labels).double().mean())
    assert outcome.rows["metrics"][0]["server_accuracy"] == pytest.approx(expected)


def test_before_the_first_models_come_nothing_is_evaluated():
    """Each client joins a round by itself: nobody is in the first two."""
    poisson = {"seed": 0, "sampling": {"poisson": True, "fraction": 0.25}}
    rows = run_in_process({**several(aggregator="mean"), **poisson}).rows
    assert [row["cohort"] for row in rows["rounds"]] == [0, 0, 1]
    assert [row["round"] for row in rows["metrics"]] == [3]


@pytest.mark.parametrize("aggregator", NUMBERS)
def test_models_go_up_and_down_once_and_the_aggregator_each_round(aggregator):
    rows = run_in_process(several(aggregator=aggregator)).rows["messages"]
    weights = {
        (row["round"], row["client"], row["direction"]): row["bytes"]
        for row in rows
        if row["kind"] == "weights"
    }
    f, every = 4 * NUMBERS[aggregator], 4 * sum(LENGTHS[hidden] for hidden in HIDDEN)
    expected = {}
    for client, hidden in enumerate(HIDDEN):
        expected[1, client, "up"] = 4 * LENGTHS[hidden]
        expected[2, client, "down"], expected[3, client, "down"] = every + f, f
        expected[2, client, "up"] = expected[3, client, "up"] = f
    assert weights == expected
    name = 'model mlp {"hidden": 4}'
    told = {(row["round"], row["bytes"]) for row in rows if row["kind"] == "ids"}
    assert told == {(2, 2 * len(f"{MODEL}\n") + 2 * len(f"{name}\n"))}


@pytest.mark.parametrize("aggregator", ["mean", "label_counts"])
def test_aggregators_that_do_not_learn_need_one_round(aggregator):
    outcome = run_in_process(several(aggregator=aggregator))
    assert {row["round"] for row in outcome.rows["messages"]} == {1}
    counts = [row["bytes"] for row in outcome.rows["messages"] if row["kind"] == "counts"]
    assert counts == [4 * 3] * 4 * (aggregator == "label_counts")
    assert len({row["server_loss"] for row in outcome.rows["metrics"]}) == 1


def test_logits_a_client_keeps_are_those_of_all_models_on_its_proxy_samples(client_states):
    recipe = several(aggregator="linear")
    outcome, states = run_in_process(recipe), client_states(recipe)
    setting = prepare(recipe).setting
    pool, data = setting.module_pool(), setting.device_data()
    split = [LENGTHS[hidden] for hidden in HIDDEN]
    vectors = torch.from_numpy(outcome.models["ensemble"])[: sum(split)].split(split)
    models = [
        pool.lend(name, one).freeze() for name, one in zip(setting.models_by_client, vectors, strict=True)
    ]
    for part, (logits, labels) in zip(setting.partition.train, states, strict=True):
        numbers = np.arange(len(part))
        chosen = part[np.floor((numbers + 1) * 0.3) > np.floor(numbers * 0.3)]
        images, wanted = data.gather(torch.from_numpy(chosen))
        expected = torch.stack([model(data.normalise(images)) for model in models], 1)
        assert sorted(labels.tolist()) == sorted(wanted.tolist())
        torch.testing.assert_close(logits.sort(0).values, expected.sort(0).values)


def test_the_aggregator_learns():
    """With a large rate, an ensemble that counts one useless model like the others gets better."""
    outcome = run_in_process(several(rounds=40, aggregator="linear_by_class", server_lr=0.05, batch_size=64))
    losses = [
        row["aggregator_ce"] for row in map(dict, (row["logged"] for row in outcome.rows["rounds"][1:]))
    ]
    assert losses[-1] < 0.8 * losses[0]


def test_smoothing_and_weights_reach_the_loss_of_the_aggregator(bench):
    weights = [1.0] * 9 + [4.0]
    table = bench(
        {"name": "fens", "aggregator": "linear"},
        "local.label_smoothing=0.3",
        f"local.class_weights={weights}",
    )
    logits = torch.randn(5, 2, 10, generator=torch.Generator().manual_seed(1))
    labels, f = torch.tensor([0, 9, 3, 9, 1]), torch.ones(12, requires_grad=True)
    sums = (f[:2, None] * logits).sum(1) + f[2:]
    nn.functional.cross_entropy(sums, labels, torch.tensor(weights), label_smoothing=0.3).backward()
    _, reply = table.method.step((logits, labels), Message(aggregator=torch.ones(12)), table.client(0))
    torch.testing.assert_close(reply["aggregator"], 1 - f.grad)


def test_batches_of_one_are_of_the_samples_without_proxy_ones():
    """Two of twelve are proxy: ten are 9 and 1, and one batch of 11 at most."""
    model, partition = {"name": "zoo_modules:BatchNorm1d"}, {"name": "iid", "clients": 4}
    recipe = {**several(proxy=0.2), "client_models": None, "model": model, "partition": partition}
    with pytest.raises(
        RecipeError, match=r"client 0 has 10 samples to train on, and .* leaves a batch of one"
    ):
        prepare(recipe, ["local.batch_size=9"])
    prepare(recipe, ["local.batch_size=11"])


def test_composites_are_checked_and_not_exported(tmp_path):
    lengths = {"model": 3, "head": 2}
    good = Evaluated(torch.ones(6), composite(["model", "head"]))  # one number behind its parts'
    method = FENS(Options())
    check_evaluated({"ensemble": good}, lengths, method)
    with pytest.raises(MisuseError, match="of several models; expected FedAvg to define composed"):
        check_evaluated({"ensemble": good}, lengths, FedAvg())
    with pytest.raises(MisuseError, match=r"torch.float32 \[4\]; expected the 5 floats"):
        check_evaluated({"ensemble": Evaluated(torch.ones(4), composite(["model", "head"]))}, lengths, method)
    with pytest.raises(MisuseError, match="of the architecture 'tail'; there are head, model"):
        check_evaluated({"ensemble": Evaluated(torch.ones(6), composite(["model", "tail"]))}, lengths, method)
    rayfed_kd.run(several(rounds=1), [f"results.folder={tmp_path / 'run'}"], local=True)
    with pytest.raises(RecipeError, match="ensemble is several models that predict together"):
        rayfed_kd.export(tmp_path / "run", "ensemble", tmp_path / "m")
