"""The files of cluster/launch: what Slurm, Ray's launcher and Kubernetes are told; a job on a local head.

Slurm, KubeRay and an image's build are not at hand: commands of Slurm are stood in for by shell scripts, and
fields of manifests are held against a list of the documented ones.
"""

import json
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT
from waiting import wait_until

from rayfed_kd.cluster.ray_backend.remote_run import STOP_S
from rayfed_kd.recipe.loading import load_recipe

LAUNCH = ROOT / "cluster/launch"
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
WORKERS_PORTS = range(10002, 20000)  # Ray refuses to start with a port of its own among them
SOCKET_PATH = 107  # Linux: sun_path less its end
PULL_MS = 120_000  # as measured in docs/measured/performance.md, What a network costs


def recipe_of(command: str) -> None:
    """Resolves the recipe of a `python -m rayfed_kd run` that a manifest has."""
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "rayfed_kd", "run"]
    load_recipe(ROOT / words[4].removeprefix("/opt/rayfed-kd/"), words[5:])


# --- Slurm


SHIMS = {
    "scontrol": 'test "$*" = "show hostnames node[1-2]" && printf "node1\\nnode2\\n"',
    "getent": 'test "$*" = "ahostsv4 node1" && printf "%s STREAM node1\\n" "${NODE1:-10.0.0.1}"',
    "hostname": 'test "$*" = -I && echo "10.0.0.9 172.17.0.1"',
    # One task, on this machine; its words and its environment are kept. A signal goes to all its processes.
    "srun": 'printf "%s\\n" "$@" >"$SEEN/srun-$(ls "$SEEN" | wc -l)"\nenv >"$SEEN/env"\n'
    'while [[ $1 == --* ]]; do shift; done\nset -m\nSLURM_NODEID=0 "$@" & task=$!\n'
    'trap "kill -TERM -- -$task" TERM\nwhile kill -0 $task 2>/dev/null; do wait $task; done',
    # On a real head `ray stop` follows, here nothing for a long time.
    "ray": 'printf "%s\\n" "$@" >"$SEEN/ray"\ntest -n "$NO_RAY" && exit 0\n'
    'until [[ $1 == -- ]]; do shift; done\nshift\n"$@"\nsleep 100',
    # The script looks every two seconds whether it is over.
    "sleep": 'test "$1" = 2 && set -- 0.1\nexec /bin/sleep "$@"',
    "python": 'printf "%s\\n" "$@" >"$SEEN/python"\ntrap "exit 143" TERM\n'
    'test -n "$CODE" && exit $CODE\nwhile true; do sleep 0.1; done',
}


