"""Whole rounds written a second time, from the papers' algorithms, on plain modules and torch.optim.

FedKF, KDIA, FedGEMS and DaFKD; FedD2S' is in test_fedd2s.py. What a replay takes over from the simulator are
initial vectors, orders of samples and random draws; losses, steps, BatchNorm and averages are its own. SGD
where a recipe can say so. Adam's first step is the gradient's sign, also of a gradient that is rounding, as
a weight before a dead unit has it; a large epsilon on both sides takes that away and keeps the formula.
"""

import copy
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch
from contexts import client_context
from runs import Silent, states_of
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.cohort import EngineCohort
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.base import last_maps
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.toolbox import optimizers

CLIENTS, BATCH, EPSILON = 4, 8, 0.01
SMALL = {
    "model": {"name": "lenet5"},
    "data": {"name": "synthetic", "samples": 72, "classes": 3, "shape": [1, 8, 8]},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": CLIENTS, "min_size": 9},
    "local": {
        "epochs": 2,
        "batch_size": BATCH,
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5, "weight_decay": 0.001},
    },
    "rounds": 2,
    "sampling": {"count": 2},
    "evaluation": {"samples": False, "every": 2},
}
BATCHNORM = {"name": "smooth_net:smooth_net"}


class Replay:
    """A simulation, and what both sides share: plain modules, contexts, cohorts.

    Attributes:
        sizes: N_k of all clients.
    """

    def __init__(self, method, **changes):
        torch.set_num_threads(1)
        self.setting = prepare({**SMALL, "method": method, **changes}).setting
        self.simulation = Simulation(self.setting, LocalEngine(Host(self.setting)), Silent())
        self.state = self.simulation.begin().server
        self.sizes = np.array(self.setting.server_facts(1).sizes, dtype=float)
        self.local = self.setting.recipe.local

    def step(self, number):
        """The simulator's round; gives the cohort."""
        drawn = []

        class Noted(EngineCohort):
            def __init__(self, *words):
                super().__init__(*words)
                drawn.extend(self.clients)

        with patch("rayfed_kd.cluster.server.simulation.EngineCohort", Noted):
            self.state = self.simulation.round(number, self.state)
        return drawn

    def module(self, vector=None, name="model"):
        """A plain module of its own memory."""
        flat = FlatModule(self.setting.builders[name]())
        flat.load(self.initial(name) if vector is None else vector)
        return copy.deepcopy(flat.module).train()

    def initial(self, name="model"):
        return self.setting.module_pool().initial_vector(name)

    def client(self, k, number, participation):
        return client_context(self.setting, DispatchFacts(k, number, participation))

    def server(self, number):
        return self.setting.server_context(number)

    def sgd(self, *modules, lr=0.05):
        parameters = [p for module in modules for p in module.parameters()]
        return torch.optim.SGD(parameters, lr=lr, momentum=0.5, weight_decay=0.001)

    def check(self, vector, module, name="model"):
        """The simulator's vector holds the replay's module: parameters and running statistics."""
        theirs = self.module(vector, name).state_dict()
        for entry, ours in module.state_dict().items():
            if ours.is_floating_point():
                torch.testing.assert_close(theirs[entry], ours, rtol=1e-5, atol=1e-5)
        start = self.module(None, name).state_dict()
        moved = [
            (theirs[entry] - start[entry]).abs().max() for entry in start if start[entry].is_floating_point()
        ]
        assert max(moved) > 1e-4


@pytest.fixture(autouse=True)
def _smooth_adam(monkeypatch):
    monkeypatch.setattr(optimizers, "ADAM_EPS", EPSILON)


def adam_of(module, **rates):
    return torch.optim.Adam(module.parameters(), eps=EPSILON, **rates)


def mean(modules, weights):
    """Their weighted mean, entry by entry, in float64."""
    shares = np.asarray(weights, dtype=float) / np.sum(weights)
    merged = copy.deepcopy(modules[0])
    states = [module.state_dict() for module in modules]
    with torch.no_grad():
        for entry, tensor in merged.state_dict().items():
            tensor.copy_(
                sum(share * state[entry].double() for share, state in zip(shares, states, strict=True))
            )
    return merged


@contextmanager
def statistics_put_back(module):
    """Within, BatchNorm uses a batch's statistics, and what it notes of them is undone."""
    layers = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    before = [(layer.training, layer.running_mean.clone(), layer.running_var.clone()) for layer in layers]
    for layer in layers:
        layer.train()
    yield
    for layer, (training, average, variance) in zip(layers, before, strict=True):
        layer.train(training)
        layer.running_mean, layer.running_var = average, variance


