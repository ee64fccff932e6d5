"""A cluster in one thread: client actors, object store and time are simulated, Ray's engine is the real one.

The event loop has a clock of its own that jumps to the next event, so seconds of a run pass in no time, and
the same random numbers give the same order of events. Actors are fakes under the engine's calls: they run
`ClientActor` and `Host`, and die, hang, come back and lose their machines when the simulation says so.

If nothing can happen any more while somebody waits, `StoodStillError` says so: a wake-up was lost.
"""

import asyncio
import selectors
from collections import deque
from concurrent.futures import Future

import ray

from rayfed_kd.cluster.ray_backend.client_actor import ClientActor

SERVER = 0  # number of the server's machine
MOST_EVENTS = 300_000  # of one start: more means that something is tried again for ever
RETURNS = {"run": 1, "evaluate": 1, "build": 1}  # unless a call says how many


class StoodStillError(AssertionError):
    """Somebody waits, and no event is left that could end it."""


class ServerKilledError(BaseException):
    """The server's process ends here. No handler of the code under test may catch it."""


class SimulatedClock(selectors.SelectSelector):
    """Instead of waiting for files, moves the clock to the next event."""

    def __init__(self):
        super().__init__()
        self.now, self.events = 0.0, 0

    def select(self, timeout=None):
        self.events += 1
        if timeout is None:
            raise StoodStillError("nothing is left to happen")
        if self.events > MOST_EVENTS:
            raise StoodStillError(f"{MOST_EVENTS} events, and still no end")
        self.now += timeout
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time, run by whoever waits for something."""

    def __init__(self):
        self.clock = SimulatedClock()
        super().__init__(self.clock)
        self.faults = []  # what a task or a callback raised that nobody caught
        self.set_exception_handler(lambda loop, context: self.faults.append(context))

    def time(self):
        return self.clock.now

    def _write_to_self(self):
        """Nothing sleeps, so nothing has to be woken."""

    def wait_for(self, future, seconds=None):
        """Let events happen until a future of another thread, as the code under test sees it, is done."""
        over = self.create_future()

        def end(*_):
            if not over.done():
                over.set_result(None)

        future.add_done_callback(end)
        timer = None if seconds is None else self.call_later(seconds, end)
        self.run_until_complete(over)
        if timer is not None:
            timer.cancel()

    def pass_time(self, seconds):
        """Let events happen for so long."""
        if seconds > 0:
            self.run_until_complete(asyncio.sleep(seconds))


class AwaitedFuture(Future):
    """The engine's future: the server's thread waits for it by letting events happen.

    Attributes:
        loop: of the cluster that is simulated now.
        deadline: simulated second until which the server waits at most; None: for ever.
    """

    loop = None
    deadline = None

    def result(self, timeout=None):
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout=None):
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout):
        if self.done():
            return
        if timeout is None and self.deadline is not None:
            timeout = max(0.0, self.deadline - self.loop.time())
        self.loop.wait_for(self, timeout)


class Ref:
    """A reference to an object of the store, which lies on one machine."""

    def __init__(self, machine):
        self.machine, self.lost, self._future = machine, False, Future()

    def put(self, value, error=None):
        if not self._future.done():
            if error is None:
                self._future.set_result(value)
            else:
                self._future.set_exception(error)
        return self

    def future(self):
        """As Ray's: a new future of the value."""
        mine = Future()

        def hand_on(done):
            if mine.cancelled():
                return
            if self.lost:
                mine.set_exception(ray.exceptions.ObjectLostError("ff", None, "simulated"))
            elif done.exception() is not None:
                mine.set_exception(done.exception())
            else:
                mine.set_result(done.result())

        self._future.add_done_callback(hand_on)
        return mine


class Method:
    """A method of an actor, called as Ray's are."""

    def __init__(self, actor, name, returns):
        self._actor, self._name, self._returns = actor, name, returns

    def options(self, name, num_returns=1):
        return Method(self._actor, self._name, num_returns)

    def remote(self, *given):
        call = Call(self._name, given, self._returns)
        self._actor.take(call)
        return call.refs if self._returns > 1 else call.refs[0]


class Call:
    """A call under way."""

    def __init__(self, name, given, returns):
        self.name, self.given = name, given
        self.refs = [Ref(SERVER) for _ in range(returns)]

    def answer(self, value, machine):
        values = [value] if len(self.refs) == 1 else value
        for ref, one in zip(self.refs, values, strict=True):
            ref.machine = machine
            ref.put(one)

    def fail(self, error):
        for ref in self.refs:
            ref.put(None, error)


class Process(ClientActor):
    """What runs in an actor's process: the real one, with a host that the simulation makes."""

    def __init__(self, make_host):
        super().__init__()
        self._make_host = make_host

    def build(self, blueprint, host, plan):
        self._built = self._make_host(host, plan.keep_states)

    def answer_to(self, call):
        """Gives the call's value and None, or None and its error as Ray wraps it."""
        try:
            return getattr(self, call.name)(*call.given), None
        except Exception as error:
            return None, ray.exceptions.RayTaskError(call.name, "", error).as_instanceof_cause()