class Slurm:
    """The script with stand-ins for Slurm's and Ray's commands; what they were given lies in `seen`."""

    def __init__(self, folder: Path) -> None:
        self.seen, home = folder / "seen", folder / "home"
        binaries = home / "rayfed-kd/.venv/bin"
        binaries.mkdir(parents=True)
        self.seen.mkdir()
        for name, text in SHIMS.items():
            (binaries / name).write_text(f"#!/bin/bash\n{text}\n")
            (binaries / name).chmod(0o755)
        (binaries / "activate").write_text(f"PATH={binaries}:$PATH\n")
        keep = {name: os.environ[name] for name in ("PATH",)}
        stale = {"RAY_ADDRESS": "gone:6379", "RAYFED_KD_DATA": "/mine"}
        self.environment = {**keep, **stale, "HOME": str(home), "SEEN": str(self.seen)}

    def start(self, job: int, *words: str, **more: str) -> "subprocess.Popen[str]":
        slurm = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
        return subprocess.Popen(
            [str(LAUNCH / "slurm.sh"), *words],
            cwd=ROOT,
            env={**self.environment, **slurm, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def words(self, name: str) -> list[str]:
        return (self.seen / name).read_text().split("\n")[:-1]

    def variables(self) -> dict[str, str]:
        return dict(line.partition("=")[::2] for line in self.words("env"))


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def ray_words(slurm: Slurm) -> tuple[dict[str, str], list[str]]:
    """What symmetric-run was given: address and number of nodes, and the options of `ray start`."""
    words = slurm.words("ray")
    words = words[: words.index("--")]
    assert words[:5:2] == ["symmetric-run", "10.0.0.1:" + words[2].split(":")[1], words[4]]
    return dict(zip(words[1:5:2], words[2:6:2], strict=True)), words[5:]


def test_slurm_script_runs_the_command_on_all_nodes_and_gives_its_exit_code(slurm: Slurm) -> None:
    script = slurm.start(7000001, "run", "a b.yaml", "rounds=2", CODE="2")
    _, errors = script.communicate(timeout=60)
    assert script.returncode == 2, errors
    asked, _ = ray_words(slurm)
    assert asked["--min-nodes"] == "2"
    command = ["-m", "rayfed_kd", "run", "a b.yaml", "rounds=2", "--address", asked["--address"]]
    assert slurm.words("python") == command
    assert {"--export=ALL", "--nodes=2", "--ntasks-per-node=1"} <= set(slurm.words("srun-0"))
    assert not Path("/tmp/rayfed-kd-7000001").exists()


def test_first_node_that_calls_itself_127_is_taken_by_its_real_address(slurm: Slurm) -> None:
    slurm.start(7000008, "run", "x.yaml", CODE="0", NODE1="127.0.1.1").communicate(timeout=60)
    assert slurm.words("python")[-1].split(":")[0] == "10.0.0.9"


def test_slurm_script_sets_one_token_the_mode_and_no_old_address(slurm: Slurm) -> None:
    tokens = set()
    for job in (7000002, 7000003):
        slurm.start(job, "run", "x.yaml", CODE="0").communicate(timeout=60)
        found = slurm.variables()
        assert found["RAY_AUTH_MODE"] == "token"
        assert re.fullmatch("[0-9a-f]{64}", found["RAY_AUTH_TOKEN"])
        assert found["RAY_USAGE_STATS_ENABLED"] == "0"
        assert int(found["RAY_JOB_STOP_WAIT_TIME_S"]) > STOP_S
        assert int(found["RAY_object_manager_pull_timeout_ms"]) == PULL_MS
        assert found["RAYFED_KD_DATA"] == "/mine"
        assert found["RAYFED_KD_CACHE"]
        assert "RAY_ADDRESS" not in found
        tokens.add(found["RAY_AUTH_TOKEN"])
    assert len(tokens) == 2


def test_two_jobs_meet_neither_in_ports_nor_in_folders(slurm: Slurm) -> None:
    ports, folders = [], []
    for job in (99999999, 100000000):
        slurm.start(job, "run", "x.yaml", CODE="0").communicate(timeout=60)
        asked, start = ray_words(slurm)
        ports += [int(asked["--address"].split(":")[1]), *(int(word.split("=")[1]) for word in start)]
        folders.append(slurm.variables()["RAY_TMPDIR"])
    assert len(ports) == len(set(ports)) == 8
    assert not set(ports) & set(WORKERS_PORTS)
    assert all(1024 < port < 32768 for port in ports)
    assert len(set(folders)) == 2
    longest = f"{folders[1]}/ray/session_2026-11-21_18-14-58_165200_4194304/sockets/plasma_store"
    assert len(longest) <= SOCKET_PATH


def test_every_job_id_has_ports_that_ray_takes() -> None:
    text = (LAUNCH / "slurm.sh").read_text()
    formula = re.search(r"port=\$\(\((.*)\)\)", text)
    assert formula is not None
    first = {eval(formula[1], {"SLURM_JOB_ID": job}) for job in range(3000)}  # it repeats after them
    assert "% 3000" in formula[1]
    taken = {port + offset for port in first for offset in range(4)}
    assert len(taken) == 12000
    assert min(taken) >= WORKERS_PORTS.stop
    assert max(taken) < 32768


def test_options_for_ray_start_are_its_own_on_head_and_worker(slurm: Slurm) -> None:
    from ray.scripts.scripts import start
    from ray.scripts.symmetric_run import curate_and_validate_ray_start_args

    slurm.start(7000004, "run", "x.yaml", CODE="0").communicate(timeout=60)
    asked, options = ray_words(slurm)
    given = [word for pair in asked.items() for word in pair]
    assert curate_and_validate_ray_start_args([*given, *options]) == options
    start.make_context("ray start", ["--head", "--node-ip-address=10.0.0.1", "--port=2", *options])
    start.make_context("ray start", ["--address=node1:2", "--block", *options])
    # `ray start` refuses these on a worker, and symmetric-run hands all options to both.
    assert not {"--include-dashboard", "--redis-shard-ports"} & {word.split("=")[0] for word in options}


def test_sigterm_of_slurm_reaches_the_command_alone_and_its_exit_code_comes_back(slurm: Slurm) -> None:
    script = slurm.start(7000005, "run", "x.yaml")
    wait_until((slurm.seen / "python").exists)
    time.sleep(1)
    script.send_signal(signal.SIGTERM)
    _, errors = script.communicate(timeout=60)
    assert script.returncode == 143, errors
    assert "sbatch cluster/launch/slurm.sh resume FOLDER" in errors
    assert not Path("/tmp/rayfed-kd-7000005").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("run", "x.yaml"), 1, "Ray did not start on 10.0.0.1"),  # symmetric-run itself ends with 0 then
        ((), 2, "run configs/quickstart.yaml"),
    ],
)
def test_slurm_script_says_why_it_cannot_run(slurm: Slurm, words: list[str], code: int, message: str) -> None:
    script = slurm.start(7000006, *words, NO_RAY="1")
    assert message in script.communicate(timeout=60)[1]
    assert script.returncode == code


