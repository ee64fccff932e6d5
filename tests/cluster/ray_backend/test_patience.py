"""How long a call may take: a given limit, or a multiple of the longest of its kind; only while it runs."""

import asyncio
from concurrent.futures import Future

from rayfed_kd.cluster.engine.calls import Held, StepCall
from rayfed_kd.cluster.ray_backend.dispatch.jobs import Job
from rayfed_kd.cluster.ray_backend.dispatch.patience import FIRST_S, LEAST_S, LOOK_S, MULTIPLE, Patience
from rayfed_kd.protocol import DispatchFacts


def job(clients=1, samples=10, lost=0, step="client_update"):
    calls = [
        StepCall(step, DispatchFacts(client, 1, 1), Held({}), {}, None, -1, 1) for client in range(clients)
    ]
    return Job(1, calls, [Future() for _ in calls], samples, lost)


class Host:
    """Calls of given lengths at one host; None: it hangs."""

    def __init__(self, loop, limit):
        self.loop, self.patience = loop, Patience(limit, loop, 1)
        self._before = None

    def send(self, seconds, **options):
        """A task that gives the limit that ended the call; empty if none did."""
        answer, before = self.loop.create_future(), self._before
        self._before = answer

        async def call():
            turn = self.patience.begin(0, [job(**options)])
            try:
                if before is not None:
                    await asyncio.wait([before])
                if seconds is None:
                    await self.loop.create_future()
                await asyncio.sleep(seconds)
                self.patience.end(0, turn, answered=True)
            except asyncio.CancelledError:
                self.patience.end(0, turn, answered=False)
            answer.set_result(None)
            return turn.limit

        return self.loop.create_task(call())

    def limits(self, *tasks):
        return self.loop.run_until_complete(asyncio.gather(*tasks))


def test_given_limit_ends_a_call_that_takes_longer(loop):
    host = Host(loop, 8.0)
    assert host.limits(host.send(7.9)) == [""]
    before = loop.time()
    assert host.limits(host.send(None)) == ["took longer than faults.step_timeout_s = 8"]
    assert 8 < loop.time() - before < 10


def test_a_group_may_take_the_sum_of_its_clients_limits(loop):
    host = Host(loop, 8.0)
    found = host.limits(host.send(23.0, clients=3), host.send(None, clients=3))
    assert found == ["", "took longer than faults.step_timeout_s = 8 for each of 3 clients"]


def test_time_runs_from_the_end_of_the_call_before_it(loop):
    """So a host can have its next call while it works on one."""
    host = Host(loop, 8.0)
    assert host.limits(*(host.send(7.0) for _ in range(4))) == [""] * 4


def test_auto_ends_a_hung_call_after_a_multiple_of_the_longest(loop):
    host = Host(loop, "auto")
    assert host.limits(host.send(100.0), host.send(30.0)) == ["", ""]
    before = loop.time()
    (limit,) = host.limits(host.send(None))
    assert limit.startswith("took longer than 2000 s, and the longest client_update so far 100 s")
    assert MULTIPLE * 100 < loop.time() - before <= MULTIPLE * 100 + 2 * LOOK_S


def test_auto_gives_more_samples_more_time_and_a_second_try_twice_as_much(loop):
    host = Host(loop, "auto")
    host.limits(host.send(100.0, samples=10))
    assert host.patience.limit_s([job(samples=30)])[0] == MULTIPLE * 300
    assert host.patience.limit_s([job(samples=5)])[0] == MULTIPLE * 100
    assert host.patience.limit_s([job(samples=10, lost=2)])[0] == 4 * MULTIPLE * 100


def test_auto_never_ends_what_takes_minutes(loop):
    host = Host(loop, "auto")
    assert host.limits(host.send(0.01), host.send(LEAST_S - 1)) == ["", ""]


def test_auto_gives_the_first_of_its_kind_hours(loop):
    host = Host(loop, "auto")
    host.limits(host.send(1.0, step="other"))
    long, hung = host.limits(host.send(FIRST_S - 60), host.send(None))
    assert long == ""
    assert "the longest client_update so far 2.15e+04 s" in hung
    (first,) = host.limits(host.send(None, step="third"))
    assert first.startswith("took longer than 21600 s, and no third has ended so far")


def test_without_a_limit_nothing_is_ended_or_looked_at(loop):
    host = Host(loop, None)
    assert host.limits(host.send(1.0), host.send(1e6)) == ["", ""]
    assert loop.clock.events < 30  # a look every quarter of a minute would be 66,000


def test_seconds_in_which_the_process_itself_stood_still_do_not_count(loop):
    """A machine that is suspended for an hour wakes up with all of its steps an hour older."""
    host = Host(loop, "auto")
    host.limits(host.send(1.0))
    task = host.send(LEAST_S - 50)
    loop.call_later(100, lambda: setattr(loop.clock, "now", loop.clock.now + 3600))
    assert host.limits(task) == [""]
