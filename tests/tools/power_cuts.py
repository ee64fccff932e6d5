"""Cuts the power of a simulated disk under a command, goes on as a user would, and compares both ends.

    python tests/tools/power_cuts.py                      # 200 drawn cuts of `run`, `resume` and `compare`
    python tests/tools/power_cuts.py run --drawn 50       # of one scenario
    python tests/tools/power_cuts.py --systematic         # after each operation, in two bad ways, too

The scenarios are those of kill_points.py. A command's operations on files are written down: what it wrote
into which file, which name it gave or took, and what it brought to disk with fsync. A power cut after any of
them leaves what POSIX promises, and of the rest what the disk had by chance:

- a file has its bytes of the last fsync of it; of what was written since then, each 512 bytes are there, or
  as they were before, or zeros where nothing was before, and its end is anywhere between then and now;
- a name means what it meant at the last fsync of its folder, or anything that it meant since then, whatever
  other names of the folder mean. So renames, new files and removals are lost, or come in another order. What
  was renamed has its old name or its new one.

Each such state becomes a folder. A checkpoint that was complete before the cut must be usable there. Then the
same command is given again, and where that is refused, the command that its message names; verdicts are those
of kill_points.py.

Not covered: what a disk loses although fsync came back.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import random
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from kill_points import SCENARIOS, WRITING, Harness, Scenario, go_on, in_child, told

SECTOR = 512
SIZE_AND_TIME = 0.1  # seconds in which a file may change twice without another time of its last change
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
ROOT_ID = 0
NOTE = re.compile(r"round-(\d+)\.json")
Operation = tuple[Any, ...]  # as `Disk._apply` takes them


class Recorder:
    """Writes down what this process does to the files below a folder.

    It looks at the folder before each operation that Python tells of, so that files of Arrow, torch and
    safetensors are seen as well. Files and folders are numbers; the folder itself is 0.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.operations: list[Operation] = []
        self._root, self._lock = str(root), threading.RLock()
        self._numbers: dict[int, int] = {}  # inode -> file
        self._count = ROOT_ID
        self._names: dict[int, dict[str, int]] = {ROOT_ID: {}}
        self._contents: dict[int, tuple[Any, bytes]] = {}
        self.look()
        self.before = self.operations  # how it began: all of it was on disk
        self.operations = []
        os.fsync = self._flushed
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
            self.look()

    def _flushed(self, descriptor: int) -> None:
        with self._lock:
            self.look()
            file = self._numbers.get(os.fstat(descriptor).st_ino)
            if file is not None:
                self.operations.append(("flush", file))

    def look(self) -> None:
        """Note what has changed since the last look."""
        with self._lock:
            found = self._walk()
            while (again := self._walk()).keys() != found.keys():  # another thread was at it
                found = again
            inodes = {status.st_ino for status in found.values()}
            for inode in self._numbers.keys() - inodes:  # the system gives its number to another file
                del self._numbers[inode]
            names: dict[int, dict[str, int]] = {ROOT_ID: {}}
            by_path = {self._root: ROOT_ID}
            for path, status in found.items():
                file = self._numbers.get(status.st_ino)
                new = file is None
                if file is None:
                    self._count += 1
                    file = self._numbers[status.st_ino] = self._count
                by_path[path] = file
                folder, _, name = path.rpartition("/")
                names[by_path[folder]][name] = file
                if stat.S_ISDIR(status.st_mode):
                    names.setdefault(file, {})
                    if new:
                        self.operations.append(("folder", file))
                else:
                    self._note_content(file, path, status)
            for folder, now in names.items():
                before = self._names.get(folder, {})
                for name in sorted({*before, *now}, key=lambda name: name not in now):  # what goes comes last
                    if before.get(name) != now.get(name):
                        self.operations.append(("name", folder, name, now.get(name)))
            self._names = names

    def _walk(self) -> dict[str, os.stat_result]:
        found, waiting = {}, [self._root]
        while waiting:
            try:
                entries = sorted(os.scandir(waiting.pop()), key=lambda entry: entry.name)
                statuses = {entry.path: entry.stat(follow_symlinks=False) for entry in entries}
            except FileNotFoundError:
                continue
            found.update(statuses)
            waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return found

    def _note_content(self, file: int, path: str, status: os.stat_result) -> None:
        seen, content = self._contents.get(file, (None, b""))
        facts = (status.st_size, status.st_mtime_ns)
        if facts == seen and time.time() - status.st_mtime > SIZE_AND_TIME:
            return
        try:
            now = Path(path).read_bytes()
        except FileNotFoundError:
            return
        self._contents[file] = (facts, now)
        if seen is None or now != content:
            self.operations.append(("data", file, now))


