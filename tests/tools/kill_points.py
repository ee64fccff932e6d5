"""Kills a command at each of its file operations, goes on as a user would, and compares both ends.

    python tests/tools/kill_points.py                      # every kill point of every scenario
    python tests/tools/kill_points.py run compare          # these scenarios
    python tests/tools/kill_points.py --sample 10          # ten points, spread over all scenarios
    python tests/tools/kill_points.py --list               # the points, without a kill
    python tests/tools/kill_points.py run --point "replace run/config.yaml #1"

A kill point is an operation on a file of one name, and how often it came: `unlink run/summary.json #1`.
Names, unlike a running number, do not depend on which thread comes first. The operations are open for
writing, replace, unlink, mkdir and rmdir; the process sends itself SIGKILL right before the operation.
`torn` stands for a kill in mid-write: at the fsync of a file its second half is cut off. A kill at an fsync
itself is none of its own: it loses nothing that was written, so the files are as before the next replace.

Afterwards the same command is given again. Where it is refused, the command that its message names is given,
and so on. A point is `equal` if the first command went on, `refused, then equal` if a message had to be
followed, and `wrong` if there is an error, no way on, or another end: other tables, models, summaries, names
of files, pictures or TensorBoard's points than those of the undisturbed run, or unfinished files left behind.

Every kill is a fork of a process that has imported everything, on the local engine with one torch thread.
Pictures are replaced by a white dot, as drawing them takes most of the time. A search's trials run one after
another in the process, without Ray Tune, whose files are never read again.

Not covered: writes within a file of Arrow, safetensors and torch are cut off at their half only; what a disk
loses in a power cut although it was written (the order of fsync and rename is held by tests/rayfed_kd/
test_files.py); Ray's own files.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

RECIPE: dict[str, Any] = {
    "method": {"name": "fedkf", "generator": {"name": "dafl_image", "width": 4, "latent": 4}},
    "model": {"name": "mlp"},
    "data": {"name": "synthetic", "samples": 40, "classes": 2, "shape": [1, 8, 8]},
    "partition": {"name": "iid", "clients": 2},
    "local": {"epochs": 1, "batch_size": 16},
    "clock": {"name": "lognormal"},
    "sampling": {"fraction": 1.0},
    "rounds": 2,
    "checkpoint": {"every": 1, "keep": 1},
}
PLAIN = {**RECIPE, "method": {"name": "fedavg", "track_oca": True}, "clock": {"name": "none"}, "rounds": 1}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
TRIES = 4  # commands that a user gives after a kill, each named by the message of the one before


# Kill points


class Watch:
    """Names the file operations of this process below a folder, and kills it at one of them.

    Args:
        root: operations elsewhere do not count.
        point: where the process ends; None: nowhere.
    """

    def __init__(self, root: Path, point: str | None = None) -> None:
        self.points: list[str] = []
        self._root, self._point = str(root), point
        self._times: Counter[str] = Counter()
        self._durable: dict[str, int] = {}  # bytes of a file at its last flush
        os.fsync = self._fsynced
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self._pass("open", arguments[0])
        elif event == "os.rename":
            self._pass("replace", arguments[1])
            # A stream grows on under its new name.
            self._durable[str(arguments[1])] = self._durable.pop(str(arguments[0]), 0)
        elif event == "os.remove":
            self._pass("unlink", arguments[0])
        elif event in ("os.mkdir", "os.rmdir"):
            self._pass(event.removeprefix("os."), arguments[0])

    def _fsynced(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_file():
            self._pass("torn", path)
            self._durable[str(path)] = path.stat().st_size

    def _pass(self, operation: str, path: Any) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(self._root):
            return
        name = os.path.relpath(os.fspath(path), self._root)
        name = re.sub(r"\.part-[0-9a-f]{16}-", ".part-", name)
        name = re.sub(r"events\.out\.tfevents\.[^/]*", "events", name)
        key = f"{operation} {name}"
        self._times[key] += 1
        point = f"{key} #{self._times[key]}"
        self.points.append(point)
        if point == self._point:
            if operation == "torn":
                # Of a file that grows, what was flushed before is on disk already.
                durable = self._durable.get(str(path), 0)
                os.truncate(path, (durable + Path(path).stat().st_size) // 2)
            self._end()

    def _end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], Any]) -> tuple[Any, int]:
    """What `work` gives in a fork of this process, and the fork's exit status; None if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            answer = work()
        except BaseException:
            answer = {"error": traceback.format_exc()}
        with os.fdopen(writing, "w") as stream:
            json.dump(answer, stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (json.loads(text) if text else None), status


# The commands


def command(words: Sequence[str]) -> str | None:
    """Give a command in this process; its message if it is refused or fails, None if it ends well."""
    from rayfed_kd.cli.main import commands
    from rayfed_kd.errors import RayfedError

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            commands.main(list(words), standalone_mode=False)
        except RayfedError as error:
            return str(error)
    return None


def go_on(words: Sequence[str]) -> list[str]:
    """Give a command, and then whatever the messages name; the messages.

    Raises: AssertionError if there is no way on.
    """
    told: list[str] = []
    for _ in range(TRIES):
        message = command(words)
        if message is None:
            return told
        if "rounds=N" in message:  # the run has ended; only more rounds could go on
            return told
        told.append(message)
        words = next_command(words, message)
    raise AssertionError(f"no way on: {told}")


def next_command(words: Sequence[str], message: str) -> list[str]:
    """The command that a message names."""
    if named := re.search(r"`rayfed-kd (resume [^`]*)`", message):
        return [*shlex.split(named[1]), "--local"]
    if "--resume goes on" in message:
        return [*words, "--resume"]
    raise AssertionError(f"a message without a way on: {message}")


# Scenarios


@dataclass(frozen=True)
class Scenario:
    """A command that is killed.

    Attributes:
        words: the command, given the folder of the scenario.
        before: commands that come first, each with the point at which it is killed, or None.
        fresh_cache: whether the command decodes the data set.
        skipped: points that are not tried, as they repeat others; a regular expression.
    """

    words: Callable[[Path], list[str]]
    before: Sequence[tuple[Callable[[Path], list[str]], str | None]] = ()
    fresh_cache: bool = False
    skipped: str = "$^"


def run_words(root: Path) -> list[str]:
    return ["run", str(root / "recipe.yaml"), f"results.folder={root / 'run'}", "--local"]


def resume_words(*more: str) -> Callable[[Path], list[str]]:
    return lambda root: ["resume", str(root / "run"), "--local", *more]


def compare_words(root: Path) -> list[str]:
    return ["compare", str(root / "study.yaml"), "--local"]


def tune_words(root: Path) -> list[str]:
    return [
        *("tune", str(root / "plain.yaml"), "--space", str(root / "space.yaml")),
        *("--samples", "2", "--scheduler", "fifo", "--folder", str(root / "search")),
    ]


# Killed when round 2 is recorded and the checkpoint is that of round 1: a resumed run cuts tables.
MID_RUN = (run_words, "open run/checkpoints/.part-round-000002.safetensors #1")
# Killed when round 1 is recorded and there is no checkpoint: the run begins again.
NO_CHECKPOINT = (run_words, "replace run/checkpoints/round-000001.json #1")
# The five tables are written alike, and so are the pictures: `run` tries each, the other scenarios try one.
ALIKE = "tables/(metrics|clients|messages|hosts)|figures/(?!(.part-)?(curves|coefficients))|curves-(?!amp)"
SCENARIOS = {
    "run": Scenario(run_words, fresh_cache=True),
    "resume": Scenario(resume_words("rounds=3"), [MID_RUN], skipped=ALIKE),
    # Only until the first round is recorded: then it is a run as any other.
    "restart": Scenario(
        resume_words("--restart", "rounds=1"),
        [NO_CHECKPOINT],
        skipped="checkpoints|figures|summary|tensorboard",
    ),
    # Of the second run and the second trial only their own records: their other files are as the first's.
    "compare": Scenario(compare_words, skipped=rf"{ALIKE}|runs/B-seed1\.running/(?!.*config)"),
    "tune": Scenario(tune_words, skipped=rf"{ALIKE}|trials/00001/(?!.*(trial|config))"),
}


def write_inputs(root: Path) -> None:
    import yaml

    lines = {"local.epochs": {"randint": [1, 3]}}
    contents = {
        "recipe.yaml": RECIPE,
        "plain.yaml": PLAIN,
        "study.yaml": {
            "base": str(root / "plain.yaml"),
            "folder": str(root / "runs"),
            "runs": [{"label": "A"}, {"label": "B", "overrides": ["local.epochs=2"]}],
        },
        "space.yaml": {"space": lines},
    }
    for name, content in contents.items():
        (root / name).write_text(yaml.safe_dump(content))


# What must be equal


def content(root: Path) -> dict[str, Any]:
    """All that must not depend on kills, as JSON."""
    folders = sorted(path.parent for path in root.rglob("config.yaml"))
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    names = [re.sub(r"events\.out\.tfevents\..*", "events", name) for name in names]
    # Named by the round in which a process began it, so a resumed run's has another name.
    names = [re.sub(r"states-\d+(-\d+)?\.log", "states.log", name) for name in names]
    found: dict[str, Any] = {"names": [name for name in names if not name.startswith("cache/")]}
    for folder in folders:
        found[str(folder.relative_to(root))] = run_content(folder)
    for path in [*root.rglob("comparison.md"), *root.rglob("best.yaml")]:
        found[str(path.relative_to(root))] = path.read_text()
    for path in [*root.rglob("comparison.parquet"), *root.rglob("trials.parquet")]:
        found[str(path.relative_to(root))] = hashed(parquet_rows(path, without=("seconds",)))
    return found


def run_content(folder: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq
    from small_recipes import DECIDED, decided
    from whole_checkpoints import whole

    from rayfed_kd.results.tables import read_table

    tables = decided({name: read_table(folder / "tables", name) for name in DECIDED})
    summary = json.loads((folder / "summary.json").read_text())
    checkpoint = max((folder / "checkpoints").glob("*.safetensors"))
    # As one whole: a resumed run begins a log of its own, so its places are others.
    tree, stored = whole(checkpoint)
    arrays = {name: hashed(array.tobytes().hex()) for name, array in sorted(stored.items())}
    others = {
        path.name: hashed(str(pq.read_table(path).to_pylist())) for path in sorted(folder.glob("*.parquet"))
    }
    return {
        "tables": {name: hashed(str(table.to_pylist())) for name, table in tables.items()},
        "summary": {key: value for key, value in summary.items() if key != "wall_s"},
        "state": hashed(json.dumps([{**tree, "wall_s": 0.0}, arrays], sort_keys=True)),
        "others": others,
        "config": (folder / "config.yaml").read_text(),
        "tensorboard": points_in_tensorboard(folder / "tensorboard"),
    }


def parquet_rows(path: Path, without: Sequence[str]) -> str:
    """A table's rows without these columns, and without those of real seconds, which no two runs share."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = table.drop([name for name in without if name in table.column_names]).to_pylist()
    return str([row for row in rows if row.get("metric") != "wall_s"])


def points_in_tensorboard(folder: Path) -> dict[str, Any]:
    """Tag -> its steps and, where they do not measure, values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "histograms": 0})
    events.Reload()
    found: dict[str, Any] = {}
    for tag in events.Tags()["scalars"]:
        measured = "time/" in tag or "hosts/" in tag
        found[tag] = [(one.step, None if measured else one.value) for one in events.Scalars(tag)]
    for tag in events.Tags()["images"]:
        found[f"image {tag}"] = sorted(one.step for one in events.Images(tag))
    for tag in events.Tags()["histograms"]:
        found[f"histogram {tag}"] = [one.step for one in events.Histograms(tag)]
    return found


