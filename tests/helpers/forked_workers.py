"""A Ray that stays for many runs, whose workers are forks of a process that has imported torch, and not Ray.

A worker that starts by itself imports for four seconds of a core, in each actor and after each kill. What a
fork runs is Ray's own `default_worker.py`.

    python forked_workers.py SOCKET                             # forks for who asks there
    python -SE forked_workers.py SOCKET setup_worker.py WORDS...  # asks: Ray's raylet starts this as a worker
"""

import json
import os
import signal
import socket
import sys

SETUP = ("--serialized-runtime-env-context=", "--language=")  # of setup_worker.py, which changes nothing here


class LastingRay:
    """Starts a Ray like a run's private one, at an address, and ends it.

    Its token stands in this process's environment: commands that this process starts may connect.

    Args:
        folder: for a socket; of a short path.
    """

    def __init__(self, folder):
        import secrets
        import subprocess
        from unittest import mock

        socket_path = str(folder / "forks")
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        command = [sys.executable, __file__, socket_path]
        self._forks = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._forks.stdout.readline() == b"ready\n"

        from rayfed_kd.cluster.ray_backend.session import RaySession, ray
        from rayfed_kd.recipe.loading import load_recipe

        services = ray._private.services
        start_process, started = services.start_ray_process, "--python_worker_command=" + sys.executable
        asking = f"{started} -SE {__file__} {socket_path}"

        def start(words, *others, **options):
            return start_process([word.replace(started, asking) for word in words], *others, **options)

        self._session = RaySession(load_recipe({"method": {"name": "fedavg"}}), None)
        with mock.patch.object(services, "start_ray_process", start):
            self._session.__enter__()
            self._session.ready()
        self.address = ray.get_runtime_context().gcs_address

    def end(self):
        """End Ray, its workers and the process that forks them."""
        self._session.__exit__(None, None, None)
        self._forks.stdin.close()
        self._forks.wait()


def ask_for_a_fork(path, words):
    """Let the process at the socket fork a worker with this process's environment."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(json.dumps([words, dict(os.environ)]).encode())
        line.shutdown(socket.SHUT_WR)
        line.recv(1)


def serve(path):
    """Import what actors import, say so with a line, and fork workers until the standard input ends."""
    import importlib
    import runpy
    import select
    import threading

    from forked_commands import PRELOADED, algorithms

    for name in (*PRELOADED, *algorithms()):
        importlib.import_module(name)
    assert "ray" not in sys.modules, "Ray reads a worker's variables as it is imported"
    assert threading.active_count() == 1, "a fork copies one thread only"
    del sys.path[0]  # of this program, which a worker is not
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready\n")
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        line, _ = listener.accept()
        with line, line.makefile("rb") as file:
            words, environment = json.load(file)
            if os.fork() == 0:
                break
    else:
        return
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [word for word in words if not word.startswith(SETUP)]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[2:]:
        ask_for_a_fork(sys.argv[1], sys.argv[3:])
    else:
        serve(sys.argv[1])
