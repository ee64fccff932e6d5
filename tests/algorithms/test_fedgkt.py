"""FedGKT against hand-worked numbers and against itself in plain torch; its identities, its bytes."""

import copy

import numpy as np
import pytest
import torch
from contexts import client_context, server_context
from runs import Rounds
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import rayfed_kd
from rayfed_kd.algorithms.fedgkt import FedGKT, Options
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.data.batches import DeviceData
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts, Message, Replies
from rayfed_kd.protocol.state_unpacking import unpack
from rayfed_kd.toolbox.server_models.split_learning import transfer_loss

SMALL = {
    "method": {"name": "fedgkt", "cut": "C2", "server": {"name": "dense", "units": [8]}, "server_epochs": 2},
    "model": {"name": "m1"},
    "data": {"name": "synthetic", "samples": 60, "test_samples": 40, "shape": [1, 8, 8], "classes": 3},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 4},
    "local": {"epochs": 2, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5}},
    "rounds": 3,
    "sampling": {"fraction": 0.5},
    "evaluation": {"samples": False},
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


def simulation(*overrides, recipe=SMALL):
    """A run in this process, not started; `servers` will hold the server's state after each round."""
    torch.set_num_threads(1)
    setting = prepare(recipe, overrides).setting
    found = Simulation(setting, LocalEngine(Host(setting, keep_states=4)), Rounds())
    found.servers, one_round = [], found.round
    found.round = lambda number, server: found.servers.append(one_round(number, server)) or found.servers[-1]
    return found


def ran(*overrides, recipe=SMALL):
    found = simulation(*overrides, recipe=recipe)
    found.run()
    return found


def states(simulated):
    """Every client's state that took part, by client."""
    records = sorted(simulated.run_state.records.items())
    return {client: unpack(r.state.resolve()["state"], "cpu") for client, r in records if r.state}


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


def test_gradient_reaches_the_student_alone():
    teacher, student = T.clone().requires_grad_(), U.clone().requires_grad_()
    transfer_loss(student, torch.tensor([0]), teacher, FedGKT().client_terms({})).value.backward()
    assert teacher.grad is None
    expected = U.softmax(1) - torch.tensor([[1.0, 0.0, 0.0]]) + 3 * ((U / 3).softmax(1) - (T / 3).softmax(1))
    torch.testing.assert_close(student.grad, expected)


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
        ctx = server_context(self.simulated.setting, number)
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
        model, ctx = (
            self.clients[k],
            client_context(self.simulated.setting, DispatchFacts(k, number, self.seen[k])),
        )
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
    simulated = simulation(*filter(None, [options]))
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
    for client, state in states(simulated).items():
        assert torch.allclose(
            own_order(simulated, state.model), plain_vector(twice.clients[client]), atol=1e-5
        )
        assert torch.allclose(state.knowledge, twice.told[client], atol=1e-5)


@pytest.mark.parametrize("augment", ["none", "crop_flip"])
def test_with_alpha_zero_the_clients_are_stand_alone_bit_for_bit(augment):
    changes = [f"data.augment={augment}", "rounds=4"]
    ours = states(ran("method.alpha=0.0", *changes))
    alone = states(ran("method={name: standalone}", *changes))
    assert ours.keys() == alone.keys()
    assert all(torch.equal(ours[client].model, alone[client]) for client in alone)
    taught = states(ran(*changes))
    assert any(not torch.equal(taught[client].model, alone[client]) for client in alone)


def test_first_participation_is_cross_entropy_alone():
    simulated = ran("sampling={fraction: 1.0}", "rounds=2")
    first, second = (row.tables["rounds"][0]["losses"] for row in simulated.recorder)
    assert "kd" not in first
    assert {"ce", "server_ce", "server_kd"} <= first.keys()
    assert second["kd"] > 0


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


