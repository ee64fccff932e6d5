"""One Ray for all tests of a process. Tests that use it run on one worker, so that there is one Ray."""

import os
import secrets

import pytest

# Before Ray is imported: Ray keeps the mode and the token that it met first. The tests' Rays are as those
# that the command starts: on loopback, with a token.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # as in cluster/ray_backend/private_ray.py


@pytest.hookimpl(tryfirst=True)  # before xdist puts the groups into the names of tests
def pytest_collection_modifyitems(items):
    for item in items:
        if "session_ray" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("ray"))


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


@pytest.fixture(scope="module")
def no_ray(session_ray):
    """No Ray in this process, for modules that start one of their own."""
    session_ray.end()


@pytest.fixture
def blank_pictures(monkeypatch):
    """Figures are made and not drawn, which is most of a small run's time; for tests that look at none."""
    from image_files import images, png

    blank = png(images(4, 4))

    def save_blank(figure, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blank)

    monkeypatch.setattr("rayfed_kd.results.figures.save_figure", save_blank)