def hashed(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = sorted({*found, *expected})
        return [
            line for key in keys for line in differences(found.get(key), expected.get(key), f"{where}/{key}")
        ]
    if found == expected:
        return []
    if isinstance(found, list) and isinstance(expected, list) and where == "/names":
        lost, more = sorted({*expected} - {*found}), sorted({*found} - {*expected})
        return [f"files lost: {lost}; files left: {more}"]
    return [f"{where}: {found} for {expected}"]


# The harness


def replace_slow_parts() -> None:
    """One torch thread, no fsync, pictures of a white dot, searches without Ray."""
    import numpy as np
    import pyarrow
    import torch
    from image_files import png
    from matplotlib.figure import Figure

    import rayfed_kd.tuning.tune
    from rayfed_kd.comparison.writers import pictures
    from rayfed_kd.results import folder
    from rayfed_kd.results.charts import bars, coefficients, images, lines, partition
    from rayfed_kd.tuning import search_result

    torch.set_num_threads(1)
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    folder.package_version = cache(folder.package_version)  # reading packages' metadata takes long
    folder.environment("none")
    rayfed_kd.tuning.tune._search_on_ray = search_in_process
    os.fsync = lambda descriptor: None  # a kill loses nothing that was written, only a power cut does
    dot = png(np.full((1, 1), 255, np.uint8))
    Figure.savefig = lambda self, path, **options: Path(path).write_bytes(dot)  # type: ignore[method-assign,assignment]
    for module in (bars, coefficients, images, lines, partition, pictures, search_result):
        for name in vars(module):
            if name.endswith("_figure") and name != "save_figure":
                setattr(module, name, lambda *arguments, **options: Figure())


def search_in_process(
    search: Any, tell: Any, concurrent: Any, address: Any, work: Any, on_event: Any
) -> None:
    """A search's trials one after another, with the parts of Ray Tune's side that write."""
    from rayfed_kd.cluster.ray_backend import placement
    from rayfed_kd.experiment.engines import InProcess
    from rayfed_kd.experiment.running import run_prepared
    from rayfed_kd.results.console import Work
    from rayfed_kd.tuning import trial as trials
    from rayfed_kd.tuning.ray_tune import ROUND, VALUE, Proposals, Recorder

    def run_here(prepared: Any, on_ray: Any, on_event: Any, **options: Any) -> Any:
        return run_prepared(prepared, InProcess(), on_event, **options)

    placement.plan_hosts = lambda *arguments: None  # type: ignore[assignment, return-value]
    trials.run_prepared = run_here  # type: ignore[assignment]
    searcher, recorder = Proposals(search, tell), Recorder(search, tell, work or Work())
    one = trials.TrialRun(search, (), str(Path.cwd()), ())
    for number in range(search.trials):
        config, results = searcher.suggest(str(number)), [{}]

        def report(round_index: int, value: float, event: Any, results: list[Any] = results) -> None:
            results.append({ROUND: round_index, VALUE: value})

        one.run(number, config["coefficients"], report)
        trial = SimpleNamespace(config=config, last_result=results[-1])
        searcher.on_trial_complete(str(number), results[-1])
        recorder.on_trial_complete(0, [], trial)


def told(name: str, title: str, judged: Iterable[tuple[str, str, str]], started: float) -> bool:
    """Print what is wrong as it comes, and then how many cases had which verdict.

    Args:
        name: the scenario's.
        title: of the last line, with {} for the number of cases.
        judged: of each case the point, the verdict, and why it is wrong.
        started: when it began, by `time.monotonic`.

    Returns: whether one was wrong.
    """
    verdicts: Counter[str] = Counter()
    for point, verdict, why in judged:
        verdicts[verdict] += 1
        if verdict == "wrong":
            sys.stdout.write(f"{name}: {point}\n{why}\n\n")
            sys.stdout.flush()
    each = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    seconds = time.monotonic() - started
    sys.stdout.write(f"{title.format(verdicts.total())}: {each}; {seconds:.0f} s\n")
    sys.stdout.flush()
    return verdicts["wrong"] > 0


class Harness:
    """Kills the commands of scenarios.

    Args:
        place: a folder for everything.
    """

    def __init__(self, place: Path) -> None:
        self._root, self._base = place / "root", place / "base"

    def points(self, scenario: Scenario) -> tuple[list[str], Any]:
        """The kill points of a scenario, and the content of its undisturbed end."""
        self._prepare(scenario)
        answer, _ = in_child(lambda: self._undisturbed(scenario))
        if "error" in answer:
            raise SystemExit(answer["error"])
        for name in answer["modules"]:  # a fork that has imported everything starts at once
            with contextlib.suppress(ImportError):  # some are made by others while these are imported
                importlib.import_module(name)
        replace_slow_parts()
        gc.collect()
        gc.freeze()  # the forks share what is there, and their collections leave it alone
        points = [point for point in answer["points"] if not re.search(scenario.skipped, point)]
        return points, answer["content"]

    def judge(self, scenario: Scenario, point: str, expected: Any) -> tuple[str, str]:
        """Kill the command at a point and go on; the verdict, and why it is wrong."""
        self._restore()
        words = scenario.words(self._root)

        def killed() -> None:
            Watch(self._root, point)
            command(words)

        _, status = in_child(killed)
        verdict, why = self.ending(words, expected)
        return ("not reached", "") if verdict != "wrong" and status != -signal.SIGKILL else (verdict, why)

    def ending(self, words: Sequence[str], expected: Any) -> tuple[str, str]:
        """Give a command, and then what its messages name; the verdict, and why it is wrong."""

        def gone_on() -> Any:
            told = go_on(words)
            found = json.loads(json.dumps(content(self._root)))  # as `expected` came: tuples are lists
            return {"told": told, "wrong": differences(found, expected)}

        answer = in_child(gone_on)[0] or {"error": "the process that went on ended without an answer"}
        if "error" in answer:
            return "wrong", answer["error"]
        if answer["wrong"]:
            return "wrong", "\n".join(line[:300] for line in answer["wrong"][:5])
        return ("refused, then equal" if answer["told"] else "equal"), ""

    def _undisturbed(self, scenario: Scenario) -> Any:
        replace_slow_parts()
        before = set(sys.modules)
        watch = Watch(self._root)
        go_on(scenario.words(self._root))
        points, found = watch.points, content(self._root)
        modules = [name for name in sys.modules if name not in before and not name.startswith("__")]
        return {"points": points, "content": json.loads(json.dumps(found)), "modules": modules}

    def _prepare(self, scenario: Scenario) -> None:
        """The state before the command, kept in a second folder: paths in it name the first one."""
        for folder in (self._root, self._base):
            shutil.rmtree(folder, ignore_errors=True)
        self._root.mkdir(parents=True)
        os.environ["RAYFED_KD_CACHE"] = str(self._root / "cache")
        write_inputs(self._root)
        for words, point in scenario.before:

            def work(words: Any = words, point: str | None = point) -> None:
                replace_slow_parts()
                Watch(self._root, point)
                go_on(words(self._root))

            answer, status = in_child(work)
            if point is not None and status != -signal.SIGKILL:
                raise SystemExit(f"{point} was not reached: {answer}")
        if not scenario.fresh_cache:
            for recipe in ("recipe.yaml", "plain.yaml"):
                words = ["partition", str(self._root / recipe), "--out", str(self._base.with_name("out"))]
                in_child(lambda words=words: command(words))  # type: ignore[misc]
        shutil.copytree(self._root, self._base)

    def _restore(self) -> None:
        shutil.rmtree(self._root)
        shutil.copytree(self._base, self._root)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--sample", type=int, help="so many points in all")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--point")
    options = parser.parse_args()
    names = options.scenarios or list(SCENARIOS)
    if unknown := set(names) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    failed = False
    with tempfile.TemporaryDirectory() as place:
        harness = Harness(Path(place).resolve())
        for name in names:
            started = time.monotonic()
            points, expected = harness.points(SCENARIOS[name])
            if options.list:
                sys.stdout.write("".join(f"{name}: {point}\n" for point in points))
                continue
            chosen = [options.point] if options.point else points
            if options.sample:
                share = max(1, options.sample // len(names))
                chosen = points[len(points) // (2 * share) :: max(1, len(points) // share)][:share]
            title = f"{name}: {{}} of {len(points)} kill points"
            judged = ((point, *harness.judge(SCENARIOS[name], point, expected)) for point in chosen)
            failed |= told(name, title, judged, started)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