class Disk:
    """What a disk may hold after some operations.

    Args:
        before: operations of which all is on disk.
        operations: those of which only what was flushed is.

    Attributes:
        files: file -> its contents since its last flush, of which the first is on disk for certain.
        folders: folder -> name -> what it meant since the folder's last flush, likewise.
    """

    def __init__(self, before: Iterable[Operation], operations: Iterable[Operation]) -> None:
        self.files: dict[int, list[bytes]] = {}
        self.folders: dict[int, dict[str, list[int | None]]] = {ROOT_ID: {}}
        for operation in before:
            self._apply(operation)
        for file in [*self.files, *self.folders]:
            self._apply(("flush", file))
        for operation in operations:
            self._apply(operation)

    def _apply(self, operation: Operation) -> None:
        """Go on by one operation: ("data", file, all bytes), ("name", folder, name, file or None), ("folder",
        folder), or ("flush", file or folder).
        """
        what, file = operation[:2]
        if what == "data":
            self.files.setdefault(file, [b""]).append(operation[2])
        elif what == "folder":
            self.folders.setdefault(file, {})
        elif what == "name":
            names = self.folders.setdefault(file, {})
            # The newest name comes last: in the middle of a rename a file has both, and the new one counts.
            names[operation[2]] = [*names.pop(operation[2], [None]), operation[3]]
        elif file in self.files:
            self.files[file] = self.files[file][-1:]
        else:
            names = self.folders.get(file, {})
            self.folders[file] = {name: meant[-1:] for name, meant in names.items()}

    def _promised(self) -> dict[int, int]:
        """Folder of checkpoints -> the newest round whose note is on disk for certain."""
        found: dict[int, int] = {}
        waiting = [ROOT_ID]
        while waiting:
            names = self.folders.get(folder := waiting.pop(), {})
            waiting += [meant[-1] for meant in names.values() if meant[-1] in self.folders]
            flushed = [NOTE.fullmatch(name) for name, meant in names.items() if len(meant) == 1 and meant[0]]
            if rounds := [int(note[1]) for note in flushed if note]:
                found[folder] = max(rounds)
        return found

    def _names_after(self, cut: Cut) -> dict[int, dict[str, int | None]]:
        left = {
            folder: {name: cut.name(meant) for name, meant in sorted(names.items())}
            for folder, names in sorted(self.folders.items())
        }
        # A rename is one operation: what had a name before it, and has one after it, has one of the two.
        had, has = (
            {
                meant[at]: (folder, name)
                for folder, some in self.folders.items()
                for name, meant in some.items()
            }
            for at in (0, -1)
        )
        for file in has.keys() - {None}:
            places = [(folder, name) for folder, some in left.items() for name in some if some[name] == file]
            for folder, name in places if has[file] in places else ():
                left[folder][name] = file if (folder, name) == has[file] else None
            if not places and file in had:
                folder, name = had[file] if left[had[file][0]][had[file][1]] is None else has[file]
                left[folder][name] = file
        return left

    def after_cut(self, cut: Cut) -> tuple[dict[str, bytes | None], dict[str, int] | None]:
        """What a cut leaves, path -> content, None of a folder; promised rounds, None if they are lost."""
        contents: dict[str, bytes | None] = {}
        places: dict[int, str] = {}

        left = self._names_after(cut)

        def fill(folder: int, path: str) -> None:
            for name, file in left[folder].items():
                if file is None:
                    continue
                place = places[file] = f"{path}{name}"
                if file in self.files:
                    contents[place] = cut.content(self.files[file])
                else:
                    contents[place] = None
                    fill(file, f"{place}/")

        fill(ROOT_ID, "")
        rounds = {places.get(folder, ""): last for folder, last in self._promised().items()}
        return contents, None if "" in rounds else rounds


class Cut:
    """A power cut that loses everything that is not promised. Subclasses lose less, or worse."""

    def name(self, meant: Sequence[int | None]) -> int | None:
        """One of what a name meant since the last flush."""
        return meant[0]

    def content(self, versions: Sequence[bytes]) -> bytes:
        """What is left of a file, of its contents since the last flush."""
        return versions[0]


class NamesOnly(Cut):
    """All names are there, and zeros for bytes that were not flushed."""

    def name(self, meant: Sequence[int | None]) -> int | None:
        return meant[-1]

    def content(self, versions: Sequence[bytes]) -> bytes:
        return versions[0] + bytes(max(0, len(versions[-1]) - len(versions[0])))


