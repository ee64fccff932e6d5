"""A host that is built again answers, is ended and tried again, or is gone: nobody waits for it for ever."""

import pytest
import ray
from simulated_cluster import SERVER, Ref, SimulatedLoop

from cluster.ray_backend.client_hosts import ANSWER_S, SILENCES, ClientHosts
from cluster.ray_backend.placement import Plan
from rayfed_kd.recipe.schema import ResourceRecipe


class Silent:
    """An actor whose first call of `build` is answered; later ones are not, until it was killed so often."""

    def __init__(self, kills):
        self.builds, self.kills_left = 0, kills
        self.build = self

    def remote(self, *given):
        self.builds += 1
        answer = Ref(SERVER)
        return answer.put(None) if self.builds == 1 or self.kills_left == 0 else answer


@pytest.fixture
def loop():
    made = SimulatedLoop()
    yield made
    made.close()


@pytest.fixture
def rebuilt(loop, monkeypatch):
    """Builds a host, loses it, builds it again; gives the hosts."""

    def rebuild(actor):
        def kill(killed, no_restart):
            assert killed is actor
            assert not no_restart
            actor.kills_left -= 1

        monkeypatch.setattr(ray, "kill", kill)
        hosts = ClientHosts([actor], None, Plan(1, False, 1, ResourceRecipe(), ResourceRecipe()))
        loop.run_until_complete(hosts.build(0, "never started"))
        hosts.building.add(0)
        loop.run_until_complete(hosts.build(0, "no answer"))
        return hosts

    return rebuild


def test_process_that_hangs_in_its_last_call_is_ended_and_built_again(loop, rebuilt):
    hosts = rebuilt(actor := Silent(kills=1))
    assert actor.builds == 3
    assert not hosts.building
    assert not hosts.gone
    assert ANSWER_S <= loop.time() < ANSWER_S + 60


def test_host_that_never_answers_is_gone(rebuilt):
    hosts = rebuilt(Silent(kills=100))
    assert hosts.gone == {0: f"gave no answer for {ANSWER_S:g} s"}
    assert hosts.building == {0}


def test_it_is_given_up_after_so_many_silences(loop, rebuilt):
    rebuilt(Silent(kills=100))
    assert loop.time() == pytest.approx(SILENCES * ANSWER_S, abs=60)
