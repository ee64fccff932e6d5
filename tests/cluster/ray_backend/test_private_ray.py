"""Who can reach a Ray that a command starts for itself: both known attacks, tried on a run that is under way.

The run and the attackers are in network namespaces of their own, joined by a cable; where none can be made
the attacks go over loopback alone.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from ray_processes import CLIENTS
from waiting import wait_until

from rayfed_kd.cluster.ray_backend.private_ray import (
    BELOW,
    MOST_OF_A_PATH,
    private_environment,
    private_folder,
)
from rayfed_kd.errors import RecipeError

ROOT = Path(__file__).parents[3]
CABLE = ("198.18.77.1", "198.18.77.2")  # the run's end and the attacker's; of the range kept for tests
LOOPBACK = re.compile(r"127\.|::ffff:127\.|::1$")

# Asks every address to run a job, as anybody may who can speak HTTP; prints what each answered.
POST = """
import json, sys, urllib.error, urllib.request
answers = {}
for place in sys.argv[2:]:
    body = json.dumps({"entrypoint": f"touch {sys.argv[1]}"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{place}/api/job_agent/jobs/", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            answers[place] = answer.status
    except urllib.error.HTTPError as error:
        answers[place] = error.code
    except Exception as error:
        answers[place] = repr(error)
print(json.dumps(answers))
"""
# Where processes listen, asked in their namespace, which is all that psutil sees.
LISTENING = """
import json, sys, psutil
lines = {number: psutil.Process(int(number)).net_connections("inet") for number in sys.argv[1:]}
def places(found):
    return [f"{line.laddr.ip}:{line.laddr.port}" for line in found if line.status == psutil.CONN_LISTEN]
print(json.dumps({number: places(found) for number, found in lines.items()}))
"""
# Joins a Ray as a driver and runs a task there, for which no core needs to be free.
JOIN = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("joined", ray.get(ray.remote(num_cpus=0)(lambda: 42).remote(), timeout=60))
"""


def configure(words):
    """Whether `ip` is there and may do that."""
    if shutil.which("ip") is None:
        return False
    return subprocess.run(["ip", *words.split()], capture_output=True, check=False).returncode == 0


class Network:
    """Two namespaces, or none: words before a command put it into the run's or the attacker's."""

    def __init__(self):
        self.run, self.outside = f"rkrun{os.getpid()}", f"rkout{os.getpid()}"
        self.there = False

    def __enter__(self):
        ends = f"rka{os.getpid()}", f"rkb{os.getpid()}"
        self.there = all(
            configure(words)
            for words in (
                f"netns add {self.run}",
                f"netns add {self.outside}",
                f"link add {ends[0]} netns {self.run} type veth peer name {ends[1]} netns {self.outside}",
                *(
                    f"-n {space} {words}"
                    for space, end, address in zip((self.run, self.outside), ends, CABLE, strict=True)
                    for words in (f"addr add {address}/30 dev {end}", f"link set {end} up", "link set lo up")
                ),
                # Ray takes the address of the way to the Internet for its own. Nothing answers there.
                f"-n {self.run} route add default via {CABLE[1]}",
            )
        )
        return self

    def __exit__(self, *error):
        for space in (self.run, self.outside):
            configure(f"netns del {space}")

    def inside(self, *words):
        return ["ip", "netns", "exec", self.run, *words] if self.there else [*words]

    def beside(self, *words):
        return ["ip", "netns", "exec", self.outside, *words]


class Run:
    """A run of the command under way.

    Attributes:
        environment: in which it was started, and in which an attacker starts.
        processes: its own and Ray's.
        servers, listening: addresses with ports, by process number and together.
    """

    def __init__(self, folder, network):
        self.folder, self.network, self.output = folder / "run", network, folder / "output"
        mine = ("RAY_", "RAYFED_KD_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        self.environment |= {"RAY_TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "rayfed_kd", "run", "configs/quickstart.yaml", "rounds=100000"]
        command += ["data.fraction=0.2", "local.epochs=1", f"results.folder={self.folder}"]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                network.inside(*command), cwd=ROOT, env=self.environment, stdout=output, stderr=output
            )
        wait_until(lambda: list(self.folder.glob("tables/rounds/*")), 240, self.process)
        own = psutil.Process(self.process.pid)
        self.processes = [own, *own.children(recursive=True)]
        numbers = [str(process.pid) for process in self.processes]
        self.servers = json.loads(call(network.inside(sys.executable, "-c", LISTENING, *numbers)).stdout)
        self.listening = {place for places in self.servers.values() for place in places}

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=120)

    def ports(self):
        return sorted({place.rpartition(":")[2] for place in self.listening})

    def named(self, part):
        return next(process for process in self.processes if part in " ".join(process.cmdline()))


@pytest.fixture(scope="module")
def network():
    with Network() as network:
        yield network


