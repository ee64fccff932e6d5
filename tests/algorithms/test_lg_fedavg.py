"""LG-FedAvg: averages by hand, the identities with FedAvg and Stand-Alone, who keeps what."""

import pytest
import torch
from runs import run_in_process

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare

LAYERS = 5  # of LeNet-5 and of the smallest bottleneck ResNet


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 3.1), ("uniform", 7 / 3)])
def test_average_by_hand(weighting, expected, bench, made_replies):
    """Heads of 1, 2 and 4 throughout, n 10, 30, 60."""
    table = bench({"name": "lg_fedavg", "weighting": weighting})
    ctx = table.server()
    server = table.method.init_server(ctx)
    rows = [({"head": [value] * len(server)}, n) for value, n in ((1.0, 10), (2.0, 30), (4.0, 60))]
    mean = table.method.absorb(server, made_replies(*rows), ctx)
    torch.testing.assert_close(mean, torch.full_like(server, expected))


def test_last_layer_alone_is_its_weights_and_biases(bench):
    """lenet5 ends in 84 x 10 weights and 10 biases."""
    table = bench({"name": "lg_fedavg"})
    ctx = table.server()
    server = table.method.init_server(ctx)
    assert torch.equal(server, ctx.initial_vector()[-850:])


def test_all_layers_shared_are_fedavg_bit_for_bit(bench):
    """Also of a model with BatchNorm, whose buffers are averaged as well."""
    for model in ("{name: lenet5}", "{name: bottleneck_resnet, width: 2}"):
        changes = (f"model={model}", "local.epochs=1", "rounds=2")
        plain = bench({"name": "fedavg"}, *changes).run()["global"]
        table = bench({"name": "lg_fedavg", "shared_layers": LAYERS}, *changes)
        servers, absorb = [], table.method.absorb
        object.__setattr__(
            table.method, "absorb", lambda *words, s=servers, a=absorb: s.append(a(*words)) or s[-1]
        )
        table.run()
        assert torch.equal(servers[-1], plain)


def test_no_layers_shared_is_stand_alone_bit_for_bit(client_states, small):
    alone, shared = (
        client_states({**small, "method": method})
        for method in ({"name": "standalone"}, {"name": "lg_fedavg", "shared_layers": 0})
    )
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))
    none = prepare({**small, "method": {"name": "lg_fedavg", "shared_layers": 0}}).setting
    assert none.notes == ["method.shared_layers = 0 of 5 layers: as with the method standalone"]


def test_first_layers_stay_at_the_client_and_the_last_come_from_the_server(bench):
    table = bench({"name": "lg_fedavg", "shared_layers": 2}, "local.optimizer.lr=1e-300")
    ctx = table.server()
    server = table.method.init_server(ctx)
    table.states[0] = ctx.initial_vector() + 1.0
    (reply,) = table.exchange(server + 5.0, [0])
    kept, size = table.states[0], len(server)
    assert torch.equal(reply["head"], server + 5.0)
    assert torch.equal(kept[:-size], ctx.initial_vector()[:-size] + 1.0)
    assert torch.equal(kept[-size:], server + 5.0)


def test_bytes_are_those_of_the_shared_layers(small):
    """20 clients, 512 features and 100 classes are FedTGP's count: 20 x 2 x (512 x 100 + 100) numbers."""
    recipe = {
        **small,
        "method": {"name": "lg_fedavg"},
        "model": {"name": "mlp", "hidden": 512},
        "data": {"name": "synthetic", "samples": 300, "classes": 100, "shape": [1, 4, 4]},
        "partition": {"name": "iid", "clients": 20},
    }
    rows = run_in_process(recipe, "rounds=1", "sampling.fraction=1.0", "local.epochs=1").rows["messages"]
    assert sum(row["bytes"] for row in rows if row["kind"] == "weights") == 4 * 2_052_000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method.shared_layers=6"], "method.shared_layers = 6: the model has 5 layers"),
        (
            ["client_models={models: [{name: lenet5}, {name: mlp, hidden: 7}]}"],
            r"client_models: the last 1 layers have parameters of \[\[10, 7\], \[10\]\] in one model",
        ),
    ],
)
def test_layers_that_cannot_be_shared_are_refused(overrides, message, small):
    with pytest.raises(RecipeError, match=message):
        prepare({**small, "method": {"name": "lg_fedavg"}}, overrides)
