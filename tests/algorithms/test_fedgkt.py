"""FedGKT against hand-worked numbers and against itself in plain torch; its identities, its bytes."""

import copy

import numpy as np
import pytest
import torch
from contexts import client_context
from runs import ended, simulation_of, states_of
from safetensors.torch import load_file
from small_recipes import LAYERED, refused
from torch import nn
from torch.nn import functional as F

import rayfed_kd
from rayfed_kd.algorithms.fedgkt import FedGKT, Options
from rayfed_kd.data.batches import DeviceData
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.toolbox.server_models.split_learning import transfer_loss

SMALL = {
    **LAYERED,
    "method": {"name": "fedgkt", "cut": "C2", "server": {"name": "dense", "units": [8]}, "server_epochs": 2},
}
H = 16 * 2 * 2  # C2 of m1 on 8x8: 16 maps, twice pooled
T, U = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1.0, 0.5, 0.0]])
RESNETS = {
    "method": {
        "name": "fedgkt",
        "server": {"name": "bottleneck_resnet", "blocks": [1, 1, 2]},
        "server_epochs": 1,
    },
    "model": {"name": "bottleneck_resnet", "blocks": [1, 1, 1]},
    "data": {"name": "synthetic", "samples": 8, "test_samples": 4, "shape": [3, 32, 32], "classes": 10},
    "partition": {"name": "iid", "clients": 2},
    "rounds": 1,
    "sampling": {"fraction": 1.0},
}


def ran(*overrides, recipe=SMALL):
    return ended(recipe, *overrides)


def bytes_by_kind(record):
    found = {}
    for row in record.tables["messages"]:
        key = (row["direction"], row["kind"])
        found[key] = found.get(key, 0) + row["bytes"]
    return found


@pytest.mark.parametrize(
    ("alpha", "expected"), [(1.0, 1.0619195188), (0.5, 0.8710945946), (0.0, 0.6802696706)]
)
def test_either_side_minimises_cross_entropy_and_alpha_times_the_softened_divergence(alpha, expected):
    """CE(u, 0) = 0.6802696706 and 9 KL at T = 3 of t and u, 0.3816498482 (baselines, section 1)."""
    method = FedGKT(Options(alpha=alpha))
    for terms in (method.client_terms({}), method.server_terms(0, {})):
        loss = transfer_loss(U, torch.tensor([0]), T, terms).value
        assert loss.item() == pytest.approx(expected, abs=1e-6)


class Plain:
    """The exchange again, in plain torch: modules, optimisers and losses of torch alone."""

    def __init__(self, simulated, alpha=1.0, temperature=3.0, server_batch=16):
        self.simulated = simulated
        self.alpha, self.temperature, self.batch = alpha, temperature, server_batch
        module_pool = simulated.setting.module_pool()
        whole = module_pool.lend("model", module_pool.initial_vector("model")).module
        self.clients = [copy.deepcopy(nn.Sequential(*whole.stages)) for _ in range(4)]
        self.cut = whole.layers["C2"]
        rest = module_pool.lend("server", module_pool.initial_vector("server")).module
        self.server = copy.deepcopy(nn.Sequential(*rest.stages))
        self.server_optimiser = self.optimiser(self.server)
        self.told, self.seen = {}, dict.fromkeys(range(4), 0)

    def optimiser(self, module):
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)

    def loss(self, own, labels, teacher):
        found = F.cross_entropy(own, labels)
        if teacher is None:
            return found
        p, q = (F.log_softmax(z / self.temperature, dim=1) for z in (own, teacher))
        return found + self.alpha * self.temperature**2 * (q.exp() * (q - p)).sum(dim=1).mean()

    def round(self, number, cohort):
        sent = {k: self.client(k, number) for k in cohort}
        ctx = self.simulated.setting.server_context(number)
        for _ in range(2):
            for k, (features, logits, labels) in sent.items():
                stream = ctx.stream(f"order of client {k}")
                order = torch.randperm(len(labels), generator=stream)
                for chosen in torch.split(order, self.batch):
                    self.server_optimiser.zero_grad()
                    self.loss(self.server(features[chosen]), labels[chosen], logits[chosen]).backward()
                    self.server_optimiser.step()
        with torch.no_grad():
            self.told.update({k: self.server(features) for k, (features, _, _) in sent.items()})

    def client(self, k, number):
        self.seen[k] += 1
        model = self.clients[k]
        ctx = client_context(self.simulated.setting, DispatchFacts(k, number, self.seen[k]))
        optimiser = self.optimiser(model)
        for epoch in (0, 1):
            for drawn in ctx.batches(epoch):
                which, (images, labels) = drawn.numbers, ctx.read(drawn)
                optimiser.zero_grad()
                teacher = self.told[k][which] if k in self.told else None
                self.loss(model(images), labels, teacher).backward()
                optimiser.step()
        images, labels = (torch.cat(parts) for parts in zip(*ctx.samples(), strict=True))
        with torch.no_grad():
            return model[: self.cut](images), model(images), labels