def frozen(module):
    return copy.deepcopy(module).eval().requires_grad_(False)


def kl(target, logits):
    """KL of probabilities and the softmax of logits, mean over the batch."""
    return (target * (target.clamp(min=1e-38).log() - logits.log_softmax(1))).sum(1).mean()


def descend(optimizer, loss, **keywords):
    optimizer.zero_grad()
    loss.backward(**keywords)
    optimizer.step()


@pytest.mark.parametrize(("model", "weight"), [(SMALL["model"], 0.0), (BATCHNORM, 0.0), (BATCHNORM, 0.5)])
def test_two_rounds_of_fedkf(model, weight):
    """Algorithm 1: eq. 3 to 5 for the generator, eq. 8 for the student, ACA and OCA; the adversarial term."""
    generator = {"name": "dafl_image", "width": 4, "latent": 5, "weight_decay": 0.001}
    replay = Replay({"name": "fedkf", "generator": generator, "adversarial": weight}, model=model)
    aca = oca = replay.module()
    slots = {k: replay.module() for k in range(CLIENTS)}
    generators, adams, seen = {}, {}, dict.fromkeys(range(CLIENTS), 0)
    for number in (1, 2):
        cohort, trained = replay.step(number), {}
        for k in cohort:
            seen[k] += 1
            ctx = replay.client(k, number, seen[k])
            student, teacher = copy.deepcopy(aca).train(), frozen(oca)
            if k not in generators:
                generators[k] = replay.module(None, "generator")
                adams[k] = adam_of(generators[k], lr=0.001, weight_decay=0.001)
            optimizer = replay.sgd(student)
            for epoch in range(2):
                for images, labels in ctx.epoch(epoch):
                    # The student has one mode for both: real images first, as its loss is written.
                    hard = F.cross_entropy(student(images), labels)
                    z = torch.randn(len(images), 5, generator=ctx.stream("noise"))
                    made = ctx.normalise(generators[k](z))
                    features = teacher.features(made)
                    answer = teacher.classify(features)
                    p = answer.softmax(1)
                    average = p.mean(0)
                    loss = (average * average.log()).sum() - 0.1 * features.abs().mean()
                    loss = loss + 0.1 * F.cross_entropy(answer, answer.argmax(1))
                    with statistics_put_back(student):
                        loss = loss - weight * kl(p, student(made))
                    descend(adams[k], loss)
                    with statistics_put_back(student):
                        logits = student(made.detach())
                    descend(optimizer, hard + kl(p.detach(), logits))
            trained[k] = slots[k] = student
        aca = mean(list(trained.values()), replay.sizes[cohort])
        oca = mean([slots[k] for k in range(CLIENTS)], replay.sizes)
        replay.check(replay.state.aca, aca)
        replay.check(replay.state.oca, oca)


def test_two_rounds_of_kdia():
    """Algorithms 1 and 2: eq. 2 to 4 and 11 to 13, three frequencies over all clients (eq. 5 to 9)."""
    generator = {"name": "fedcg_feature", "width": 8, "latent": 5, "epochs": 2, "batches": 2, "batch_size": 6}
    method = {"name": "kdia", "lambda_gen": 0.3, "generator": generator}
    replay = Replay(method, data={**SMALL["data"], "shape": [1, 28, 28]})
    student = teacher = replay.module()
    making, stage = replay.module(None, "generator"), last_maps(student, (1, 28, 28))[0]
    models = {k: replay.module() for k in range(CLIENTS)}
    last, counts = np.full(CLIENTS, -1.0), np.zeros(CLIENTS)
    for now in (0, 1):
        cohort = replay.step(now + 1)
        for k in cohort:
            last[k], counts[k] = now, counts[k] + 1
            ctx = replay.client(k, now + 1, int(counts[k]))
            own, fixed, maker = copy.deepcopy(student).train(), frozen(teacher), frozen(making)
            optimizer = replay.sgd(own)
            pool = torch.randint(3, (ctx.num_samples,), generator=ctx.stream("labels"))
            for epoch in range(2):
                order = torch.randperm(len(pool), generator=ctx.stream("label order"))
                for (images, labels), wanted in zip(ctx.epoch(epoch), pool[order].split(BATCH), strict=True):
                    logits = own(images)
                    z = torch.randn(len(images), 5, generator=ctx.stream("noise"))
                    made = own.between(stage, None, maker(z, wanted))
                    loss = F.cross_entropy(logits, labels) + 0.3 * F.cross_entropy(made, wanted)
                    descend(optimizer, loss + 0.5 * kl((fixed(images) / 2).softmax(1), logits / 2))
            models[k] = own
        three = [np.exp(last - now), counts, replay.sizes]
        triple = np.prod([frequency / frequency.sum() for frequency in three], axis=0) ** (1 / 3)
        student = mean([models[k] for k in cohort], replay.sizes[cohort])
        teacher = mean([models[k] for k in range(CLIENTS)], triple)
        heads, shares = [frozen(models[k]) for k in cohort], replay.sizes[cohort] / replay.sizes[cohort].sum()
        ctx, adam = replay.server(now + 1), adam_of(making, lr=0.001, weight_decay=1e-5)
        pool = torch.randint(3, (12,), generator=ctx.stream("labels"))
        for _ in range(2):
            for labels in pool[torch.randperm(12, generator=ctx.stream("label order"))].split(6):
                z = torch.randn(6, 5, generator=ctx.stream("noise"))
                maps = making(z, labels)
                logits = sum(
                    float(p) * head.between(stage, None, maps) for p, head in zip(shares, heads, strict=True)
                )
                apart = (z[:3] - z[3:]).abs().mean() / ((maps[:3] - maps[3:]).abs().mean() + 1e-5)
                descend(adam, F.cross_entropy(logits, labels) + apart)
        replay.check(replay.state.student, student)
        replay.check(replay.state.teacher, teacher)
        replay.check(replay.state.generator, making, "generator")