def test_a_job_that_is_begun_again_resumes_and_an_arrays_task_runs_its_seed(slurm: Slurm) -> None:
    (slurm.seen / "config.yaml").touch()
    again = ("run", "x.yaml", f"results.folder={slurm.seen}", "rounds=2")
    slurm.start(7000009, *again, CODE="0", SLURM_RESTART_COUNT="1").communicate(timeout=60)
    assert slurm.words("python")[2:5] == ["resume", str(slurm.seen), "--restart"]
    (slurm.seen / "search.yaml").touch()
    for number, form in enumerate((["--folder", f"{slurm.seen}"], [f"--folder={slurm.seen}"])):
        search = ("tune", "x.yaml", "--space", "s.yaml", *form)
        slurm.start(7000011 + number, *search, CODE="0", SLURM_RESTART_COUNT="1").communicate(timeout=60)
        assert slurm.words("python")[2:-2] == [*search, "--resume"]
    slurm.start(7000010, "compare", "s.yaml", CODE="0", SLURM_ARRAY_TASK_ID="3").communicate(timeout=60)
    assert slurm.words("python")[2:6] == ["compare", "s.yaml", "--seed", "3"]


def test_slurm_gets_whole_nodes_one_task_each_and_a_warning_before_the_end() -> None:
    lines = (LAUNCH / "slurm.sh").read_text().split("\n")
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    told = dict(line[8:].strip().partition("=")[::2] for line in lines[:first] if line.startswith("#SBATCH"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:]), "Slurm reads none after a command"
    assert {"--exclusive", "--time", "--nodes"} <= set(told)
    assert told["--ntasks-per-node"] == "1"
    assert told["--signal"] == "B:TERM@300"


def test_shell_scripts_are_well_formed() -> None:
    for file in LAUNCH.glob("*.sh"):
        subprocess.run(["bash", "-n", str(file)], check=True)


# --- Ray's cluster launcher


def launcher() -> dict[str, Any]:
    return yaml.safe_load((LAUNCH / "launcher.yaml").read_text())


@pytest.fixture
def ray_util() -> Any:
    return pytest.importorskip(
        "ray.autoscaler._private.util", reason="Ray's validator has moved: it is private"
    )


def test_launcher_file_is_valid_to_ray(ray_util: Any) -> None:
    ray_util.validate_config(launcher())
    prepared = ray_util.prepare_config(launcher())
    ray_util.validate_config(prepared)
    (node,) = prepared["available_node_types"].values()
    machines = len(launcher()["provider"]["worker_ips"])
    assert (node["min_workers"], node["max_workers"]) == (machines, machines)


def test_launchers_commands_are_rays_and_its_files_are_there() -> None:
    from ray.scripts.scripts import start

    found = launcher()
    assert {place: Path(file).name for place, file in found["file_mounts"].items()} == {
        "~/rayfed-kd": "",  # from the clone's root, where env.sh expects it
        "~/.ray/auth_token": "auth_token",
    }
    starts = []
    for command in found["head_start_ray_commands"] + found["worker_start_ray_commands"]:
        before, _, words = command.partition(" && ")
        assert before == ". ~/rayfed-kd/cluster/launch/env.sh"
        starts += [words.split()[2:]] if words.startswith("ray start") else []
    head, worker = starts
    assert head[0] == "--head"
    start.make_context("ray start", head)
    start.make_context("ray start", worker)


# --- Kubernetes


# The documented fields, nested; a type's name stands for a value, `strings` for any names.
FIELDS = yaml.safe_load(Path(__file__).with_name("kuberay_fields.yaml").read_text(encoding="utf8"))
MANIFESTS = {f"{kind}.yaml": {**FIELDS["top"], "spec": FIELDS[kind]} for kind in ("raycluster", "rayjob")}


