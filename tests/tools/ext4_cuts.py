"""Cuts the power of a real file system under a command, goes on as a user would, and compares both ends.

    sudo python tests/tools/ext4_cuts.py                  # 200 drawn cuts of `run`, `resume` and `compare`
    sudo python tests/tools/ext4_cuts.py run --cuts 1 --first 17

An ext4 file system in a file is mounted through a loop device. At a drawn file operation of the command the
kernel is told to stop the file system at once (EXT4_IOC_SHUTDOWN without a flush of its journal): what lies
in memory alone, pages and names, is lost. Before that some files' pages are written, and every second time
the journal, so that names may be on disk without bytes, and bytes without names. Every second file system has
`data=writeback,noauto_da_alloc`, without ext4's own care for files that are replaced. Then the file system is
mounted again, and all goes on as in power_cuts.py, which says what is held against what.

It needs Linux, root, mkfs.ext4 and a free loop device.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from ctypes import CDLL, c_int64
from itertools import count, islice
from pathlib import Path
from typing import Any

from kill_points import SCENARIOS, Scenario, Watch, go_on, in_child, told
from power_cuts import NOTE, PowerHarness, missing

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN of the kernel's include/uapi/linux/ext4.h
NO_FLUSH = (2).to_bytes(4, sys.byteorder)  # EXT4_GOING_FLAGS_NOLOGFLUSH
WRITE_AND_WAIT = 7  # sync_file_range's three flags
PAGE = 4096
MIB = 2**20
OPTIONS = ("loop", "loop,data=writeback,noauto_da_alloc")
LIBC = CDLL(None)
FSYNC = os.fsync  # the harness replaces it, as a kill loses nothing that was written


class PowerOff(Watch):
    """Stops the file system at a file operation, and with it the process.

    Args:
        root: as `Watch` has it; its parent is where the file system is mounted.
        point: the operation.
        stream: draws what was written before.
        promised: gets the newest round of each folder's checkpoints that were complete, as JSON.
    """

    def __init__(self, root: Path, point: str, stream: random.Random, promised: Path) -> None:
        self._disk, self._stream, self._file = root.parent, stream, promised
        self._complete: dict[str, int] = {}
        super().__init__(root, point)

    def _fsynced(self, descriptor: int) -> None:
        FSYNC(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            notes = [NOTE.fullmatch(file.name) for file in path.iterdir()]
            if rounds := [int(note[1]) for note in notes if note]:
                self._complete[str(path)] = max(rounds)

    def _end(self) -> None:
        still = {
            path: last
            for path, last in self._complete.items()
            if Path(path, f"round-{last:06d}.json").exists()
        }
        self._file.write_text(json.dumps(still))
        for path in sorted(Path(self._root).rglob("*.*")):
            descriptor = os.open(path, os.O_RDONLY)
            for start in range(0, path.stat().st_size, PAGE):
                if path.is_file() and self._stream.random() < 0.25:
                    LIBC.sync_file_range(descriptor, c_int64(start), c_int64(PAGE), WRITE_AND_WAIT)
        if self._stream.random() < 0.5:  # an fsync elsewhere writes the journal, with the names of all files
            FSYNC(os.open(self._disk / "elsewhere", os.O_CREAT | os.O_WRONLY))
        descriptor = os.open(self._disk, os.O_RDONLY)
        fcntl.ioctl(descriptor, SHUTDOWN, NO_FLUSH)
        super()._end()


class Ext4Harness(PowerHarness):
    """Cuts the power of an ext4 file system under the commands of scenarios.

    Args:
        place: a folder for everything.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._disk, self._place = place / "disk", place
        self._root = self._disk / "root"
        self._images: list[Path] = []

    def prepare_images(self) -> None:
        """File systems that hold the state before the command."""
        self._images = [self._place / "image", self._place / "image-of-a-cut"]
        with self._images[0].open("wb") as file:
            file.truncate(64 * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._images[0]], check=True)
        shutil.rmtree(self._disk)
        self._disk.mkdir()
        self._mount(self._images[0], "loop")
        try:
            shutil.copytree(self._base, self._root)
        finally:
            self._unmount()

    def cut_at(
        self, scenario: Scenario, points: Sequence[str], seed: int, expected: Any
    ) -> tuple[str, str, str]:
        """Cut the power at a drawn operation, and go on; the command, the verdict, and why it is wrong."""
        point = random.Random(seed).choice(points)
        title = f"--cuts 1 --first {seed}, at {point}"
        words, promised = scenario.words(self._root), self._place / "promised.json"
        promised.unlink(missing_ok=True)
        shutil.copyfile(*self._images)
        self._mount(self._images[1], OPTIONS[seed % 2])

        def cut_off() -> None:
            PowerOff(self._root, point, random.Random(seed), promised)
            go_on(words)

        answer, _ = in_child(cut_off)
        self._unmount()
        self._mount(self._images[1], "loop")
        try:
            if not promised.exists():
                return title, "wrong", f"not reached: {answer}"
            rounds = json.loads(promised.read_text())
            lost, _ = in_child(lambda: [missing(Path(name), last) for name, last in rounds.items()])
            if "error" in lost or any(lost):
                return title, "wrong", str(lost)
            return title, *self.ending(words, expected)
        finally:
            self._unmount()

    def _mount(self, image: Path, options: str) -> None:
        subprocess.run(["mount", "-o", options, image, self._disk], check=True)

    def _unmount(self) -> None:
        subprocess.run(["umount", self._disk], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--cuts", type=int, default=200, help="in all")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    options = parser.parse_args()
    names = options.scenarios or ["run", "resume", "compare"]
    failed = False
    for number, name in enumerate(names):
        with tempfile.TemporaryDirectory() as place:
            harness = Ext4Harness(Path(place).resolve())
            started = time.monotonic()
            points, expected = harness.points(SCENARIOS[name])
            points = [point for point in points if not point.startswith("torn")]
            harness.prepare_images()
            seeds = islice(count(options.first), len(range(number, options.cuts, len(names))))
            judged = (harness.cut_at(SCENARIOS[name], points, seed, expected) for seed in seeds)
            failed |= told(name, f"{name}: {{}} cuts", judged, started)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
