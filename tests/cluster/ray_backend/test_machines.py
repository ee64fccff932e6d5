"""A cluster's machines before a run, and data that is sent to them: decided from facts, without Ray."""

import re
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ray.exceptions import AuthenticationError
from small_recipes import THREE_CLIENTS

from rayfed_kd.cluster.ray_backend.machines import Seen, look, to_be_sent
from rayfed_kd.cluster.ray_backend.session import RaySession, check_address
from rayfed_kd.data.cache import locate_entry, open_entry, pack_entry, unpack_entry
from rayfed_kd.data.loading import load_dataset
from rayfed_kd.errors import DataError, RecipeError, RunError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.setting.code_identity import differences, identity

ENTRY = Path("/cache/digits-1")


def seen(machine="m", data=True, cached=False, **facts):
    found = {"fault": "", "instruction_set": "AVX2", "folder": True} | facts
    return Seen(machine=machine, data=data, cached=cached, **found)


@pytest.fixture
def blueprint():
    return prepare(THREE_CLIENTS).blueprint


def test_this_machine_sees_the_data_and_the_run(blueprint, tmp_path):
    (tmp_path / "config.yaml").touch()
    found = look(blueprint, str(tmp_path))
    assert (found.data, found.folder, found.fault) == (True, True, "")
    assert not look(blueprint, str(tmp_path / "elsewhere")).folder
    assert not look(replace(blueprint, dataset_folder="/nowhere/x"), str(tmp_path)).data


def test_method_that_cannot_be_imported_there_is_refused(blueprint, tmp_path):
    found = look(replace(blueprint, method="not_there:Method"), str(tmp_path))
    assert re.search(r"machine .*not_there.*install the same everywhere", found.fault)


@pytest.mark.parametrize("what", ["Python", "torch", "numpy", "ray", "rayfed-kd's source"])
def test_other_versions_are_refused_with_both(what, blueprint, tmp_path):
    other = replace(blueprint, identity={**identity(), what: "0.0"})
    found = look(other, str(tmp_path)).fault
    assert re.search(rf"machine .*: {what} {re.escape(identity()[what])} there, 0\.0 here; install", found)


def test_process_of_other_code_does_not_build_a_setting(blueprint):
    other = replace(blueprint, identity={**identity(), "torch": "0.1"})
    with pytest.raises(RunError, match=r"torch .* there, 0\.1 here"):
        other.build()


def test_what_is_unknown_there_is_a_difference():
    assert differences({"ray": "2"}, {}) == "ray unknown there, 2 here"
    assert differences(identity(), identity()) == ""


def test_data_stays_where_all_machines_see_it():
    assert to_be_sent([seen(), seen()], "auto", ENTRY) is None
    assert to_be_sent([seen(), seen()], "shared", ENTRY) is None


def test_data_goes_to_the_machines_that_lack_it_once_one_does_not_see_it():
    machines = [seen(), seen("blind", data=False), seen("blind", data=False, cached=True)]
    assert to_be_sent(machines, "auto", ENTRY) == [0, 1]
    assert to_be_sent([seen(cached=True), seen()], "ship", ENTRY) == [1]


def test_shared_data_that_one_machine_does_not_see_is_refused():
    with pytest.raises(DataError, match=r"placement.data = shared: far cannot see /cache/digits-1; expected"):
        to_be_sent([seen(), seen("far", data=False)], "shared", ENTRY)


def test_sent_data_is_the_same_to_the_byte(tmp_path, monkeypatch):
    original = load_dataset("digits", fraction=0.1)
    monkeypatch.setenv("RAYFED_KD_CACHE", str(tmp_path))
    place = locate_entry(Path(original.folder.name))
    assert place == tmp_path / original.folder.name
    for _ in range(2):  # the second time it is there already
        unpack_entry(place, pack_entry(original.folder))
    found = open_entry(place)
    assert np.array_equal(found.train.images, original.train.images)
    assert np.array_equal(found.train.labels, original.train.labels)
    assert (found.mean, found.std, found.class_names) == (original.mean, original.std, original.class_names)
    for file in original.folder.iterdir():
        assert (place / file.name).read_bytes() == file.read_bytes()


def test_sent_data_without_room_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cache folder .* cannot be made"):
        unpack_entry(tmp_path / "file" / "entry", {"a": np.zeros(1, np.uint8)})


@pytest.fixture
def refusing(monkeypatch):
    """Every Ray refuses this process with the error that is given."""

    def refuse_with(fault):
        def refuses(**given):
            raise fault

        monkeypatch.setattr("ray.init", refuses)

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("rayfed_kd.cluster.ray_backend.session.check_address", lambda address, option: None)
    return refuse_with


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("Version mismatch: the cluster has Ray: 2.1"),
        ConnectionError("no"),
        AuthenticationError("no token was found"),
    ],
)
def test_ray_that_does_not_take_this_process_is_a_bad_address(fault, refusing):
    """As `ray.init` says it for another Ray or Python version, or a token that is missing."""
    refusing(fault)
    recipe = load_recipe(THREE_CLIENTS)
    with RaySession(recipe, "far:6379") as session, pytest.raises(RecipeError, match="--address far:6379: "):
        session.ready()


def test_refused_driver_is_told_of_tokens(refusing):
    """Ray's own message for a token that is missing or another's is that it cannot connect."""
    refusing(ConnectionError("Failed to connect to Ray cluster"))
    with RaySession(load_recipe(THREE_CLIENTS), "far:6379") as session, pytest.raises(RecipeError) as caught:
        session.ready()
    told = str(caught.value)
    assert "Failed to connect" in told and "wants RAY_AUTH_MODE=token and its own token" in told


@pytest.mark.parametrize(
    ("given", "asked"), [(None, "RAY_ADDRESS = far:6379"), ("near:6379", "--address near:6379")]
)
def test_address_that_is_given_wins_over_the_environments(given, asked, refusing, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "far:6379")
    refusing(ConnectionError("no"))
    recipe = load_recipe(THREE_CLIENTS)
    with RaySession(recipe, given) as session, pytest.raises(RecipeError, match=f"^{asked}: no"):
        session.ready()


@pytest.fixture
def connected(monkeypatch):
    """This process is connected to a Ray already, as a notebook's may be."""
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="127.0.0.1:6379"))
    return load_recipe(THREE_CLIENTS)


@pytest.mark.parametrize("address", ["far:6379", "127.0.0.1:6380", "ray://127.0.0.1:6379"])
def test_another_address_than_that_of_the_processs_ray_is_refused(address, connected):
    message = f"--address {address}: this process is connected to the Ray at 127.0.0.1:6379; expected"
    with RaySession(connected, address) as session, pytest.raises(RecipeError, match=message):
        session.ready()


@pytest.mark.parametrize("address", [None, "auto", "127.0.0.1:6379", "localhost:6379"])
def test_processs_own_ray_is_used_and_left_as_it_is(address, connected, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "far:6379")
    monkeypatch.setattr("ray.shutdown", pytest.fail)
    monkeypatch.setattr("ray.init", pytest.fail)
    with RaySession(connected, address) as session:
        session.ready()


def test_dashboards_port_is_told_from_the_heads():
    """`ray job submit` takes the one, --address the other; asked there, Ray itself would wait for minutes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(
            RecipeError, match=r"a web server answers there, as Ray's dashboard does; expected"
        ):
            check_address(f"127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "host:port"])
def test_address_of_another_form_is_refused(address):
    with pytest.raises(RecipeError, match=rf"--address {address}: expected HOST:PORT$"):
        check_address(address)