def faults(found: Any, documented: Any, place: str) -> Iterator[str]:
    """What a manifest has that is not documented, by its place."""
    if isinstance(documented, str) and documented != "strings":
        if type(found).__name__ != documented:
            yield f"{place}: {found!r} is no {documented}"
    elif isinstance(documented, list):
        if not isinstance(found, list):
            yield f"{place}: expected a list"
            return
        for index, one in enumerate(found):
            yield from faults(one, documented[0], f"{place}[{index}]")
    elif not isinstance(found, dict):
        yield f"{place}: expected fields"
    else:
        for name, value in found.items():
            if documented == "strings":
                yield from faults(value, "str", f"{place}.{name}")
            elif name not in documented:
                yield f"{place}.{name}: no such field"
            else:
                yield from faults(value, documented[name], f"{place}.{name}")


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((LAUNCH / name).read_text())


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_has_documented_fields_of_their_types_only(name: str) -> None:
    found = manifest(name)
    assert list(faults(found, MANIFESTS[name], "")) == []
    assert (found["apiVersion"], found["kind"].lower()) == ("ray.io/v1", Path(name).stem)


def test_misspelled_field_and_number_for_a_string_are_found() -> None:
    found = manifest("raycluster.yaml")
    head = found["spec"]["headGroupSpec"]
    head["rayStartParam"] = head.pop("rayStartParams")
    head["template"]["spec"]["containers"][0]["env"] = [{"name": "RAY_USAGE_STATS_ENABLED", "value": 0}]
    assert list(faults(found, MANIFESTS["raycluster.yaml"], "")) == [
        ".spec.headGroupSpec.template.spec.containers[0].env[0].value: 0 is no str",
        ".spec.headGroupSpec.rayStartParam: no such field",
    ]


def test_job_makes_the_same_cluster_and_runs_a_recipe_of_the_image() -> None:
    job = manifest("rayjob.yaml")["spec"]
    assert job["rayClusterSpec"] == manifest("raycluster.yaml")["spec"]
    recipe_of(job["entrypoint"])
    assert "results.folder=/shared/" in job["entrypoint"]


