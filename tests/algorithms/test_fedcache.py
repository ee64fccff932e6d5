"""FedCache: teachers and loss by hand, the nearest of a class, Stand-Alone as a case, late replies."""

import math
from types import SimpleNamespace

import pytest
import torch
from runs import run_in_process, simulation_of
from small_recipes import assert_same_run
from torch.nn import functional as F

from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd.algorithms.fedcache import Cached, FedCache, placed, taken, taught
from rayfed_kd.protocol import Message, Replies, Reply
from rayfed_kd.toolbox.losses import distillation

NAME = {"name": "fedcache"}
FEATURES = 84  # of lenet5
LATE = {
    "fedbuff": {"name": "fedbuff", "buffer": 2},
    "fedasync": {"name": "fedasync"},
    "next_round": {"name": "quorum", "min_fraction": 0.6, "late": "next_round"},
}


class Scattered(FedAvg):
    """FedAvg whose message goes to each client as one of its own."""

    def run_round(self, server, cohort, ctx):
        def own(client):
            return self.dispatch(server, ctx)

        messages = {client: own(client) for client in cohort.clients}
        return self.absorb(server, cohort.scatter(self.client_update, messages, own), ctx)


def cached(hashes, labels, logits, known=None):
    rows = F.normalize(torch.tensor(hashes, dtype=torch.float32), dim=1)
    known = torch.ones(len(labels), dtype=torch.bool) if known is None else torch.tensor(known)
    return Cached(rows, torch.tensor(labels), torch.tensor(logits, dtype=torch.float32), known)


def test_loss_by_hand():
    """Cached (2, 0) and (0, 2), z (1, 0), label 0, T 3, alpha 1.5: 0.3132616875 + 1.5 * 0.1244255472."""
    others = cached([[1.0, 0.1], [1.0, 0.2]], [0, 0], [[2.0, 0.0], [0.0, 2.0]])
    own = cached([[1.0, 0.0]], [0], [[7.0, 7.0]])
    rows, present = taught({0: own, 3: others}, 0, 16)
    assert (rows.tolist(), present.tolist()) == ([[1.0, 1.0]], [True])
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    kd = distillation(rows.double(), z, 3.0).item()
    assert kd == pytest.approx(0.1244255472, abs=1e-10)
    assert math.log(1 + math.exp(-1)) + 1.5 * kd == pytest.approx(0.4999000083, abs=1e-9)


def test_teachers_are_the_nearest_of_the_class_that_have_logits():
    """Angles from sample 0: 10 (another class), 20, 30 (no logits yet), 40, 50 degrees; R = 2: 20 and 40."""
    angles, labels = [10, 20, 30, 40, 50], [1, 0, 0, 0, 0]
    hashes = [[5 * math.cos(math.radians(a)), 5 * math.sin(math.radians(a))] for a in angles]
    logits = [[100.0, 0.0], [1.0, 2.0], [100.0, 0.0], [3.0, 6.0], [100.0, 0.0]]
    known = [True, True, False, True, True]
    cache = {2: cached(hashes, labels, logits, known), 1: cached([[1.0, 0.0]], [0], [[50.0, 0.0]])}
    rows, present = taught(cache, 1, 2)
    assert (rows.tolist(), present.tolist()) == ([[2.0, 4.0]], [True])
    # Of client 2: the other class has nobody else; 50 degrees has 40 and 20, itself left out; and 3 of 16.
    rows, present = taught(cache, 2, 2)
    assert present.tolist() == [False, True, True, True, True]
    assert rows[4].tolist() == [2.0, 4.0]
    rows, _ = taught(cache, 2, 16)
    torch.testing.assert_close(rows[4], torch.tensor([(1.0 + 3.0 + 50.0) / 3, (2.0 + 6.0) / 3]))


def test_rows_travel_with_places_only_if_some_are_missing():
    rows, blank = torch.arange(6.0).view(3, 2), torch.full((3, 2), 9.0)
    parts = taken("teachers", rows, torch.tensor([True, False, True]))
    assert parts["places"].tolist() == [0, 2]
    back, present = placed(Message(**parts), "teachers", blank)
    assert back.tolist() == [[0.0, 1.0], [9.0, 9.0], [4.0, 5.0]]
    assert present.tolist() == [True, False, True]
    assert list(taken("teachers", rows, torch.tensor([True] * 3))) == ["teachers"]
    assert not placed(Message(), "teachers", blank)[1].any()


def slow(small, schedule, **changes):
    """A recipe under a schedule; latencies alone count, as hashes take simulated time besides."""
    equal = {"seconds_per_sample": 0.0, "up_mbit_s": 1e30, "down_mbit_s": 1e30}
    local = {**small["local"], "vectorise": "off"}
    return {**small, "schedule": schedule, "clock": {"name": "constant", **equal}, "local": local, **changes}


@pytest.mark.parametrize("schedule", [{"name": "sync"}, *LATE.values()], ids=["sync", *LATE])
def test_without_alpha_it_is_standalone_bit_for_bit(schedule, client_states, small):
    recipe = slow(small, schedule, rounds=6)
    ours, alone = (
        client_states({**recipe, "method": one}) for one in ({**NAME, "alpha": 0.0}, {"name": "standalone"})
    )
    assert len(ours) == len(alone) > 0
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(ours, alone, strict=True))


