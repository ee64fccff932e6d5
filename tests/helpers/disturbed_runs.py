"""Runs of a case under faults that a seed draws: started, killed and resumed until they end."""

from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import ray
from simulated_cluster import AwaitedFuture, Cluster, ServerKilledError
from simulated_runs import CLIENTS, Rows, assert_equal_end, scratch

from rayfed_kd.cluster.ray_backend.engine import RayEngine
from rayfed_kd.cluster.ray_backend.placement import Plan
from rayfed_kd.cluster.server.assembly import AssembledRun
from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.cluster.server.round_tables import RoundWriter
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.errors import RunError
from rayfed_kd.recipe.sections.placement import ResourceRecipe
from rayfed_kd.recipe.sections.safety import FaultsRecipe

STARTS = 8  # from the last of them on nothing goes wrong any more
SPAN_S = 20.0  # simulated seconds in which faults happen; an undisturbed run takes about as many
ACTOR_FAULTS = ("kill", "kill", "kill all", "disconnect", "machine", "hang", "slow", "gone", "stop")


class SimulatedWriter:
    """Records rounds as the writer's thread does: at once, or when the server waits for it.

    Args:
        start: the start that it belongs to.
    """

    def __init__(self, start):
        self._start = start

    def submit(self, write):
        done = Written(self._start, write)
        if self._start.cluster.chance(0.3):
            done.result()
        return done


class Written:
    """A record under way."""

    def __init__(self, start, write):
        self._start, self._write, self._done = start, write, Future()

    def done(self):
        return self._done.done()

    def result(self, timeout=None):
        if not self._done.done():
            AwaitedFuture.deadline = None if timeout is None else self._start.cluster.loop.time() + timeout
            try:
                self._write()
            except TimeoutError:  # the thread would go on; nobody waits for it any more
                raise
            except Exception as error:
                self._done.set_exception(error)
            else:
                self._done.set_result(None)
            finally:
                AwaitedFuture.deadline = None
        return self._done.result()


class SimulatedEngine(RayEngine):
    """Ray's engine; whatever the server asks of it is a moment at which something may happen."""

    start: "Start"

    def publish(self, arrays):
        self.start.moment()
        return super().publish(arrays)

    def submit(self, calls, summed_sizes=()):
        self.start.moment()
        return super().submit(calls, summed_sizes)

    def durable(self, result):
        self.start.moment()
        return super().durable(result)