@pytest.fixture(scope="module")
def run(network):
    # Not in pytest's folder: the path of Ray's sockets may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="rk", ignore_cleanup_errors=True) as folder:
        run = Run(Path(folder), network)
        try:
            yield run
        finally:
            run.end()


def call(command, environment=None):
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


def test_every_server_of_the_tests_ray_listens_on_loopback_and_asks_for_a_token(shared_ray):
    """The session starts it as a command does. The slow tests below look at a run that is under way."""
    processes = psutil.Process().children(recursive=True)
    servers = [process for process in processes if process.name() in ("gcs_server", "raylet")]
    assert len(servers) == 2
    assert {process.environ()["RAY_AUTH_MODE"] for process in servers} == {"token"}
    listening = [
        line.laddr.ip
        for process in processes
        for line in process.net_connections("inet")
        if line.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 5
    assert not [place for place in listening if not LOOPBACK.match(place)]


@pytest.mark.slow
def test_every_server_of_a_run_listens_on_loopback(run):
    """The command, GCS, raylet (two) and actors: five at least, and none that another machine reaches."""
    assert len(run.listening) >= 5
    assert not [place for place in run.listening if not LOOPBACK.match(place)]


@pytest.mark.slow
def test_nothing_runs_that_one_machine_does_not_need(run):
    """GCS and raylet are the command's only children; below are the actors and two sleeping shells."""
    command = run.processes[0]
    assert sorted(child.name() for child in command.children()) == ["gcs_server", "raylet"]
    below = [process for process in run.processes[1:] if process.name() not in ("gcs_server", "raylet")]
    shells = [process for process in below if process.name() == "sh"]
    assert len(shells) == 2 and not [shell for shell in shells if shell.children()]
    titles = [" ".join(process.cmdline()) for process in below]
    assert len([title for title in titles if "ray::ServerActor" in title]) == 1
    assert [title for title in titles if title.startswith(CLIENTS)]
    # For each core a worker was started with Ray, of which a small run may not need all.
    assert len(below) - len(shells) <= 1 + psutil.cpu_count()


@pytest.mark.slow
def test_processes_of_a_run_have_the_token_but_the_commands_own_environment_not(run):
    """GCS and raylet, from which the others have theirs; those that rename themselves show none."""
    assert "RAY_AUTH_TOKEN" not in run.processes[0].environ()
    found = [run.named(part).environ() for part in ("gcs_server", "raylet/raylet")]
    assert {environment.get("RAY_AUTH_MODE") for environment in found} == {"token"}
    (token,) = {environment.get("RAY_AUTH_TOKEN", "none") for environment in found}
    assert re.fullmatch("[0-9a-f]{64}", token)


@pytest.mark.slow
def test_job_that_anybody_hands_in_is_not_run(run, tmp_path):
    """No process of the run serves HTTP, by which Ray takes jobs."""
    places = [f"127.0.0.1:{port}" for port in run.ports()]
    command = [sys.executable, "-c", POST, str(tmp_path / "mark"), *places]
    answers = json.loads(call(run.network.inside(*command), run.environment).stdout)
    assert len(answers) == len(places) >= 5
    assert not [answer for answer in answers.values() if isinstance(answer, int)]
    time.sleep(5)  # a job needs two or three to begin
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
@pytest.mark.parametrize("token", [None, "0" * 64])
def test_driver_without_the_token_cannot_join(run, token):
    gcs = run.named("gcs_server")
    (port,) = {place.rpartition(":")[2] for place in run.servers[str(gcs.pid)]}
    # Loopback for the attacker, too: Ray would else go by the machine's address. Two tries, not twenty.
    environment = run.environment | {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_NUM_REDIS_GET_RETRIES": "2",
    }
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}
    words = [sys.executable, "-c", JOIN, f"127.0.0.1:{port}"]
    done = call(run.network.inside(*words), environment)
    assert done.returncode != 0 and "joined" not in done.stdout
    assert "Authentication token is missing or incorrect" in done.stderr


@pytest.mark.slow
def test_another_machine_reaches_nothing(run, tmp_path):
    if not run.network.there:
        pytest.skip("no network namespaces here")
    places = [f"{CABLE[0]}:{port}" for port in run.ports()]
    command = [sys.executable, "-c", POST, str(tmp_path / "mark"), *places]
    answers = json.loads(call(run.network.beside(*command), run.environment).stdout)
    assert len(answers) == len(places) >= 5
    assert not [answer for answer in answers.values() if "Connection refused" not in str(answer)]


@pytest.mark.slow
def test_token_is_neither_printed_nor_stored_and_nothing_of_ray_stays(run):
    """Last: it ends the run."""
    token = run.named("gcs_server").environ()["RAY_AUTH_TOKEN"].encode()
    (ray_folder,) = run.folder.parent.glob("rk-*")
    assert ray_folder.stat().st_mode & 0o777 == 0o700
    for ended, folder in ((False, ray_folder), (True, run.folder)):
        if ended:
            run.end()
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) > 5
        assert not [path for path in files if token in path.read_bytes()]
    assert not ray_folder.exists()
    assert run.output.stat().st_size > 0
    assert token not in run.output.read_bytes()