@pytest.mark.parametrize("schedule", LATE.values(), ids=LATE)
def test_messages_of_their_own_that_are_alike_are_a_broadcast(schedule, small):
    """Also for clients who are asked in the middle of an update, and where all are at work as it starts."""
    recipe = {**small, "schedule": schedule, "clock": {"name": "lognormal"}, "rounds": 6}
    one = {**recipe, "method": {"name": "fedavg"}}
    assert_same_run(run_in_process(one), run_in_process({**one, "method": {"name": f"{__name__}:Scattered"}}))


def sent(result):
    """(round, client, direction) -> kind -> bytes."""
    places = {}
    for row in result.tables["messages"].to_pylist():
        place = places.setdefault((row["round"], row["client"], row["direction"]), {})
        place[row["kind"]] = row["bytes"]
    return places


def test_what_travels(small):
    """Up 4 n C, at first 4 n (d + 1) besides; down 4 n C from the second round on, as all have neighbours."""
    recipe = {**small, "method": NAME, "sampling": {"fraction": 1.0}, "rounds": 2}
    places = sent(run_in_process(recipe))
    for client, own in enumerate(simulation_of(recipe).setting.partition.train):
        n = len(own)
        up = {"logits": 40 * n, "features": 4 * FEATURES * n, "labels": 4 * n}
        assert {kind: size for kind, size in places[1, client, "up"].items() if kind in up} == up
        assert {kind for kind in places[2, client, "up"] if kind in up} == {"logits"}
        assert places[2, client, "up"]["logits"] == places[2, client, "down"]["logits"] == 40 * n
        assert "ids" not in places[2, client, "down"]
        assert "logits" not in places.get((1, client, "down"), {})


def test_a_reply_has_what_training_met_last(bench):
    """A step on all samples: z of the model before it. A step on 8: these alone, with their places."""
    table = bench(NAME, "local.epochs=1", "local.batch_size=1000")
    initial = table.server().initial_vector()
    _, reply = table.method.client_update(initial, Message(known=0), table.client(0))
    before = table.client(0).model(initial)
    images = torch.cat([images for images, _ in table.client(0).samples()])
    torch.testing.assert_close(reply["logits"], before(images).detach(), rtol=1e-4, atol=1e-5)
    assert "places" not in reply
    table = bench(NAME, "local.epochs=null", "local.steps=1", "local.batch_size=8")
    _, few = table.method.client_update(initial, Message(known=0), table.client(0))
    assert len(few["places"]) == 8
    torch.testing.assert_close(few["logits"], reply["logits"][few["places"].long()], rtol=1e-4, atol=1e-5)


def test_teachers_move_the_model_and_samples_without_one_do_not(bench):
    """No row at all is labels alone, to the bit; a teacher for half of the samples has half of the term."""
    table = bench({**NAME, "temperature": 1.0}, "local.epochs=1", "local.batch_size=1000")
    initial, n = table.server().initial_vector(), table.client(0).num_samples
    rows, none = torch.full((n, 10), 2.0), torch.zeros(n, dtype=torch.bool)
    half = torch.arange(n) < n // 2
    logged, models = {}, {}
    for name, present in (("nobody", none), ("half", half), ("all", ~none)):
        ctx = table.client(0)
        message = Message(known=1, **taken("teachers", rows, present))
        models[name], _ = table.method.client_update(initial, message, ctx)
        logged[name] = {key: total / count for key, (total, count) in ctx.logged().items()}
    alone, _ = table.method.client_update(initial, Message(known=1), table.client(0))
    assert torch.equal(models["nobody"], alone) and not torch.equal(models["all"], alone)
    assert "kd" not in logged["nobody"]
    # A uniform teacher of z: log-mean-exp of z less its mean, for each sample.
    z = table.client(0).model(initial)
    images = torch.cat([images for images, _ in table.client(0).samples()])
    logits = z(images).detach().double()
    terms = logits.logsumexp(1) - logits.mean(1) - math.log(10)
    assert logged["all"]["kd"] == pytest.approx(terms.mean().item(), rel=1e-4)
    assert logged["half"]["kd"] == pytest.approx(terms[half].sum().item() / n, rel=1e-4)


def test_the_latest_reply_counts_and_hashes_stay():
    """Two replies of a client in one update, the later one about one of two samples."""
    method, server = FedCache(FedCache.options_model()()), SimpleNamespace(classes=3)

    def reply(**parts):
        made = Reply(**parts)
        made.client = 4
        return made

    once = {"hashes": torch.tensor([[3.0, 4.0], [0.0, 2.0]]), "labels": torch.tensor([0, 1]).int()}
    first, second = torch.full((1, 3), 1.0), torch.full((2, 3), 2.0)
    early = reply(logits=first, places=torch.tensor([1]).int(), **once)
    cache = method.absorb({}, Replies([early]), server)
    assert cache[4].known.tolist() == [False, True]
    torch.testing.assert_close(cache[4].hashes, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    later = reply(logits=torch.full((1, 3), 3.0), places=torch.tensor([0]).int())
    cache = method.absorb(cache, Replies([reply(logits=second), later]), server)
    assert cache[4].logits.tolist() == [[3.0] * 3, [2.0] * 3]
    assert cache[4].known.all() and cache[4].labels.tolist() == [0, 1]


def test_a_client_whose_first_reply_was_too_late_sends_its_hashes_again(bench):
    table = bench(NAME)
    first = table.client(1, participation=2)
    message = table.method.dispatch_to({}, 1, table.server())
    _, reply = table.method.client_update(table.server().initial_vector(), message, first)
    assert {"hashes", "labels"} <= set(reply.parts)
    reply.client = 1
    cache = table.method.absorb({}, Replies([reply]), table.server())
    message = table.method.dispatch_to(cache, 1, table.server())
    assert message["known"] == 1 and "teachers" in message
