"""A host that is built again answers, is ended and tried again, or is gone: nobody waits for it for ever."""

import asyncio

import pytest
import ray
from simulated_cluster import SERVER, Ref

from rayfed_kd.cluster.ray_backend.dispatch.client_hosts import ANSWER_S, RESTART_S, SILENCES, ClientHosts
from rayfed_kd.cluster.ray_backend.dispatch.patience import FIRST_S, MULTIPLE
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.recipe.sections.placement import ResourceRecipe


class Silent:
    """An actor that does not answer `build` until it was killed so often.

    Args:
        kills: how often.
        answered: how many first calls are answered all the same.
        after_s: seconds until an answer.
    """

    def __init__(self, kills, answered=1, after_s=0.0):
        self.builds, self.kills_left, self.answered, self.after_s = 0, kills, answered, after_s
        self.build = self

    def remote(self, *given):
        self.builds += 1
        answer = Ref(SERVER)
        if self.builds <= self.answered or self.kills_left == 0:
            asyncio.get_running_loop().call_later(self.after_s, answer.put, None)
        return answer


@pytest.fixture
def built(loop, monkeypatch):
    """Builds hosts for the first time; gives them."""

    def build(*actors):
        def kill(killed, no_restart):
            assert killed in actors
            assert not no_restart
            killed.kills_left -= 1

        async def build_all():
            await asyncio.gather(*(hosts.build(host, "never started") for host in range(len(actors))))

        monkeypatch.setattr(ray, "kill", kill)
        plan = Plan(len(actors), False, 1, ResourceRecipe(), ResourceRecipe())
        hosts = ClientHosts(actors, None, plan, print)
        loop.run_until_complete(build_all())
        return hosts

    return build


@pytest.fixture
def rebuilt(loop, built):
    """Builds a host, loses it, builds it again; gives the hosts."""

    def rebuild(actor):
        hosts = built(actor)
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


def test_host_that_never_answers_is_gone_after_so_many_silences(loop, rebuilt):
    hosts = rebuilt(Silent(kills=100))
    assert hosts.gone == {0: f"gave no answer for {ANSWER_S:g} s"}
    assert hosts.building == {0}
    assert loop.time() == pytest.approx(SILENCES * ANSWER_S, abs=60)


def test_first_build_that_hangs_is_ended_and_tried_again(loop, built):
    """Nothing is known of how long a build takes here, so it gets hours."""
    hosts = built(actor := Silent(kills=1, answered=0))
    assert actor.builds == 2
    assert not hosts.building
    assert FIRST_S <= loop.time() < FIRST_S + 60


def test_hosts_that_were_built_say_how_long_another_may_take(loop, built):
    """Twenty times as long as the longest of them, as of a step."""
    hosts = built(Silent(kills=0, after_s=100.0), Silent(kills=100, answered=0))
    assert hosts.building == {1}
    assert hosts.gone == {1: f"gave no answer for {MULTIPLE * 100:g} s"}
    assert loop.time() == pytest.approx(SILENCES * MULTIPLE * 100, abs=60)


def test_hosts_that_start_one_after_another_are_waited_for(loop, built):
    """A thousand processes of one machine: the last starts when all others have, hours after the first."""
    starts = [60.0 * 2**place for place in range(10)]
    actors = [Silent(kills=0, after_s=after_s) for after_s in starts]
    hosts = built(*actors)
    assert not hosts.building
    assert not hosts.gone
    assert starts[-1] > 2 * FIRST_S / 3
    assert all(actor.builds == 1 for actor in actors)


class Homeless(Silent):
    """An actor that has no room on any machine until a time."""

    def __init__(self, room_at_s):
        super().__init__(kills=0)
        self.room_at_s = room_at_s

    def remote(self, *given):
        if asyncio.get_running_loop().time() < self.room_at_s:
            raise ray.exceptions.ActorUnavailableError("no room", None)
        return super().remote(*given)


def test_host_without_room_is_told_of_given_up_and_taken_back_when_there_is_room(loop):
    plan, lines, waits = Plan(2, False, 1, ResourceRecipe(), ResourceRecipe()), [], []
    hosts = ClientHosts([Homeless(1000.0), Silent(kills=0)], None, plan, lines.append)
    loop.run_until_complete(hosts.build(1, "never started"))
    loop.run_until_complete(hosts.build(0, "lost", lambda: waits.append(dict(hosts.gone))))
    assert lines == [
        "host 0 waits for room on a machine; 1 of 2 hosts are at work",
        "host 0 has found room; 2 of 2 hosts are at work",
    ]
    assert waits == [{0: f"lost and found no room for {RESTART_S:g} s"}]
    assert not hosts.gone
    assert not hosts.building
    assert loop.time() == pytest.approx(1000, abs=1)
