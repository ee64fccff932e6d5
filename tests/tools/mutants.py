"""Mutation testing: small faults are put into source files one at a time; the tests must find them.

    python tests/tools/mutants.py cluster/server/event_queue.py --count 10 --seed 1

A copy of the project is made in a temporary folder, the working tree stays as it is. A mutant is one changed
node of the syntax tree: a flipped comparison, another operator, another constant, a call or a return that is
left out, two swapped arguments. The tests of its file run against each; see `tests_of`. A mutant that fails
them, or hangs, is killed. What was found lies in a JSON file after every mutant, so that an interrupted
session goes on where it stopped.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("rayfed_kd", "cluster", "algorithms")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        file: below the project's root.
        line: of the change.
        kind: what is changed.
        before, after: the changed statement's source.
        source: the whole file with the fault.
    """

    file: str
    line: int
    kind: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """Names it in the file of results; a changed source gives other mutants."""
        return f"{self.file}:{self.line} {self.kind}: {self.before} -> {self.after}"


@dataclass
class Verdict:
    """What the tests said: killed, survived, or hung, which counts as killed."""

    mutant: str
    outcome: str
    seconds: float
    tests: list[str]
    found_by: str


def mutations(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """What can be put in a node's place: kind and new node; None leaves a statement out."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if type(operator) in COMPARISONS:
                other = copy.deepcopy(node)
                other.ops[place] = COMPARISONS[type(operator)]()
                yield "comparison", other
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield "operator", ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield "and or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "sign or not", node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and len(node.args) > 1 and not _starred(node.args[:2]):
        first, second, *rest = node.args
        if ast.dump(first) != ast.dump(second):
            yield "arguments", ast.Call(node.func, [second, first, *rest], node.keywords)
    elif isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield "return", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call left out", None


def _starred(arguments: Sequence[ast.expr]) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in arguments)


def mutants(file: str) -> list[Mutant]:
    """All mutants of a file, in the order of its lines.

    Annotations and docstrings have none, nor what stands under `if TYPE_CHECKING`.
    """
    source = (ROOT / file).read_text(encoding="utf8")
    tree = ast.parse(source)
    found = []
    for node in _nodes(tree):
        for kind, new in mutations(node):
            text, line = _replaced(source, node, new), node.lineno  # type: ignore[attr-defined]
            before = _one_line(ast.get_source_segment(source, node))
            after = "nothing" if new is None else _one_line(ast.unparse(ast.fix_missing_locations(new)))
            if _parses(text):
                found.append(Mutant(file, line, kind, before, after, text))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.key))


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Each node that computes. What stands in an f-string has no place of its own in Python 3.11."""
    pending: list[ast.AST] = [tree]
    while pending:
        parent = pending.pop()
        for name, value in ast.iter_fields(parent):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            children = value if isinstance(value, list) else [value]
            for child in children:
                if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or _says_types(child):
                    continue
                yield child
                pending.append(child)


def _says_types(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _replaced(source: str, node: ast.AST, new: ast.AST | None) -> str:
    """The source with another text in a node's place; all else stays as it is written."""
    lines = source.encode().split(b"\n")
    start = (node.lineno - 1, node.col_offset)  # type: ignore[attr-defined]
    end = (node.end_lineno - 1, node.end_col_offset)  # type: ignore[attr-defined]
    text = "pass" if new is None else ast.unparse(ast.fix_missing_locations(new))
    if isinstance(node, ast.expr):
        text = f"({text})"
    head, tail = lines[start[0]][: start[1]], lines[end[0]][end[1] :]
    return b"\n".join([*lines[: start[0]], head + text.encode() + tail, *lines[end[0] + 1 :]]).decode()


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _one_line(text: str | None) -> str:
    short = " ".join((text or "").split())
    return short if len(short) <= 100 else f"{short[:97]}..."


def tests_of(file: str) -> list[str]:
    """The test files that run against a file's mutants.

    The one of the same name where the tests mirror the tree, and every one that names the module; where there
    is neither, the folder that mirrors the file's. A method's mutants also meet the contract of all methods.
    """
    path, tests = Path(file), ROOT / "tests"
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    mirrored = tests / path.parent / f"test_{path.stem}.py"
    named = re.compile(rf"\b{re.escape(module)}\b")
    found = [mirrored] if mirrored.is_file() else []
    found += [test for test in sorted(tests.rglob("test_*.py")) if named.search(test.read_text())]
    if path.parts[0] == "algorithms":
        found.append(tests / "algorithms" / "test_contract.py")
    found = found or sorted((tests / path.parent).glob("test_*.py"))
    return list(dict.fromkeys(str(test.relative_to(ROOT)) for test in found)) or ["tests"]


class Copy:
    """A copy of the project in which mutants are tried."""

    def __init__(self, folder: Path, limit_s: float) -> None:
        self._folder, self._limit_s = folder / "project", limit_s
        self._folder.mkdir()
        leave_out = shutil.ignore_patterns("__pycache__")
        for name in (*PACKAGES, "tests", "configs", "docs"):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self._folder / name, ignore=leave_out)
        for name in ("pyproject.toml", "README.md", "Makefile", "constraints.txt"):
            shutil.copy(ROOT / name, self._folder / name)

    def tried(self, tests: Sequence[str]) -> tuple[str, str, float]:
        """Runs tests: "passed", "failed" or "hung"; the first failing one; seconds."""
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return "hung", "", time.monotonic() - started
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        outcome = "passed" if process.returncode == 0 else "failed"
        return outcome, failed[1] if failed else _last_line(said), time.monotonic() - started

    def judged(self, mutant: Mutant, tests: Sequence[str]) -> Verdict:
        """Puts the mutant in, runs the tests, takes it out."""
        path = self._folder / mutant.file
        original = path.read_text(encoding="utf8")
        path.write_text(mutant.source, encoding="utf8")
        try:
            outcome, found_by, seconds = self.tried(tests)
        finally:
            path.write_text(original, encoding="utf8")
        word = {"passed": "survived", "failed": "killed", "hung": "hung"}[outcome]
        return Verdict(mutant.key, word, round(seconds, 1), list(tests), found_by)


def _last_line(text: str) -> str:
    return _one_line(text.strip().rsplit("\n", 1)[-1])


def chosen(files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of these files, a function of the seed and the sources."""
    every = [mutant for file in files for mutant in mutants(file)]
    return random.Random(seed).sample(every, min(count, len(every)))


def run(files: Sequence[str], count: int, seed: int, results: Path, limit_s: float) -> dict[str, Verdict]:
    """Tries what is not in `results` yet.

    Raises: SystemExit if a file's tests fail without a mutant.
    """
    found = {}
    if results.is_file():
        found = {entry["mutant"]: Verdict(**entry) for entry in json.loads(results.read_text())}
    wanted = chosen(files, count, seed)
    with tempfile.TemporaryDirectory() as folder:
        project, sound = Copy(Path(folder), limit_s), set[str]()
        for mutant in wanted:
            if mutant.key in found:
                continue
            tests = tests_of(mutant.file)
            if mutant.file not in sound:
                outcome, failed, _ = project.tried(tests)
                if outcome != "passed":
                    raise SystemExit(f"{mutant.file}: its tests {outcome} without a mutant: {failed}")
                sound.add(mutant.file)
            verdict = found[mutant.key] = project.judged(mutant, tests)
            sys.stdout.write(f"{verdict.outcome:8} {verdict.seconds:6.1f} s  {mutant.key}\n")
            sys.stdout.flush()
            aside = results.with_name(f".{results.name}")
            aside.write_text(json.dumps([asdict(entry) for entry in found.values()], indent=1))
            aside.replace(results)
    return {mutant.key: found[mutant.key] for mutant in wanted}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", help="source files below the project's root")
    parser.add_argument("--count", type=int, default=20, help="how many mutants (20)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--limit", type=float, default=120, help="seconds of a mutant's tests (120)")
    parser.add_argument("--results", type=Path, default=Path("mutants.json"), help="where results lie")
    options = parser.parse_args()
    verdicts = run(options.files, options.count, options.seed, options.results, options.limit)
    survivors = [verdict for verdict in verdicts.values() if verdict.outcome == "survived"]
    killed = len(verdicts) - len(survivors)
    sys.stdout.write(f"\n{killed} of {len(verdicts)} killed ({killed / max(1, len(verdicts)):.0%})\n")
    for verdict in survivors:
        sys.stdout.write(f"survived  {verdict.mutant}\n")


if __name__ == "__main__":
    main()
