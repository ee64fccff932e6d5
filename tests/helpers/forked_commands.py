"""The command `rayfed-kd` in a process that starts in milliseconds: forked where torch is imported already.

The parent of the processes is the fork server of `multiprocessing`. It has imported what a run on the local
engine imports (two seconds of a core), not Ray, and nothing was called in it. What the child runs is the real
`main`.
"""

import multiprocessing
import os
import sys
import threading
from pathlib import Path

PRELOADED = (
    "torch.utils.tensorboard",
    "pandas",
    "pyarrow.dataset",
    "matplotlib.backends.backend_agg",
    "rayfed_kd.cli.main",
    "rayfed_kd.experiment.running",
    "rayfed_kd.results.charts.partition",
    "rayfed_kd.results.trackers.tensorboard",
    "rayfed_kd.setting.blueprint",
    "rayfed_kd.cluster.server.assembly",
)


class ForkedCommand:
    """A command that is going on; of `subprocess.Popen` it has what a killer needs.

    Args:
        words: of the command line, after the program's name.
        errors: the file that gets its standard error.
        environment: variables that it has beside this process's, as the address of a Ray.
    """

    def __init__(self, words, errors, environment=()):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, *algorithms()])
        arguments = (list(map(str, words)), str(errors), dict(environment))
        self._process = context.Process(target=call_main, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        """None while it goes on; the negative signal if it was killed."""
        return self._process.exitcode

    def poll(self):
        """As `returncode`."""
        return self.returncode

    def wait(self, timeout):
        """Wait until it has ended. Raises: AssertionError after `timeout` seconds."""
        self._process.join(timeout)
        assert self.returncode is not None, f"it did not end in {timeout} s"
        return self.returncode

    def kill(self):
        """SIGKILL, and wait for it."""
        self._process.kill()
        self._process.join()


def algorithms():
    """The modules of all methods, that no start has to import them."""
    from rayfed_kd.algorithms import METHODS

    return sorted({location.partition(":")[0] for location in METHODS.values()})


def call_main(words, errors, environment):
    """What the forked process does: the command, with a session and an error stream of its own."""
    os.setsid()
    for number, path in ((1, os.devnull), (2, errors)):
        with Path(path).open("w") as file:
            os.dup2(file.fileno(), number)
    missing = [name for name in PRELOADED if name not in sys.modules]
    assert not missing, f"the fork server could not import {missing}"
    assert "ray" not in sys.modules, "the fork server has imported Ray"
    assert threading.active_count() == len(list(Path("/proc/self/task").iterdir())) == 1, (
        "a fork copies one thread only"
    )
    os.environ.update(environment)
    sys.argv = ["rayfed-kd", *words]
    from rayfed_kd.cli.main import main

    main()