def test_server_keeps_its_optimiser_and_clients_start_theirs_afresh():
    """Adam's steps: in each round 2 epochs over each client's batches of 16."""
    adam = "method.server_optimizer={name: adam, lr: 0.01}"
    simulated = ran(adam)
    sizes, steps = simulated.setting.partition.sizes, 0
    for record, server in zip(simulated.recorder, simulated.servers, strict=True):
        cohort = {row["client"] for row in record.tables["messages"]}
        steps += 2 * sum(-(-int(sizes[k]) // 16) for k in cohort)
        assert float(server.moments["steps"]) == steps


def test_servers_logits_come_from_its_final_model_in_eval_mode_each_at_its_sample():
    bn = ["method={name: fedgkt, cut: C1, server: {name: bottleneck_resnet, blocks: [1, 1, 1], width: 2}}"]
    simulated = ran(*bn, "data.shape=[1, 16, 16]", "method.server_epochs=1", "rounds=1")
    module_pool = simulated.setting.module_pool()
    server = module_pool.lend("server", simulated.servers[-1].model).freeze()
    for client, state in states(simulated).items():
        own = module_pool.lend("model", state.model).freeze()
        ctx = client_context(simulated.setting, DispatchFacts(client, 1, 1))
        images = torch.cat([batch.images for batch in ctx.samples()])
        with torch.no_grad():
            expected = server(own.up_to(own.module.layers["C1"], images))
        torch.testing.assert_close(state.knowledge, expected)


def test_client_trains_extractor_and_classifier_and_the_server_touches_neither():
    simulated = ran("rounds=1")
    initial = simulated.setting.module_pool().initial_vector("model")
    idle = states(ran("rounds=1", "local.epochs=0"))
    assert all(torch.equal(state.model, initial) for state in idle.values())
    for state in states(simulated).values():
        module = simulated.setting.module_pool().lend("model", state.model).module
        before = simulated.setting.module_pool().lend("model", initial).module
        pairs = zip(module.parameters(), before.parameters(), strict=True)
        assert all(not torch.equal(a, b) for a, b in pairs)


def test_order_of_replies_changes_nothing():
    simulated = simulation("sampling={fraction: 1.0}")
    setting, method = simulated.setting, simulated.setting.method
    replies = []
    for client in range(4):
        ctx = client_context(setting, DispatchFacts(client, 1, 1))
        _, reply = method.train(method.init_client(ctx), Message(known=0), ctx)
        reply.client = client
        replies.append(reply)
    start = method.init_server(server_context(simulated.setting, 0))
    learned = [
        method.taught(start, Replies([replies[k] for k in order]), server_context(simulated.setting, 1))
        for order in ((0, 1, 2, 3), (2, 0, 3, 1))
    ]
    assert torch.equal(learned[0].model, learned[1].model)
    assert not torch.equal(learned[0].model, start.model)


@pytest.mark.parametrize("test", ["local", "official"])
def test_server_is_evaluated_behind_every_clients_extractor(test):
    """Also behind those of clients that never took part: the initial values."""
    simulated = ran("rounds=1", f"partition.test={test}")
    setting, taken = simulated.setting, states(simulated)
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
        guessed = {"server": server(own.up_to(own.module.layers["C2"], images)), "personal": own(images)}
        for name, logits in guessed.items():
            right = int((logits.argmax(dim=1).numpy() == np.array(split.labels[part])).sum())
            row = found[name][client]
            assert (row["correct"], row["samples"]) == (right, len(logits))
    metrics = {row["model"]: row for row in simulated.recorder[0].tables["metrics"]}
    accuracies = [row["accuracy"] for row in found["server"].values()]
    assert metrics["server"]["ua"] == pytest.approx(sum(accuracies) / 4)


def test_clients_of_several_depths_share_a_server():
    """As FedGEMS' heterogeneous clients: ResNets of other depths, all with the same stem's features."""
    models = (
        "client_models={models: [{name: bottleneck_resnet}, {name: bottleneck_resnet, blocks: [1, 2, 1]}]}"
    )
    simulated = ran(models, recipe=RESNETS)
    assert len({state.model.numel() for state in states(simulated).values()}) == 2
    assert bytes_by_kind(simulated.recorder[0])["up", "features"] % (64 * 2**10) == 0


def test_resumed_run_is_the_whole_run(tmp_path):
    whole = rayfed_kd.run(SMALL, [f"results.folder={tmp_path / 'a'}"], local=True)
    rayfed_kd.run(SMALL, [f"results.folder={tmp_path / 'b'}", "rounds=2"], local=True)
    resumed = rayfed_kd.resume(tmp_path / "b", ["rounds=3"], local=True)
    assert np.array_equal(resumed.models["server"], whole.models["server"])
    assert all(resumed.tables[n].equals(whole.tables[n]) for n in ("metrics", "clients", "messages"))


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


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("{name: fedbuff, buffer: 2}", "fedgkt's rounds have several exchanges; expected sync or quorum"),
        (
            "{name: quorum, late: next_round}",
            "fedgkt's rounds have several exchanges, a late reply fits none",
        ),
    ],
)
def test_schedules_without_rounds_are_refused(schedule, message):
    with pytest.raises(RecipeError, match=message):
        prepare(SMALL, [f"schedule={schedule}", "clock.name=constant"])


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
        assert states(simulated)[client].knowledge is not None


CHANGED = "client_models={models: [{name: m1}, {name: %s}]}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "method.cut=C9",
            r"method\.cut: 'C9' is no layer before the model's last; there are C1, C2, C3, F1, F2",
        ),
        ("method.cut=F3", r"method\.cut: 'F3' is no layer before the model's last"),
        ("method.alpha=-1", r"method\.alpha = -1: expected a number of at least 0"),
        ("method.temperature=0", r"method\.temperature = 0: expected a number above 0"),
        ("method.server_epochs=0", r"method\.server_epochs = 0: expected a number of at least 1"),
        ("method.server_batch_size=0", r"method\.server_batch_size = 0"),
        ("method.server.units=[]", r"method\.server\.units = \[\]"),
        ("method.server.name=densee", r"method\.server\.name: 'densee' is not known.*Did you mean dense\?"),
        ("method.server.hidden=3", r"method\.server\.hidden is no option of dense"),
        (
            "method.server={name: m1}",
            r"method\.server\.name: m1 takes images of 8x8 or more, this data has 2x2; "
            r"the model's layer C2 gives 16x2x2",
        ),
        (
            "attack={name: paf}",
            r"attack: fedgkt sends neither weights nor logits that mean the same at every client",
        ),
        ("method.servr=1", r"method\.servr is no option of fedgkt. Did you mean method.server\?"),
        (
            CHANGED % "m2",
            r"client_models: layer C2 of model m2 \{\} gives 64x2x2; expected 16x2x2, as the recipe's model",
        ),
        (
            CHANGED % "mlp",
            r"method\.cut, model mlp \{\}: 'C2' is no layer before the model's last; there are F1",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_the_first_round(change, message):
    with pytest.raises(RecipeError, match=message):
        prepare(SMALL, [change])
