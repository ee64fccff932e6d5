"""What the tests of methods share: a small recipe, runs of it, and replies made by hand."""

import copy

import pytest
from runs import ended, reply_of, run_in_process, states_of
from small_recipes import FIVE_CLIENTS as SMALL

from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import ClientContext, ClientData, Context, DispatchFacts, Replies, ServerContext


class Bench:
    """A method at hand, step by step: its contexts, and exchanges with the clients that are named.

    Attributes:
        states: client -> its state after its last step.
        logs: client -> what its last step logged.
    """

    def __init__(self, recipe, overrides):
        self.setting = prepare(recipe, overrides).setting
        self.method = self.setting.method
        self.module_pool = self.setting.module_pool()
        self.data = self.setting.device_data()
        self.states, self.logs, self.participations = {}, {}, {}

    def server(self, round_index=1):
        facts, seed = self.setting.server_facts(round_index), self.setting.recipe.seed
        return ServerContext(self.module_pool, self.data, facts, seed)

    def client(self, client, round_index=1, participation=1):
        recipe = self.setting.recipe
        local = self.setting.server_facts(round_index).local
        share = ClientData(self.setting.partition.train[client], recipe.data.augment, local)
        facts = DispatchFacts(client, round_index, participation)
        return ClientContext(self.module_pool, self.data, share, facts, recipe.seed)

    def exchange(self, server, clients, round_index=1):
        """Every client named is dispatched and answers; the replies."""
        message = self.method.dispatch(server, self.server(round_index))
        return Replies([self._answer(client, message, round_index) for client in clients])

    def first_exchange(self, *clients):
        """The server's first state, and what the clients named answer to it."""
        server = self.method.init_server(self.server())
        return server, self.exchange(server, clients)

    def run(self):
        """All rounds, without a cluster: model name -> vector. Cohorts are clients 0, 1, ... in turn."""
        recipe = self.setting.recipe
        cohort = round(recipe.sampling.fraction * recipe.partition.clients)
        server = self.method.init_server(self.server(0))
        for index in range(recipe.rounds):
            clients = [(index * cohort + place) % recipe.partition.clients for place in range(cohort)]
            replies = self.exchange(server, sorted(clients), index + 1)
            server = self.method.absorb(server, replies, self.server(index + 1))
            self.module_pool.take_back()
        return self.method.evaluated(server)

    def _answer(self, client, message, round_index):
        self.participations[client] = self.participations.get(client, 0) + 1
        ctx = self.client(client, round_index, self.participations[client])
        state = self.states[client] if client in self.states else self.method.init_client(ctx)
        self.states[client], reply = self.method.client_update(state, message, ctx)
        self.logs[client] = {name: total / number for name, (total, number) in ctx.logged().items()}
        reply.client = client
        reply.handle = Held({name: part.numpy() for name, part in reply.parts.items()})
        self.module_pool.take_back()
        return reply


@pytest.fixture
def small():
    """The small recipe, to be changed freely."""
    return copy.deepcopy(SMALL)


@pytest.fixture
def run_small():
    """(method, *overrides) -> the outcome of a run of the small recipe in this process."""
    return lambda method, *overrides: run_in_process({**SMALL, "method": method}, *overrides)


@pytest.fixture
def bench():
    """(method, *overrides) -> a bench with the small recipe."""
    return lambda method, *overrides: Bench({**SMALL, "method": method}, list(overrides))


@pytest.fixture
def train(bench):
    """(method, *overrides) -> model name -> vector, after the small recipe's rounds."""
    return lambda method, *overrides: bench(method, *overrides).run()


@pytest.fixture
def made_replies():
    """((parts, samples), ...) -> replies of clients 0, 1, ...; parts are name -> values."""

    return lambda *rows: Replies(
        [reply_of(client, samples, **parts) for client, (parts, samples) in enumerate(rows)]
    )


@pytest.fixture
def client_states():
    """(recipe, *overrides) -> every client's state after a local run, by client."""

    return lambda *words: list(states_of(ended(*words)).values())


@pytest.fixture
def lent(monkeypatch):
    """What `frozen_model` lends from now on."""
    lent, lend = [], Context.frozen_model
    monkeypatch.setattr(Context, "frozen_model", lambda *given: lent.append(lend(*given)) or lent[-1])
    return lent


@pytest.fixture
def losses():
    """A result's logged means, one mapping a round."""
    return lambda result: [dict(row["logged"]) for row in result.tables["rounds"].to_pylist()]
