"""Mutation testing: small faults are put into source files one at a time; the fast tests must find them.

    python tests/tools/mutants.py map
    python tests/tools/mutants.py try algorithms rayfed_kd/toolbox --count 200 --seed 1

A mutant is one changed node of the syntax tree (`mutations.py`). `map` runs the fast tests once and writes
down which test runs which line (`reached_lines.py`; it needs the package `coverage`). `try` puts each mutant
into a copy of the project and runs the tests that reach its line, those of the file of the same name first,
until one fails, the tests are at their end, or `--budget` seconds of tests have run. A mutant that fails a
test, or hangs, is killed. Every verdict is written at once: a session that is interrupted goes on where it
stopped. Tests on Ray do not take part: the same code runs on the local engine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from mutations import ROOT, Mutant, mutants

PACKAGES = ("rayfed_kd", "cluster", "algorithms")
DEFAULTS = "tests/configs/test_defaults.py::"
TRACED = 1.5  # tests of the map run so many times slower than others


@dataclass
class Verdict:
    """What the tests said: killed, hung (which counts as killed), survived, or unreached: no test runs it."""

    mutant: str
    outcome: str
    seconds: float
    tests: int
    found_by: str


class TestMap:
    """Which tests run a line, the nearest first.

    Args:
        path: what `reached_lines.py` wrote.
    """

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text())
        self._seconds: dict[str, float] = content["seconds"]
        self._names = list(self._seconds)
        self._lines: dict[str, dict[str, list[int]]] = content["lines"]

    def tests_of(self, mutant: Mutant, budget_s: float) -> tuple[list[str], float]:
        """Test names for a mutant and their seconds, at most `budget_s`.

        A line in no function's body has all tests that run any line of its file, and those of defaults.
        """
        lines = self._lines.get(mutant.file, {})
        reached = range(mutant.line, mutant.last_line + 1)
        numbers = {test for line in reached for test in lines.get(str(line), [])}
        if mutant.at_import or not numbers:
            numbers = {test for tests in lines.values() for test in tests}
            numbers |= {place for place, name in enumerate(self._names) if name.startswith(DEFAULTS)}
        stem = Path(mutant.file).stem
        mirrored = f"tests/{Path(mutant.file).parent}/test_{stem}.py::"
        nearest = (mirrored, DEFAULTS) if mutant.at_import else (mirrored,)
        names = sorted(
            (self._names[number] for number in numbers),
            key=lambda name: (not name.startswith(nearest), self._seconds[name]),
        )
        chosen, total_s = [], 0.0
        for name in names:
            if chosen and total_s + self._seconds[name] / TRACED > budget_s:
                continue
            chosen.append(name)
            total_s += self._seconds[name] / TRACED
        return chosen, total_s


class ChosenTests:
    """A pytest plugin: runs the tests that are named, in that order, and writes the first that fails."""

    def __init__(self, names: Sequence[str], note: Path) -> None:
        self._place = {name: place for place, name in enumerate(names)}
        self._note = note

    @pytest.hookimpl(trylast=True)  # after pytest has put tests of one fixture together
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the named ones."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self._place), key=lambda item: self._place[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write a failure down."""
        if report.failed:
            self._note.write_text(report.nodeid)


class Copy:
    """A copy of the project in which mutants are tried. Each is tried in a fork of this process, which has
    imported the packages that take long, and nothing of the project.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._note, self._said = folder / "project", folder / "failed", folder / "said"
        self._folder.mkdir()
        leave_out = shutil.ignore_patterns("__pycache__")
        for name in (*PACKAGES, "tests", "configs", "docs"):
            shutil.copytree(ROOT / name, self._folder / name, ignore=leave_out)
        for name in ("pyproject.toml", "README.md", "Makefile", "constraints.txt"):
            shutil.copy(ROOT / name, self._folder / name)
        subprocess.run([sys.executable, "-m", "compileall", "-q", *PACKAGES], cwd=self._folder, check=True)

    def tried(self, names: Sequence[str], limit_s: float) -> tuple[str, str]:
        """Run tests: "passed", "failed" or "hung", and the first failing one."""
        self._note.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._run(names)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                failed = self._note.read_text() if self._note.is_file() else "an import"
                return ("passed", "") if status == 0 else ("failed", failed)
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hung", ""

    def _run(self, names: Sequence[str]) -> None:
        """In the fork: never returns."""
        code = 1
        try:
            os.setsid()
            said = os.open(self._said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.chdir(self._folder)
            os.environ["PYTHONPATH"] = str(self._folder)
            sys.dont_write_bytecode = True
            sys.path[:0] = [str(self._folder)]
            files = list(dict.fromkeys(name.split("::")[0] for name in names))
            options = ["-x", "-q", "-p", "no:cacheprovider", *files]
            code = int(pytest.main(options, plugins=[ChosenTests(names, self._note)]))
        finally:
            os._exit(code)

    def judged(self, mutant: Mutant, names: Sequence[str], limit_s: float) -> Verdict:
        """Put the mutant in, run the tests, take it out."""
        path = self._folder / mutant.file
        original, before = path.read_text(encoding="utf8"), path.stat()
        started = time.monotonic()
        path.write_text(mutant.source, encoding="utf8")
        try:
            outcome, found_by = self.tried(names, limit_s)
        finally:
            path.write_text(original, encoding="utf8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # its compiled form is valid again
        word = {"passed": "survived", "failed": "killed", "hung": "hung"}[outcome]
        return Verdict(mutant.key, word, round(time.monotonic() - started, 1), len(names), found_by)


def source_files(places: Sequence[str]) -> list[str]:
    """The files named, and those of the folders named."""
    paths = [
        file
        for place in places
        for file in (sorted((ROOT / place).rglob("*.py")) if (ROOT / place).is_dir() else [ROOT / place])
    ]
    return [str(path.relative_to(ROOT)) for path in paths]


def chosen(files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of these files, a function of the seed and the sources."""
    every = [mutant for file in files for mutant in mutants(file)]
    return random.Random(seed).sample(every, min(count, len(every)))