class Start:
    """One start of a run, from its newest checkpoint to its end or its death.

    Args:
        case: what is run.
        stream: decides everything.
        number: of this start, from 0.
        folder: with the checkpoints.
        rows: the tables so far.
    """

    def __init__(self, case, stream, number, folder, rows):
        self.case, self.stream, self.number, self.folder, self.rows = case, stream, number, folder, rows
        self.faults = Counter()
        self.excuses = set()  # why this start may end with a RunError
        self.moments = 0
        self.dies_at = self.disk_fails_at = None
        pinned = stream.random() < 0.2
        hosts = CLIENTS if pinned else int(stream.integers(1, 5))
        machines = int(stream.integers(1, 4))
        keep = int(stream.integers(1, CLIENTS + 1))
        self.plan = Plan(hosts, pinned, keep, ResourceRecipe(), ResourceRecipe())
        self.max_retries = int(stream.choice([0, 1, 3, 100]))
        self.step_timeout_s = (None, 30.0, "auto", "auto")[int(stream.integers(4))]
        self.durable = bool(stream.random() < 0.5)
        self.cluster = Cluster(stream, hosts, machines, case.host)
        self._draw_faults()

    def _draw_faults(self):
        if self.number >= STARTS - 1:
            self.max_retries = 100
            return
        stream, weaker = self.stream, 0.7**self.number
        for _ in range(int(stream.poisson(2.5 * weaker))):
            kind = str(stream.choice(ACTOR_FAULTS))
            if kind == "hang" and self.step_timeout_s is None:
                continue  # then a step may hang for ever, as the recipe says
            self.cluster.loop.call_later(float(stream.uniform(0, SPAN_S)), self._happen, kind)
        if stream.random() < 0.5 * weaker:
            self.dies_at = int(stream.integers(1, 90))
        if stream.random() < 0.2 * weaker:
            self.disk_fails_at = int(stream.integers(1, 15))

    def _happen(self, kind):
        self.faults[kind] += 1
        cluster = self.cluster
        actor = cluster.actors[int(self.stream.integers(len(cluster.actors)))]
        if kind == "kill":
            actor.kill()
        elif kind == "kill all":
            for one in cluster.actors:
                one.kill()
        elif kind == "gone":
            self.excuses.add("a host is gone for good")
            actor.kill(comes_back=False)
        elif kind == "disconnect":
            actor.disconnect()
        elif kind == "machine":
            self.excuses.add("data lay on a lost machine")
            cluster.lose_machine(int(self.stream.integers(1, cluster.machines + 1)))
        elif kind == "hang":
            actor.hangs += 1
        elif kind == "slow":
            actor.slowness = float(self.stream.uniform(2, 50))
        elif kind == "stop":
            self.simulation.stop()
            self.engine.cancel()

    def moment(self):
        """Something that the server's process does: it may die there, and others may go on meanwhile."""
        self.moments += 1
        if self.moments == self.dies_at:
            self.faults["server"] += 1
            raise ServerKilledError
        if self.cluster.chance(0.3):
            self.cluster.loop.pass_time(self.cluster.seconds(0.3))

    def flush(self, descriptor):
        """A file's way to the disk: slow, or it fails, or the process dies meanwhile."""
        self.faults["slow disk"] += self.cluster.chance(0.05)
        self.cluster.loop.pass_time(self.cluster.seconds(20.0 if self.cluster.chance(0.05) else 0.05))
        self.moment()
        if self.disk_fails_at is not None:
            self.disk_fails_at -= 1
            if self.disk_fails_at == 0:
                self.faults["full disk"] += 1
                self.excuses.add("the disk is full")
                raise OSError(28, "No space left on device")

    def run(self):
        """Gives how it ended: finished, interrupted, failed or killed."""
        with self._simulated():
            try:
                return self._run()
            except ServerKilledError:
                return "killed"
            except RunError as error:
                if self.cluster.lost + self.cluster.ended > self.max_retries:
                    self.excuses.add("steps were lost too often")
                if not self.excuses:
                    raise AssertionError(f"nothing that happened explains: {error}") from error
                return "failed"
            finally:
                self.cluster.close()
                assert not self.cluster.loop.faults, f"nobody caught: {self.cluster.loop.faults}"

    def _run(self):
        recipe = self.case.settings[self.durable].recipe
        faults = FaultsRecipe(max_retries=self.max_retries, step_timeout_s=self.step_timeout_s)
        SimulatedEngine.start = self
        self.engine = engine = SimulatedEngine(
            self.cluster.actors,
            None,
            self.plan,
            self.case.settings[False].partition.sizes.tolist(),
            self.cluster.loop,
            faults=faults,
            tell=lambda line: None,
        )
        checkpointer = Checkpointer(self.folder, recipe.checkpoint)
        self.simulation = Simulation(self.case.settings[self.durable], engine, self.rows, "cpu", checkpointer)
        self.simulation.writer = RoundWriter(self.rows, SimulatedWriter(self))
        start = checkpointer.latest(engine.publish, "cpu", lambda line: None)
        self.rows.go_back(0 if start is None else start.round)
        return AssembledRun(self.simulation, self.rows, start).run()["status"]

    @contextmanager
    def _simulated(self):
        AwaitedFuture.loop = self.cluster.loop
        with (
            mock.patch("rayfed_kd.cluster.ray_backend.engine.Future", AwaitedFuture),
            mock.patch.object(ray, "put", self.cluster.put),
            mock.patch.object(ray, "kill", self.cluster.kill),
            mock.patch("os.fsync", self.flush),
        ):
            yield


def run_disturbed(case, seed):
    """Run a case through a seed's faults to its end, which must be that of the undisturbed run.

    Returns: what happened, by its name, and how often.
    Raises: AssertionError if the end is another, or something went wrong that no fault explains.
    """
    stream = np.random.default_rng([seed, *case.name.encode()])
    story, rows = Counter(runs=1), Rows()
    with scratch() as folder:
        for number in range(STARTS):
            start = Start(case, stream, number, Path(folder), rows)
            end = start.run()
            story += start.faults + Counter(
                {
                    "starts": 1,
                    f"end: {end}": 1,
                    "calls": start.cluster.calls,
                    "processes lost": start.cluster.lost,
                }
            )
            if end == "finished":
                assert_equal_end(case, rows, Path(folder))
                return story
            story["checkpoint cut off"] += _cut_off(Path(folder), stream)
    raise AssertionError(f"not finished after {STARTS} starts, the last of them undisturbed")


def _cut_off(folder, stream):
    """Now and then the newest checkpoint is damaged; one before it must be there."""
    files = sorted((folder / "checkpoints").glob("round-*.safetensors"))
    if len(files) < 2 or stream.random() > 0.2:
        return 0
    content = files[-1].read_bytes()
    files[-1].write_bytes(content[: int(stream.integers(0, len(content)))])
    return 1