@pytest.mark.parametrize("branch", ["eval", "train"])
def test_two_rounds_of_fedgems(branch):
    """Algorithm 1: three branches, entropy weights (eq. 3 to 5), one public and one private epoch (eq. 6).

    A client's batch is all that it has, so that the order of its samples changes nothing.
    """
    # Steps that are large enough for the server to unlearn, as the second branch needs it.
    rates = {"name": "sgd", "lr": 3.0, "momentum": 0.5, "weight_decay": 0.001}
    server = {**BATCHNORM, "width": 8}
    replay = Replay(
        {
            "name": "fedgems",
            "server": server,
            "server_batch_size": 10,
            "server_optimizer": rates,
            "branch": branch,
        },
        model=BATCHNORM,
        data={**SMALL["data"], "shape": [3, 8, 8], "samples": 100},
        partition={**SMALL["partition"], "public": {"count": 40}},
        local={**SMALL["local"], "epochs": 1, "batch_size": 100},
        sampling={"fraction": 1.0},
    )
    larger = replay.module(None, "server")
    steps = replay.sgd(larger, lr=rates["lr"])
    clients = [replay.module(replay.client(k, 1, 1).own_initial_vector()) for k in range(CLIENTS)]
    optimizers = [replay.sgd(client) for client in clients]
    pool, known = torch.zeros(40, 3), torch.zeros(40, dtype=torch.bool)
    public = replay.server(1).public
    everything, truth = public.images(public.ids), public.labels(public.ids)

    def own_epoch(k):
        for images, labels in replay.client(k, 1, 1).epoch(0):
            descend(optimizers[k], F.cross_entropy(clients[k](images), labels))

    branches = []
    for number in (1, 2):
        replay.step(number)
        for k in range(CLIENTS if number == 1 else 0):
            own_epoch(k)
        said, knowledge = torch.stack([frozen(client)(everything) for client in clients]), torch.zeros(40, 3)
        for ids, images in replay.server(number).public.epoch(0, 10):
            labels = truth[ids]
            evaluated = frozen(larger)(images)
            logits = larger.train()(images)
            judged = logits.detach() if branch == "train" else evaluated
            losses = []
            for place, i in enumerate(ids.tolist()):
                hard = F.cross_entropy(logits[place : place + 1], labels[place : place + 1])
                if judged[place].argmax() == labels[place]:
                    pool[i], known[i] = judged[place], True
                    losses.append(hard)
                    branches.append(1)
                    continue
                branches.append(2 if known[i] else 3)
                teacher = pool[i] if known[i] else None
                if teacher is None:
                    right = [answer[i] for answer in said if answer[i].argmax() == labels[place]]
                    entropies = [-(p * p.log()).sum() for p in (answer.softmax(0) for answer in right)]
                    if right:
                        alpha = (1 / torch.stack(entropies)).softmax(0)
                        teacher = (alpha[:, None] * torch.stack(right)).sum(0)
                soft = 0 if teacher is None else kl(teacher.softmax(0)[None], logits[place : place + 1])
                losses.append(0.75 * hard + 0.25 * soft)
            descend(steps, torch.stack(losses).mean())
            knowledge[ids] = frozen(larger)(images)
        for k, client in enumerate(clients):
            logits = client(everything)
            loss = 0.75 * F.cross_entropy(logits, truth) + 0.25 * kl(knowledge.softmax(1), logits)
            descend(optimizers[k], loss)
            own_epoch(k)
        replay.check(replay.state.model, larger, "server")
        torch.testing.assert_close(replay.state.known, known)
        torch.testing.assert_close(replay.state.pool, pool, rtol=1e-4, atol=1e-4)
    assert set(branches) == {1, 2, 3}
    states = states_of(replay.simulation)
    for k, client in enumerate(clients):
        replay.check(states[k].model, client)


