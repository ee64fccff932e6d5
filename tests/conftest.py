"""One Ray for all tests of a process. Tests that use it run on one worker, so that there is one Ray."""

import os

import pytest

# Ray remembers the mode of the first; unset it would be `token` for a private Ray, while the command's own
# private Rays, on loopback, have none.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")


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
