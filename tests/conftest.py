"""One Ray for all tests of a process. Tests that use it run on one worker, so that there is one Ray."""

import os
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

# Before Ray is imported: Ray keeps the mode and the token that it met first. The tests' Rays are as those
# that the command starts: on loopback, with a token.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # as in cluster/ray_backend/private_ray.py

# A job in the background of a script ignores Ctrl-C, and so would all that a test starts. A command that is
# started so is right to ignore it, too; tests that press Ctrl-C are about one that is not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist puts the groups into the names of tests
def pytest_collection_modifyitems(items):
    for item in items:
        if "session_ray" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("ray"))
            item.add_marker(pytest.mark.ray)


@pytest.fixture(scope="session")
def session_ray():
    """Starts and ends the Ray of this process; tests ask for `shared_ray`, `hosts` or `no_ray`."""
    from shared_ray import SharedRay

    session = SharedRay()
    yield session
    session.end()


@pytest.fixture
def shared_ray(session_ray):
    """A private Ray of eight logical cores, started once; `rayfed_kd.run` uses it."""
    session_ray.start()


@pytest.fixture(scope="session")
def session_hosts(session_ray):
    """The client actors behind `hosts`."""
    from shared_ray import Hosts

    hosts = Hosts(session_ray)
    yield hosts
    hosts.end()


@pytest.fixture
def hosts(shared_ray, session_hosts):
    """Client actors that stay from test to test: `hosts.run(recipe, *overrides)`."""
    return session_hosts


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own, so that everything is decoded anew."""
    monkeypatch.setenv("RAYFED_KD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Writes a module of the test's own into its folder, which is the current one; its name.

    Actors find a user's modules in the folder of the command.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def written(name, text):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return written


@pytest.fixture(scope="module")
def no_ray(session_ray):
    """No Ray in this process, for modules that start one of their own."""
    session_ray.end()


@pytest.fixture(autouse=True)
def blank_pictures(request, monkeypatch):
    """Figures are made and not drawn, which is most of a small run's time; tests marked `pictures` draw."""
    if request.node.get_closest_marker("pictures"):
        return
    from image_files import images, png
    from matplotlib.figure import Figure

    blank = {"png": png(images(4, 4)), "svg": '<svg viewBox="0 0 4 4"><path d="M0 0"/></svg>'}

    def save_blank(figure, target, *, format, **options):
        if hasattr(target, "write"):
            target.write(blank[format])
        else:
            Path(target).write_bytes(blank[format])

    monkeypatch.setattr(Figure, "savefig", save_blank)


@pytest.fixture
def loop():
    """An event loop whose time passes at once."""
    from simulated_cluster import SimulatedLoop

    made = SimulatedLoop()
    yield made
    made.close()


def pytest_runtest_setup(item):
    """Skip what a slow machine does not reach by the second, since 1970, that .ci/run gives."""
    if time.time() > float(os.environ.get("RAYFED_KD_TESTS_END", "inf")):
        pytest.skip("no time is left (RAYFED_KD_TESTS_END)")