def try_mutants(wanted: Sequence[Mutant], tests: TestMap, results: Path, budget_s: float) -> list[Verdict]:
    """Try what has no verdict in `results` yet; lines of JSON.

    Raises: SystemExit if a test that kills a mutant fails without it.
    """
    lines = results.read_text().splitlines() if results.is_file() else []
    verdicts = {entry["mutant"]: Verdict(**entry) for entry in map(json.loads, lines)}
    passing: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        project = Copy(Path(folder))
        for mutant in wanted:
            if mutant.key in verdicts:
                continue
            names, seconds = tests.tests_of(mutant, budget_s)
            if names:
                verdict = project.judged(mutant, names, 30 + 4 * seconds)
            else:
                verdict = Verdict(mutant.key, "unreached", 0.0, 0, "")
            test = verdict.found_by
            if "::" in test and test not in passing:  # it must be the mutant that fails it
                if (outcome := project.tried([test], 120)) != ("passed", ""):
                    raise SystemExit(f"{test} without a mutant: {outcome[0]}")
                passing.add(test)
            verdicts[mutant.key] = verdict
            with results.open("a") as log:
                log.write(json.dumps(asdict(verdict)) + "\n")
            sys.stdout.write(f"{verdict.outcome:9} {verdict.seconds:6.1f} s  {mutant.key}\n")
            sys.stdout.flush()
    return [verdicts[mutant.key] for mutant in wanted]


def write_map(target: Path, tests: Sequence[str]) -> None:
    """Run the fast tests with `reached_lines`.

    Raises: CalledProcessError if a test fails.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    environment |= {"REACHED_LINES": str(target.resolve()), "OMP_NUM_THREADS": "1"}
    extra = os.environ.get("PYTHONPATH")
    environment["PYTHONPATH"] += f"{os.pathsep}{extra}" if extra else ""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "reached_lines", *tests]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--map", type=Path, default=Path("reached.json"), help="where the map lies")
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map", help="write which test runs which line")
    mapping.add_argument("tests", nargs="*", default=["tests"], help="folders of tests (all)")
    trying = commands.add_parser("try", help="try mutants")
    trying.add_argument("places", nargs="+", help="source files and folders below the project's root")
    trying.add_argument("--count", type=int, default=100, help="how many mutants (100)")
    trying.add_argument("--seed", type=int, default=1, help="which ones (1)")
    trying.add_argument("--budget", type=float, default=60, help="seconds of tests for one mutant (60)")
    trying.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="where verdicts lie")
    options = parser.parse_args()
    if options.command == "map":
        write_map(options.map, options.tests)
        return
    import_packages()
    wanted = chosen(source_files(options.places), options.count, options.seed)
    verdicts = try_mutants(wanted, TestMap(options.map), options.results, options.budget)
    survivors = [verdict for verdict in verdicts if verdict.outcome in ("survived", "unreached")]
    killed = len(verdicts) - len(survivors)
    sys.stdout.write(f"\n{killed} of {len(verdicts)} killed ({killed / max(1, len(verdicts)):.0%})\n")
    for verdict in survivors:
        sys.stdout.write(f"{verdict.outcome}  {verdict.mutant}\n")


def import_packages() -> None:
    """What every fork would import again."""
    for name in ("matplotlib.figure", "pyarrow.parquet", "pydantic", "torch.func"):
        importlib.import_module(name)


if __name__ == "__main__":
    main()
