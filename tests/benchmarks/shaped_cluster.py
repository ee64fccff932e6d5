"""Three Ray nodes on this machine: namespaces, veth pairs, a bridge and `tc`. Needs root, Linux."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUBNET = "10.77.0"  # in namespaces of its own: nothing outside them sees it
PORT = 6379
NODES = {"head": 3, "worker1": 1, "worker2": 1}  # name -> cores that Ray gives away: a server and two hosts
MIB = 2**20
START_S = 120.0


def command(*words: str) -> str:
    """Run a command to its end; gives what it printed.

    Raises: RuntimeError with its own words if it fails.
    """
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(words)}: {ended.stderr.strip()}")
    return ended.stdout


class Network:
    """Namespaces, veth pairs and a bridge; a context manager that removes them and what runs in them."""

    def __init__(self) -> None:
        self._prefix = f"rkd{os.getpid()}"
        self._switch = self.space("switch")

    def space(self, name: str) -> str:
        """The namespace of a node."""
        return f"{self._prefix}-{name}"

    def __enter__(self) -> Network:
        try:
            command("ip", "netns", "add", self._switch)
            self._in(self._switch, "ip", "link", "add", "bridge", "type", "bridge")
            self._in(self._switch, "ip", "link", "set", "bridge", "up")
            for number, node in enumerate(NODES, 1):
                self._join(node, f"{SUBNET}.{number}/24")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _join(self, node: str, address: str) -> None:
        space = self.space(node)
        command("ip", "netns", "add", space)
        pair = ("type", "veth", "peer", "name", "eth0", "netns", space)
        self._in(self._switch, "ip", "link", "add", node, *pair)
        self._in(self._switch, "ip", "link", "set", node, "master", "bridge", "up")
        self._in(space, "ip", "address", "add", address, "dev", "eth0")
        for device in ("lo", "eth0"):
            self._in(space, "ip", "link", "set", device, "up")
        # Ray asks which address a packet to the world would have; without a route it takes loopback.
        self._in(space, "ip", "route", "add", "default", "dev", "eth0")

    def shape(self, rate: str) -> None:
        """Shape both directions of each link; `unshaped` takes the shape away."""
        for node in NODES:
            for space, device in ((self._switch, node), (self.space(node), "eth0")):
                if "tbf" in self._in(space, "tc", "qdisc", "show", "dev", device):
                    self._in(space, "tc", "qdisc", "del", "dev", device, "root")
                if rate != "unshaped":
                    # A burst holds several of the 64 KiB segments that veth passes on unsplit.
                    bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "100ms")
                    self._in(space, "tc", "qdisc", "add", "dev", device, "root", *bucket)

    def counters(self) -> dict[str, tuple[int, int]]:
        """Bytes so far: node -> (out of it, into it)."""
        files = [f"/sys/class/net/{node}/statistics/{way}_bytes" for node in NODES for way in ("rx", "tx")]
        numbers = [int(word) for word in self._in(self._switch, "cat", *files).split()]
        return {node: (numbers[2 * n], numbers[2 * n + 1]) for n, node in enumerate(NODES)}

    def _in(self, space: str, *words: str) -> str:
        return command("ip", "netns", "exec", space, *words)

    def _remove(self) -> None:
        """End every process of the namespaces, which are all ours, and remove them with their devices."""
        spaces = [self.space(node) for node in NODES] + [self._switch]
        spaces = [space for space in spaces if Path("/run/netns", space).exists()]
        for ending, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            until = time.monotonic() + patience_s
            for pid in _processes(spaces):
                try:
                    os.kill(pid, ending)
                except ProcessLookupError:
                    continue
            while _processes(spaces) and time.monotonic() < until:
                time.sleep(0.2)
        for space in spaces:
            command("ip", "netns", "del", space)


def _processes(spaces: Sequence[str]) -> list[int]:
    return [int(pid) for space in spaces for pid in command("ip", "netns", "pids", space).split()]


class Cluster:
    """Ray's three nodes in a network; they end with it.

    Args:
        network: where they live.
        folder: for their files and logs; a short path, as sockets lie in it.
    Raises: RuntimeError if they are not all there after two minutes.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        self.address = f"{SUBNET}.1:{PORT}"
        self._network = network
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAYFED_KD_CACHE": str(folder / "cache"),
        }
        self._environment.pop("RAY_ADDRESS", None)
        ray = [sys.executable, "-m", "ray.scripts.scripts"]
        for number, (node, cpus) in enumerate(NODES.items(), 1):
            joins = ["--head", f"--port={PORT}", "--include-dashboard=false"]
            role = "head"
            if number > 1:
                joins, role = [f"--address={self.address}"], "worker"
            start = [*ray, "start", *joins, "--block", f"--node-ip-address={SUBNET}.{number}"]
            start += [f"--num-cpus={cpus}", f"--labels=role={role}", f"--temp-dir={folder / node[0]}{number}"]
            start += [f"--object-store-memory={512 * MIB}", "--include-log-monitor=false"]
            self.start(node, start, folder / f"{node}.log")
            self._wait(number, folder / f"{node}.log")

    def start(self, node: str, words: Sequence[str], log: Path) -> subprocess.Popen[str]:
        """Start a command on a node; its errors go to `log`, and so does what it prints, of Ray's nodes."""
        with log.open("w") as errors:
            return subprocess.Popen(
                ["ip", "netns", "exec", self._network.space(node), *words],
                stdout=subprocess.PIPE if "run" in words else errors,
                stderr=errors,
                text=True,
                env=self._environment,
                start_new_session=True,  # what Ray sends to its group is not for this process
            )

    def _wait(self, count: int, log: Path) -> None:
        script = (
            f"import ray; ray.init(address='{self.address}', logging_level='ERROR', log_to_driver=False); "
            "print(sum(node['Alive'] for node in ray.nodes()))"
        )
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with self.start(
                "head", [sys.executable, "-c", script, "run"], log.with_suffix(".wait")
            ) as asking:
                assert asking.stdout is not None
                if asking.stdout.read().strip() == str(count):
                    return
            time.sleep(1)
        raise RuntimeError(
            f"Ray's node {count} is not there after {START_S:.0f} s:\n{log.read_text()[-3000:]}"
        )