def test_pods_have_rays_version_the_token_shared_folders_and_room_for_the_object_store() -> None:
    spec = manifest("raycluster.yaml")["spec"]
    assert f"ray=={spec['rayVersion']}" in (ROOT / "constraints.txt").read_text().split("\n")
    assert spec["authOptions"] == {"mode": "token"}
    pods = [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    assert len({pod["containers"][0]["image"] for pod in pods}) == 1
    for pod in pods:
        container, volumes = pod["containers"][0], {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        settings = {variable["name"]: variable["value"] for variable in container["env"]}
        assert settings["RAY_USAGE_STATS_ENABLED"] == "0"
        assert int(settings["RAY_JOB_STOP_WAIT_TIME_S"]) > STOP_S
        assert int(settings["RAY_object_manager_pull_timeout_ms"]) == PULL_MS
        for name in ("RAYFED_KD_DATA", "RAYFED_KD_CACHE"):
            assert settings[name].startswith("/shared/")
        assert "persistentVolumeClaim" in mounts["/shared"]
        memory = container["resources"]["limits"]["memory"]
        shared = mounts["/dev/shm"]["emptyDir"]
        assert shared["medium"] == "Memory"
        assert int(shared["sizeLimit"].removesuffix("Gi")) >= 0.3 * int(memory.removesuffix("Gi"))


# --- the image


def test_image_copies_what_is_there_and_installs_torch_first_as_no_root() -> None:
    """It is not built here."""
    text = (LAUNCH / "Dockerfile").read_text()
    lines = [line.split() for line in text.split("\n") if line and not line.startswith("#")]
    for line in lines:
        if line[0] == "COPY":
            assert all((ROOT / source).exists() for source in line[1:-1]), line
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert lines[0] == ["FROM", f"python:{project['requires-python'].removeprefix('>=')}-slim"]
    installs = [line for line in lines if line[:3] == ["RUN", "pip", "install"]]
    assert [line[-1] for line in installs] == ["torch", "'.[cluster,tune]'"]
    assert all(line[-3:-1] == ["-c", "constraints.txt"] for line in installs)
    assert {"cluster", "tune"} <= set(project["optional-dependencies"])
    packages = {Path(package).name for package in ("rayfed_kd", "algorithms", "cluster")}
    assert packages <= {line[1] for line in lines if line[0] == "COPY"}
    assert [line[1] for line in lines if line[0] == "USER"] == ["ray"]


def test_the_page_on_clusters_names_every_file_to_edit_and_no_other() -> None:
    page = (ROOT / "docs/guide/clusters.md").read_text()
    named = set(re.findall(r"cluster/launch/([\w.]+\w)", page))
    assert named == {file.name for file in LAUNCH.iterdir()}


# --- a job, really


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return port if port not in WORKERS_PORTS else free_port()


def run_ray(environment: Mapping[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    command = [*RAY, *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
    )


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, Path, dict[str, str]]]:
    """A head of its own: its dashboard's address, its folder, and the environment that it was started in."""
    pytest.importorskip("opencensus", reason="jobs need ray[default]")
    # Ray's sockets lie below it: pytest's own folders are too deep from the hundredth run on.
    kept = tempfile.TemporaryDirectory(prefix="h")
    folder = Path(kept.name)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # it listens on loopback
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_JOB_STOP_WAIT_TIME_S": "120",
        "RAY_TMPDIR": str(folder),
        "RAYFED_KD_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("PYTHONPATH", None)  # the job's own copy is to be imported
    address = f"http://127.0.0.1:{(dashboard := free_port())}"
    options = [f"--port={free_port()}", f"--dashboard-port={dashboard}", "--num-cpus=2"]
    options += [f"--dashboard-agent-listen-port={free_port()}", f"--ray-client-server-port={free_port()}"]
    process = subprocess.Popen([*RAY, "start", "--head", "--block", *options], env=environment)
    try:
        wait_for_jobs(address, environment, process)
        yield address, folder, environment
    finally:
        process.send_signal(signal.SIGTERM)  # to this one alone: it ends the others
        process.wait(timeout=120)
        kept.cleanup()


def wait_for_jobs(address: str, environment: Mapping[str, str], process: "subprocess.Popen[bytes]") -> None:
    """Until a job runs: the server refuses them for a while after it has begun to answer."""
    submit = ["job", "submit", "--address", address, "--", "true"]
    wait_until(lambda: not run_ray(environment, *submit).returncode, 240, process)


@pytest.mark.slow
def test_submitted_job_runs_the_recipe_in_a_copy_of_the_clone(head: Any, tmp_path: Path) -> None:
    address, folder, environment = head
    command = ["python", "-m", "rayfed_kd", "run", "configs/quickstart.yaml"]
    changes = ["rounds=1", "data.fraction=0.2", "local.epochs=1", f"results.folder={tmp_path / 'run'}"]
    submit = ["job", "submit", "--address", address, "--working-dir", ".", "--"]
    done = run_ray(environment, *submit, *command, *changes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 round, finished" in done.stdout
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "finished"
    (copy,) = folder.glob("ray/session_2*/runtime_resources/working_dir_files/_ray_pkg_*/")
    assert (copy / "rayfed_kd/__init__.py").is_file()
    assert not any((copy / name).exists() for name in (".git", "tests", "docs", ".venv"))


@pytest.mark.slow
def test_stopped_job_leaves_a_checkpoint_from_which_another_job_goes_on(head: Any, tmp_path: Path) -> None:
    address, _, environment = head
    folder = tmp_path / "run"
    submit = ["job", "submit", "--address", address, "--working-dir", ".", "--submission-id", "long"]
    command = ["python", "-m", "rayfed_kd", "run", "configs/quickstart.yaml", "rounds=1000"]
    changes = ["data.fraction=0.2", "local.epochs=1", "checkpoint.every=1000", f"results.folder={folder}"]
    done = run_ray(environment, *submit, "--no-wait", "--", *command, *changes)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: list(folder.glob("tables/rounds/*")), 240)
    stopped = run_ray(environment, "job", "stop", "--address", address, "long")
    assert "was stopped" in stopped.stdout + stopped.stderr
    rounds = json.loads((folder / "summary.json").read_text())["rounds"]
    assert 0 < rounds < 1000
    submit = ["job", "submit", "--address", address, "--working-dir", ".", "--"]
    command = ["python", "-m", "rayfed_kd", "resume", str(folder), f"rounds={rounds + 1}"]
    done = run_ray(environment, *submit, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("finished", rounds + 1)


@pytest.mark.slow
def test_submitted_job_with_a_bad_recipe_fails_with_its_one_line(head: Any) -> None:
    address, _, environment = head
    command = ["python", "-m", "rayfed_kd", "run", "configs/quickstart.yaml", "rounds=0"]
    done = run_ray(environment, "job", "submit", "--address", address, "--working-dir", ".", "--", *command)
    assert done.returncode == 1
    (line,) = {line for line in done.stdout.split("\n") if line.startswith("error:")}  # told twice by Ray
    assert "rounds" in line
    assert "Traceback" not in done.stdout