@pytest.fixture
def no_mode(monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_token_is_in_the_environment_while_ray_starts_only(no_mode, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the user's")
    with private_environment():
        assert re.fullmatch("[0-9a-f]{64}", os.environ["RAY_AUTH_TOKEN"])
        assert "RAY_AUTH_MODE" not in os.environ
        os.environ["RAY_AUTH_MODE"] = "token"  # as Ray does
    assert os.environ["RAY_AUTH_TOKEN"] == "the user's"
    assert "RAY_AUTH_MODE" not in os.environ


@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_mode_that_the_user_has_set_stays_with_the_users_token(no_mode, monkeypatch, mode):
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/the/users")
    before = dict(os.environ)
    with private_environment():
        assert dict(os.environ) == before


def test_another_process_has_another_token(no_mode):
    code = "import os\nfrom rayfed_kd.cluster.ray_backend.private_ray import private_environment\n"
    code += "with private_environment():\n    print(os.environ['RAY_AUTH_TOKEN'])"
    other = call([sys.executable, "-c", code], os.environ | {"PYTHONPATH": str(ROOT)}).stdout.strip()
    with private_environment():
        assert len(other) == 64 and other != os.environ["RAY_AUTH_TOKEN"]


@pytest.fixture
def near_root(monkeypatch):
    """A folder with a short path for Ray's files."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def test_rays_files_lie_in_a_folder_of_the_users_own_which_goes(near_root):
    with pytest.raises(ValueError, match="as after any error"), private_folder() as folder:
        assert folder.parent == near_root
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "r").mkdir(mode=0o777)
        raise ValueError("as after any error")
    assert list(near_root.iterdir()) == []


def test_folder_of_a_killed_command_goes_at_the_next_start_and_a_living_ones_stays(near_root):
    code = "import os, signal\nfrom rayfed_kd.cluster.ray_backend.private_ray import private_folder\n"
    code += (
        "with private_folder() as folder:\n    (folder / 'r').mkdir()\n    print(folder, flush=True)\n    "
    )
    code += "os.kill(os.getpid(), signal.SIGKILL)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    killed = Path(call([sys.executable, "-c", code], environment).stdout.strip())
    assert killed.is_dir()
    users = near_root / "rk-notes"  # Runge-Kutta's, say
    (users / "r").mkdir(parents=True)
    (users / "thesis").touch()
    with private_folder() as living, private_folder() as other:
        assert not killed.exists()
        assert sorted(near_root.iterdir()) == sorted([living, other, users])


def test_system_folder_whose_sockets_would_have_too_long_a_path_is_not_used(tmp_path, monkeypatch):
    far = tmp_path / ("x" * 120)
    far.mkdir()
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    with private_folder() as folder:
        assert folder.parent == Path("/tmp")
        assert len(f"{folder.parent}{BELOW}") <= MOST_OF_A_PATH


def test_named_folder_whose_sockets_would_have_too_long_a_path_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("x" * 120)))
    told = r"RAY_TMPDIR = .*more than 107 bytes.*set RAY_TMPDIR to a folder with a short path"
    with pytest.raises(RecipeError, match=told), private_folder():
        pass


def as_nobody(attempt):
    """What another user gets from an attempt: "done", or the name of the error."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            attempt()
            os.write(theirs, b"done")
        except BaseException as error:
            os.write(theirs, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours) as answer:
        return answer.read()


def attempts(path):
    """What an attacker would do to a socket."""

    def connect():
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(path))

    def take_its_place():
        path.unlink()
        with socket.socket(socket.AF_UNIX) as line:
            line.bind(str(path))

    return connect, take_its_place, lambda: list(path.parent.iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_connect_to_a_socket_of_ray_nor_put_his_own_there(shared_ray):
    import ray

    node = f"--node_id={ray.get_runtime_context().get_node_id()}"
    (raylet,) = [one for one in psutil.Process().children() if node in one.cmdline()]
    options = dict(word.partition("=")[::2] for word in raylet.cmdline())
    for name in ("--raylet_socket_name", "--store_socket_name"):
        path = Path(options[name])
        attempts(path)[0]()  # the owner himself connects
        assert [as_nobody(attempt) for attempt in attempts(path)] == ["PermissionError"] * 3
        assert path.is_socket()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_in_a_folder_as_ray_itself_makes_it_another_user_can_do_all_that(near_root):
    """So that the test above can fail."""
    near_root.chmod(0o777)
    path = near_root / "raylet"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o777)
        assert [as_nobody(attempt) for attempt in attempts(path)] == ["done"] * 3