class Actor:
    """A client actor: at most one process at a time, which runs one call after another.

    Args:
        cluster: that it is part of.
        machine: where its first process is.
    """

    def __init__(self, cluster, machine):
        self.cluster, self.machine = cluster, machine
        self.process = None  # none while it starts
        self.gone = False  # for good
        self.hangs = 0  # so many of the next calls never end by themselves
        self.slowness = 1.0
        self._calls, self._running = deque(), None
        cluster.loop.call_later(cluster.seconds(2.0), self._start)

    def __getattr__(self, name):
        if name in RETURNS:
            return Method(self, name, RETURNS[name])
        raise AttributeError(name)

    def take(self, call):
        """A new call: waits for its turn. While the actor is restarted, Ray refuses it or lets it wait."""
        if self.gone:
            self._fail_later(call, ray.exceptions.ActorDiedError())
        elif self.process is None and self.cluster.chance(0.5):
            self._fail_later(call, ray.exceptions.ActorUnavailableError("it is restarting", None))
        else:
            self._calls.append(call)
            self._next()

    def kill(self, *, comes_back=True, machine=None):
        """End the process. What it ran is lost; what waited is lost, too, or meets the next process."""
        if self.process is None or self.gone:
            return
        self.cluster.lost += 1
        self.process, self.slowness = None, 1.0
        self.machine = self.machine if machine is None else machine
        waiting, self._calls = list(self._calls), deque()
        if self._running is not None:
            self._fail_later(self._running, ray.exceptions.ActorUnavailableError("it was killed", None))
            self._running = None
        for call in waiting:
            if comes_back and self.cluster.chance(0.3):
                self._calls.append(call)
            else:
                self._fail_later(call, ray.exceptions.ActorUnavailableError("it was killed", None))
        if comes_back:
            self.cluster.loop.call_later(self.cluster.seconds(5.0), self._start)
        else:
            self.gone = True

    def disconnect(self):
        """Its callers take it for lost, and it goes on: what it runs is done twice."""
        if self._running is not None:
            self.cluster.lost += 1
            self._fail_later(self._running, ray.exceptions.ActorUnavailableError("no answer", None))

    def _start(self):
        if not self.gone:
            self.process = Process(self.cluster.make_host)
            self._next()

    def _next(self):
        if self.process is None or self._running is not None or not self._calls:
            return
        call = self._running = self._calls.popleft()
        process = self.process
        # Computed when it starts, as it reads its inputs then; the answer comes when it ends.
        value, error = process.answer_to(call)
        if self.hangs and call.name != "build":
            self.hangs -= 1
            return
        seconds = self.slowness * self.cluster.seconds(1.0)
        self.cluster.loop.call_later(seconds, self._end, call, process, value, error)

    def _end(self, call, process, value, error):
        if self.process is not process:
            return  # it was killed meanwhile, so nobody hears of this
        self._running = None
        self.cluster.calls += 1
        if error is None:
            call.answer(value, self.machine)
            self.cluster.stored.extend(call.refs)
        else:
            call.fail(error)
        self._next()

    def _fail_later(self, call, error):
        self.cluster.loop.call_later(self.cluster.seconds(0.5), call.fail, error)


class Cluster:
    """All actors, machines and objects of one start of a run.

    Args:
        stream: numpy's generator that decides every duration.
        hosts: number of client actors, spread over `machines` beside the server's.
        make_host: makes a `Host` from its number and how many states it keeps.
    """

    def __init__(self, stream, hosts, machines, make_host):
        self.loop, self.stream, self.make_host = SimulatedLoop(), stream, make_host
        self.machines, self.stored = machines, []
        self.lost = self.ended = self.calls = 0  # processes lost, of them by `ray.kill`; calls answered
        self.actors = [Actor(self, 1 + number % machines) for number in range(hosts)]

    def seconds(self, mean):
        return float(self.stream.exponential(mean))

    def chance(self, probability):
        return bool(self.stream.random() < probability)

    def put(self, value):
        """In the store of the server's machine, as `ray.put` does there."""
        return Ref(SERVER).put(value)

    def kill(self, actor, no_restart=True):
        """As `ray.kill`: the process ends a moment later."""
        assert not no_restart
        self.ended += 1
        self.loop.call_later(self.seconds(0.05), actor.kill)

    def lose_machine(self, machine):
        """Its objects are gone, and its actors start on another one."""
        for ref in self.stored:
            ref.lost = ref.lost or ref.machine == machine
        for actor in self.actors:
            if actor.machine == machine:
                actor.kill(machine=1 + machine % self.machines)

    def close(self):
        """End what is still under way, as the end of the server's process does."""
        self.loop.clock.events = 0
        self.loop.run_until_complete(asyncio.sleep(0))  # tasks that are only announced begin
        for _ in range(1000):  # a cancelled call may start the next one, which is cancelled in turn
            pending = asyncio.all_tasks(self.loop)
            if not pending:
                break
            for task in pending:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.close()