class Drawn(Cut):
    """Anything that POSIX allows."""

    def __init__(self, stream: random.Random) -> None:
        self._stream, self._kept = stream, stream.random()

    def name(self, meant: Sequence[int | None]) -> int | None:
        return meant[-1] if self._stream.random() < self._kept else self._stream.choice(meant)

    def content(self, versions: Sequence[bytes]) -> bytes:
        if len(versions) == 1:
            return versions[0]
        first, last = versions[0], self._stream.choice(versions[1:])
        low, high = sorted((len(first), len(last)))
        size = self._stream.choice((low, high, self._stream.randint(low, high)))
        some = [*versions, first.ljust(size, b"\0")]
        parts = []
        for start in range(0, size, SECTOR):
            part = last if self._stream.random() < self._kept else self._stream.choice(some)
            parts.append(part[start : start + SECTOR].ljust(SECTOR, b"\0"))
        return b"".join(parts)[:size]


class PowerHarness(Harness):
    """Cuts the power under the commands of scenarios."""

    def recorded(self, scenario: Scenario) -> tuple[Recorder, Any]:
        """A scenario's operations, and the content of its undisturbed end."""
        _, expected = self.points(scenario)
        self._restore()
        place = self._root.with_name("operations")

        def record() -> None:
            recorder = Recorder(self._root)
            go_on(scenario.words(self._root))
            recorder.look()
            place.write_bytes(pickle.dumps((recorder.before, recorder.operations)))

        answer, _ = in_child(record)
        if answer:
            raise SystemExit(answer["error"])
        return pickle.loads(place.read_bytes()), expected

    def cut(
        self,
        scenario: Scenario,
        contents: dict[str, bytes | None],
        promised: dict[str, int] | None,
        expected: Any,
    ) -> tuple[str, str]:
        """Go on from what a cut left; the verdict, and why it is wrong."""
        if promised is None:
            return "wrong", "a folder of complete checkpoints is lost"
        shutil.rmtree(self._root)
        self._root.mkdir()
        for name, content in contents.items():
            path = self._root / name
            if content is None:
                path.mkdir()
            else:
                path.write_bytes(content)
        answer, _ = in_child(lambda: [missing(self._root / name, last) for name, last in promised.items()])
        if "error" in answer or any(answer):
            return "wrong", str(answer)
        return self.ending(scenario.words(self._root), expected)


def missing(folder: Path, last: int) -> str:
    """Why a run's checkpoints are not usable up to a round; empty if they are."""
    from rayfed_kd.cluster.server.checkpoints import Checkpointer
    from rayfed_kd.recipe.sections.safety import CheckpointRecipe

    passed_over: list[str] = []
    newest = Checkpointer(folder.parent, CheckpointRecipe()).newest(
        passed_over.append, folder.parent / "tables"
    )
    found = 0 if newest is None else int(newest.stem.removeprefix("round-"))
    return "" if found >= last else f"{folder}: the checkpoint of round {last} is lost: {passed_over}"


Left = tuple[str, dict[str, bytes | None], dict[str, int] | None]


def systematic(before: Sequence[Operation], operations: Sequence[Operation]) -> Iterator[Left]:
    """Cuts after each operation that lose all, or the bytes, that was not flushed; as `drawn` gives them."""
    for at in range(len(operations) + 1):
        disk = Disk(before, operations[:at])
        for cut in (Cut(), NamesOnly()):
            yield f"after operation {at}, {type(cut).__name__}", *disk.after_cut(cut)


def drawn(before: Sequence[Operation], operations: Sequence[Operation], first: int) -> Iterator[Left]:
    """Drawn cuts, without an end: the name, what it leaves, and the rounds of complete checkpoints there.

    The rounds are None where a folder of complete checkpoints is lost.
    """
    for seed in count(first):
        stream = random.Random(seed)
        at = stream.randint(0, len(operations))
        yield f"--drawn 1 --first {seed}", *Disk(before, operations[:at]).after_cut(Drawn(stream))


def distinct(cuts: Iterable[Left]) -> Iterator[Left]:
    """Those that leave something else than all before."""
    seen = set()
    for cut in cuts:
        digest = hashlib.sha1(repr(sorted(cut[1].items())).encode()).digest()
        if digest not in seen:
            seen.add(digest)
            yield cut


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--drawn", type=int, default=200, help="cuts in all")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    parser.add_argument("--systematic", action="store_true", help="those after each operation, too")
    options = parser.parse_args()
    names = options.scenarios or ["run", "resume", "compare"]
    failed = False
    with tempfile.TemporaryDirectory() as place:
        harness = PowerHarness(Path(place).resolve())
        for number, name in enumerate(names):
            started = time.monotonic()
            (before, operations), expected = harness.recorded(SCENARIOS[name])
            share = len(range(number, options.drawn, len(names)))
            cuts = islice(distinct(drawn(before, operations, options.first)), share)
            if options.systematic:
                cuts = chain(cuts, distinct(systematic(before, operations)))
            judged = ((title, *harness.cut(SCENARIOS[name], *left, expected)) for title, *left in cuts)
            failed |= told(name, f"{name}: {{}} cuts of {len(operations)} operations", judged, started)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