@pytest.mark.parametrize("model", [SMALL["model"], BATCHNORM], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("sharing", [True, False])
def test_two_rounds_of_dafkd(model, sharing):
    """Algorithm 1: eq. 2, 3 and 9 at the clients, eq. 4 and 6 to 8 at the server."""
    generator = {"name": "conditional_image", "width": 4, "latent": 5, "lr": 0.01}
    method = {
        "name": "dafkd",
        "generator": generator,
        "distill_batches": 3,
        "distill_lr": 0.01,
        "sharing": sharing,
    }
    replay = Replay(method, model=model)
    w, theta, judges = replay.module(), replay.module(None, "generator"), {}
    seen = dict.fromkeys(range(CLIENTS), 0)

    def judged(judge, trunk, samples):
        """Of generated samples: they leave no trace in the statistics."""
        if not sharing:
            with statistics_put_back(judge):
                return judge(samples).squeeze(1)
        with statistics_put_back(trunk):
            return judge(trunk.features(samples)).squeeze(1)

    for number in (1, 2):
        cohort, students, makers = replay.step(number), [], []
        for k in cohort:
            seen[k] += 1
            ctx = replay.client(k, number, seen[k])
            student, maker = copy.deepcopy(w).train(), copy.deepcopy(theta).train()
            judge = judges.setdefault(k, replay.module(None, "discriminator"))
            joint = replay.sgd(student, judge)
            adam = adam_of(maker, lr=0.01, weight_decay=0.001)
            for epoch in range(2):
                for images, labels in ctx.epoch(epoch):
                    wanted = torch.randint(3, (len(images),), generator=ctx.stream("labels"))
                    made = maker(torch.randn(len(images), 5, generator=ctx.stream("noise")), wanted)
                    features = student.features(images)
                    hard = F.cross_entropy(student.classify(features), labels)
                    real = judge(features if sharing else images).squeeze(1)
                    fake = judged(judge, student, made.detach())
                    truth = torch.cat([torch.ones_like(real), torch.zeros_like(fake)])
                    adversarial = F.binary_cross_entropy_with_logits(torch.cat([real, fake]), truth)
                    descend(joint, hard + adversarial, retain_graph=True)
                    doubt = judged(judge, student, made)
                    descend(adam, F.binary_cross_entropy_with_logits(doubt, torch.ones_like(doubt)))
            students.append(student)
            makers.append(maker)
        w, theta = mean(students, [1, 1]), mean(makers, [1, 1])
        ctx = replay.server(number)
        draws = torch.Generator().manual_seed(int(torch.randint(2**31, (), generator=ctx.stream("samples"))))
        z, wanted = torch.randn(24, 5, generator=draws), torch.randint(3, (24,), generator=draws)
        with torch.no_grad(), statistics_put_back(theta):
            samples = torch.cat(
                [theta(*part) for part in zip(z.split(BATCH), wanted.split(BATCH), strict=True)]
            )
        with torch.no_grad():
            fixed = [frozen(student) for student in students]
            views = samples if not sharing else [student.features(samples) for student in fixed]
            f = torch.stack(
                [
                    frozen(judges[k])(views if not sharing else views[place]).squeeze(1).sigmoid()
                    for place, k in enumerate(cohort)
                ]
            )
            target = sum(a[:, None] * s(samples).softmax(1) for a, s in zip(f / f.sum(0), fixed, strict=True))
        adam = adam_of(w.train(), lr=0.01)
        for chosen in torch.randperm(24, generator=ctx.stream("distillation order")).split(BATCH):
            with statistics_put_back(w):
                logits = w(samples[chosen])
            descend(adam, kl(target[chosen], logits))
        replay.check(replay.state.weights, w)
        replay.check(replay.state.generator, theta, "generator")
        torch.testing.assert_close(replay.state.alpha, (f / f.sum(0)).t(), rtol=1e-4, atol=1e-5)
