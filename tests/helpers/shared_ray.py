"""One Ray for all tests of a process, and client actors that stay: torch is imported once in each.

A run through `rayfed_kd.run` starts a server's process and new client processes, which takes seconds. `Hosts`
runs the server's loop in the test's own process, on actors that are built again for every run. What only
processes of a run's own show is tested with `rayfed_kd.run` in `shared_ray`.
"""

import os

from event_loops import LoopThread
from runs import run_setting

from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.loading import load_recipe

CORES = 8  # logical ones: actors are counted, not measured


class SharedRay:
    """Starts Ray when it is first asked for, as a run does, and again if a test has ended it."""

    def __init__(self):
        self._session = None
        self.starts = 0  # how many there were: actors of an earlier one are gone

    def start(self):
        import ray

        from rayfed_kd.cluster.ray_backend.session import RaySession

        if ray.is_initialized():
            return
        self.end()
        # The command gives the machine's cores and the server's share: this makes them `CORES`.
        server = {"num_cpus": max(1, CORES - (os.cpu_count() or 1))}
        recipe = load_recipe({"method": {"name": "fedavg"}, "placement": {"server": server}})
        self._session = RaySession(recipe, None, environments=True)  # searches are tested here, too
        self._session.__enter__()
        self._session.ready()
        self.starts += 1

    def end(self):
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)


class Hosts(LoopThread):
    """Client actors for run after run, as many as a plan asks for."""

    def __init__(self, shared):
        self._shared, self._actors, self._start = shared, [], 0
        super().__init__()

    def run(self, recipe, *overrides, after_round=lambda record: None):
        """A run whose clients lie on hosts as the recipe's `placement` says on a machine of `CORES`.

        `after_round` is called with the record of each round.
        """
        import ray

        from rayfed_kd.cluster.ray_backend.engine import RayEngine
        from rayfed_kd.cluster.ray_backend.placement import Node, plan_hosts

        prepared = prepare(recipe, overrides)
        resolved, setting = prepared.recipe, prepared.setting
        plan = plan_hosts(resolved, setting.schedule.concurrency, [Node(CORES, 0, 24 * 2**30)])
        told, actors, blueprint = [], self._ready(plan.num_hosts), ray.put(prepared.blueprint)
        engine = RayEngine(
            actors,
            blueprint,
            plan,
            setting.partition.sizes.tolist(),
            self.loop,
            faults=resolved.faults,
            architectures=setting.models_by_client,
            tell=told.append,
        )
        outcome = run_setting(setting, engine, after_round)
        outcome.told = told
        return outcome

    def _ready(self, count):
        import ray

        from rayfed_kd.cluster.ray_backend.client_actor import ClientActor

        if self._start != self._shared.starts:
            self._actors, self._start = [], self._shared.starts
        actor = ray.remote(ClientActor).options(num_cpus=0, max_restarts=-1)
        self._actors += [actor.remote() for _ in range(count - len(self._actors))]
        return self._actors[:count]