def plain_vector(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def own_order(simulated, vector, architecture="model"):
    """A vector with convolutions' weights in torch's own order."""
    return plain_vector(simulated.setting.module_pool().lend(architecture, vector).module)


@pytest.mark.parametrize(
    ("options", "plain"),
    [("", {}), ("method.alpha=0.5", {"alpha": 0.5}), ("method.server_batch_size=5", {"server_batch": 5})],
)
def test_three_rounds_are_the_exchange_written_in_plain_torch(options, plain):
    """Half of four clients a round, so that some come with and some without the server's logits."""
    simulated = simulation_of(SMALL, *filter(None, [options]))
    twice = Plain(simulated, **plain)
    simulated.run()
    cohorts = [sorted({row["client"] for row in r.tables["messages"]}) for r in simulated.recorder]
    assert len(set().union(*cohorts)) < 3 * 2  # somebody came twice
    for number, cohort in enumerate(cohorts, start=1):
        twice.round(number, cohort)
    server = own_order(simulated, simulated.servers[-1].model, "server")
    assert torch.allclose(server, plain_vector(twice.server), atol=1e-5)
    initial = simulated.setting.module_pool().initial_vector("server")
    assert (server - initial).abs().max() > 0.02
    for client, state in states_of(simulated).items():
        assert torch.allclose(
            own_order(simulated, state.model), plain_vector(twice.clients[client]), atol=1e-5
        )
        assert torch.allclose(state.knowledge, twice.told[client], atol=1e-5)


@pytest.mark.parametrize("augment", ["none", "crop_flip"])
def test_with_alpha_zero_the_clients_are_stand_alone_bit_for_bit(augment):
    changes = [f"data.augment={augment}", "rounds=4"]
    ours = states_of(ran("method.alpha=0.0", *changes))
    alone = states_of(ran("method={name: standalone}", *changes))
    assert ours.keys() == alone.keys()
    assert all(torch.equal(ours[client].model, alone[client]) for client in alone)
    taught = states_of(ran(*changes))
    assert any(not torch.equal(taught[client].model, alone[client]) for client in alone)


def test_bytes_of_a_round_are_those_of_the_formula():
    """Up 4 n H + 4 n C, and 8 n of labels the first time; down 4 n C; one plain number tells which."""
    simulated = ran("rounds=4")
    sizes, seen = simulated.setting.partition.sizes, set()
    for record in simulated.recorder:
        cohort = {row["client"] for row in record.tables["messages"]}
        n = int(sum(sizes[k] for k in cohort))
        new = int(sum(sizes[k] for k in cohort - seen))
        seen |= cohort
        found = bytes_by_kind(record)
        assert found["up", "features"] == 4 * n * H
        assert found["up", "logits"] == found["down", "logits"] == 4 * n * 3
        assert found.get(("up", "labels"), 0) == 8 * new
        assert found["down", "metadata"] == 8 * len(cohort)
        assert len(found) == (5 if new else 4)
        row = record.tables["rounds"][0]
        assert (row["bytes_up"], row["bytes_down"]) == (4 * n * (H + 3) + 8 * new, 4 * n * 3)
    assert new == 0  # the last round had nobody new


def test_features_of_a_resnets_stem_are_64_kib_a_sample():
    """FedGEMS' Table 4 counts nothing else: 25,000 samples are 1562.5 MiB, and 31,250 are 20 rounds."""
    simulated = ran(recipe=RESNETS)
    samples = int(simulated.setting.partition.sizes.sum())
    found = bytes_by_kind(simulated.recorder[0])
    per_sample = found["up", "features"] // samples
    assert per_sample == 16 * 32 * 32 * 4 == 64 * 2**10
    assert 25_000 * per_sample / 2**20 == 1562.5
    assert 20 * 1562.5 == 31_250
    assert found["up", "logits"] == found["down", "logits"] == 40 * samples


def test_server_of_fedgems_is_resnet_56_without_its_stem():
    """591,322 parameters less 3 x 9 x 16 of the convolution and 2 x 16 of its norm."""
    setting = prepare(RESNETS, ["method={name: fedgkt}"]).setting
    module_pool = setting.module_pool()
    server = module_pool.lend("server", module_pool.initial_vector("server"))
    assert server.num_parameters == 591_322 - 432 - 32
    assert server(torch.zeros(2, 16, 32, 32)).shape == (2, 10)


def test_servers_logits_come_from_its_final_model_in_eval_mode_each_at_its_sample():
    bn = ["method={name: fedgkt, cut: C1, server: {name: bottleneck_resnet, blocks: [1, 1, 1], width: 2}}"]
    simulated = ran(*bn, "data.shape=[1, 16, 16]", "method.server_epochs=1", "rounds=1")
    module_pool = simulated.setting.module_pool()
    server = module_pool.lend("server", simulated.servers[-1].model).freeze()
    for client, state in states_of(simulated).items():
        own = module_pool.lend("model", state.model).freeze()
        ctx = client_context(simulated.setting, DispatchFacts(client, 1, 1))
        images = torch.cat([batch.images for batch in ctx.samples()])
        with torch.no_grad():
            expected = server(own.between(0, own.module.layers["C1"], images))
        torch.testing.assert_close(state.knowledge, expected)


@pytest.mark.parametrize("test", ["local", "official"])
def test_server_is_evaluated_behind_every_clients_extractor(test):
    """Also behind those of clients that never took part: the initial values."""
    simulated = ran("rounds=1", f"partition.test={test}")
    setting, taken = simulated.setting, states_of(simulated)
    assert len(taken) == 2
    module_pool, rows = setting.module_pool(), simulated.recorder[0].tables["clients"]
    server = module_pool.lend("server", simulated.servers[-1].model).freeze()
    found = {name: {r["client"]: r for r in rows if r["model"] == name} for name in ("server", "personal")}
    for client in range(4):
        split, part = setting.dataset.test, slice(None)
        if test == "local":
            split, part = setting.dataset.train, setting.partition.test[client]
        images = DeviceData(setting.dataset).normalise(torch.from_numpy(np.array(split.images[part])))
        vector = taken[client].model if client in taken else module_pool.initial_vector("model")
        own = module_pool.lend("model", vector).freeze()
        guessed = {"server": server(own.between(0, own.module.layers["C2"], images)), "personal": own(images)}
        for name, logits in guessed.items():
            right = int((logits.argmax(dim=1).numpy() == np.array(split.labels[part])).sum())
            row = found[name][client]
            assert (row["correct"], row["samples"]) == (right, len(logits))
    metrics = {row["model"]: row for row in simulated.recorder[0].tables["metrics"]}
    accuracies = [row["accuracy"] for row in found["server"].values()]
    assert metrics["server"]["ua"] == pytest.approx(sum(accuracies) / 4)


def test_exported_server_is_its_part(tmp_path):
    result = rayfed_kd.run(SMALL, [f"results.folder={tmp_path / 'run'}", "rounds=1"], local=True)
    paths = rayfed_kd.export(tmp_path / "run", "server", tmp_path / "m")
    written = load_file(paths[0])
    assert sum(value.numel() for value in written.values()) == len(result.models["server"])
    # It takes the clients' feature maps, which are no pixels: they are used as they are.
    model = rayfed_kd.load(paths[0])
    maps = torch.randn(2, *model.description.input_shape)
    with torch.no_grad():
        assert torch.equal(model(maps), model.module(maps))
    with pytest.raises(TypeError, match=r"expected floats, got torch\.uint8"):
        model(maps.to(torch.uint8))


def test_who_is_too_late_sends_its_labels_when_it_next_answers():
    """Who is dropped keeps its state, and the server knows no more of it than before."""
    simulated = ran(
        "schedule={name: quorum, min_fraction: 0.6}",
        "clock={name: lognormal, compute_sigma: 2.0}",
        "sampling={fraction: 1.0}",
        "rounds=4",
    )
    assert sum(record.tables["rounds"][0]["dropped"] for record in simulated.recorder) > 0
    labelled = [
        row["client"]
        for record in simulated.recorder
        for row in record.tables["messages"]
        if (row["direction"], row["kind"]) == ("up", "labels")
    ]
    assert sorted(labelled) == sorted(simulated.servers[-1].told)
    for client in simulated.servers[-1].told:
        assert states_of(simulated)[client].knowledge is not None


@pytest.mark.parametrize(("change", "message"), refused("fedgkt"))
def test_what_cannot_run_is_refused_before_the_first_round(change, message):
    with pytest.raises(RecipeError, match=message):
        prepare(SMALL, [change])
