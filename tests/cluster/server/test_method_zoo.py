"""The zoo of methods (tests/helpers/method_zoo.py): the same answer on every engine, at the first step."""

from pathlib import Path

import method_zoo
import pytest
import yaml
from runs import run_setting
from small_recipes import THREE_CLIENTS

from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.errors import RayfedError
from rayfed_kd.experiment.preparation import prepare

CLIENTS = 3
TINY = {
    **THREE_CLIENTS,
    "model": {"name": "mlp", "hidden": 4},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": CLIENTS},
    "local": {"epochs": 1, "batch_size": 32, "vectorise": "off"},
}
WORKS = ""
TABLE = yaml.safe_load(Path(method_zoo.__file__).with_suffix(".yaml").read_text(encoding="utf8"))
STATES = {
    "ClientState": "round 1, client 0, client_update: the state[1]",
    "FirstState": "round 1, client 0, client_update: init_client: the state[1]",
    "ServerState": "the server of ServerState, round 1: the state.more",
}
# (method, its option) -> what its message begins with, and what it holds; both empty: it works.
ROWS = {
    **{
        (kind, what): (said and STATES[kind], said)
        for what, said in TABLE.pop("states").items()
        for kind in STATES
    },
    **{(kind, what): ("", said) for kind, rows in TABLE.items() for what, said in rows.items()},
}
NAMES = [f"{kind} {what}".strip().replace(" ", "_") for kind, what in ROWS]


def recipe_of(row):
    kind, what = row
    return {**TINY, "method": {"name": f"method_zoo:{kind}", **({"what": what} if what else {})}}


def run_in_process(recipe, keep_states):
    setting = prepare(recipe).setting
    run_setting(setting, LocalEngine(Host(setting, keep_states=keep_states)))


def answer(run, *arguments):
    """What a run says, as a user reads it; nothing if it ends well. Other errors are not caught."""
    try:
        run(*arguments)
    except RayfedError as error:
        return str(error)
    return WORKS


def check(said, expected):
    start, told = expected
    assert (said == WORKS) == (told == WORKS), said
    assert said.startswith(start)
    assert told in said
    # An error of the method's own code has its stack trace; what it gave us is answered in one line.
    assert "\n" not in said or "failed:\nTraceback" in said


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_method_that_misbehaves_is_answered_with_its_place_also_where_its_states_travel(row):
    said = answer(run_in_process, recipe_of(row), CLIENTS)
    check(said, ROWS[row])
    assert answer(run_in_process, recipe_of(row), 0) == said


GROUPED = ("ChangesMessage", "ChangesState", "SharesABuffer", "ReplacesParts", "StepReturns", "StepRaises")


@pytest.mark.parametrize("row", [row for row in ROWS if row[0] in GROUPED])
def test_clients_of_a_group_give_the_same_answer(row):
    grouped = {"local": {**TINY["local"], "vectorise": CLIENTS}}
    check(answer(run_in_process, recipe_of(row) | grouped, CLIENTS), ROWS[row])


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_hosts_on_ray_give_the_same_answer(row, hosts, monkeypatch):
    monkeypatch.chdir(Path(method_zoo.__file__).parent)  # from where hosts import the methods
    placed = {"placement": {"clients_per_actor": 2}}
    check(answer(hosts.run, recipe_of(row) | placed), ROWS[row])


def test_the_zoo_has_as_many_methods_as_reports():
    assert len(ROWS) >= 60
