"""Power cuts of a simulated disk; tests/tools/power_cuts.py says what a disk may lose."""

import random
import subprocess
import sys

from paths import ROOT

sys.path.insert(0, str(ROOT / "tests/tools"))
from power_cuts import Cut, Disk, Drawn, NamesOnly

FLUSHED, WRITTEN = b"x" * 600, b"y" * 600
# A file that is brought to disk and grows, under a name that is not.
GROWING = [
    ("data", 1, b""),
    ("name", 0, "a", 1),
    ("data", 1, FLUSHED),
    ("flush", 1),
    ("data", 1, FLUSHED + WRITTEN),
]
# A checkpoint whose note and folder are on disk, but for the folder's own name.
NOTE = [
    ("folder", 2),
    ("name", 0, "checkpoints", 2),
    ("data", 3, b"{}"),
    ("flush", 3),
    ("name", 2, "round-000007.json", 3),
    ("flush", 2),
]


def left(operations, cut):
    return Disk([], operations).after_cut(cut)


def test_a_cut_loses_bytes_and_names_that_were_not_flushed():
    assert left(GROWING, Cut()) == ({}, {})
    assert left([*GROWING, ("flush", 0)], Cut()) == ({"a": FLUSHED}, {})
    assert left(GROWING, NamesOnly()) == ({"a": FLUSHED + bytes(600)}, {})
    assert left([*GROWING, ("flush", 0), ("flush", 1)], Cut()) == ({"a": FLUSHED + WRITTEN}, {})
    assert Disk(GROWING, []).after_cut(Cut()) == ({"a": FLUSHED + WRITTEN}, {})
    renamed = [*GROWING, ("flush", 0), ("name", 0, "b", 1), ("name", 0, "a", None)]
    assert left(renamed, Cut())[0].keys() == {"a"}
    assert left(renamed, NamesOnly())[0].keys() == {"b"}
    replacing = [("data", 2, FLUSHED), ("name", 0, "b", 2), *GROWING, ("flush", 0), ("name", 0, "b", 1)]
    assert left(replacing, NamesOnly())[0].keys() == {"b"}, "it was cut within a rename"


def test_drawn_cuts_keep_what_was_flushed_and_lose_the_rest_in_all_ways():
    drawn = [left(GROWING, Drawn(random.Random(seed)))[0].get("a") for seed in range(200)]
    contents = [content for content in drawn if content is not None]
    assert all(content.startswith(FLUSHED) for content in contents)
    assert {set(content[600:]) <= {*b"y\0"} for content in contents} == {True}
    assert {None, FLUSHED, FLUSHED + WRITTEN, FLUSHED + bytes(600)} < {*drawn}
    assert any(len({*content[600:]}) == 2 for content in contents), "no write was torn"


def test_complete_checkpoints_are_promised():
    assert left(NOTE, NamesOnly())[1] == {"checkpoints": 7}
    assert left(NOTE, Cut()) == ({}, None), "the folder's own name was not flushed"
    assert left([*NOTE, ("flush", 0)], Cut())[1] == {"checkpoints": 7}
    assert left([*NOTE, ("name", 2, "round-000007.json", None)], NamesOnly())[1] == {}, "it was removed"


def test_power_cuts_of_a_run_lose_no_complete_checkpoint():
    tool = [sys.executable, str(ROOT / "tests/tools/power_cuts.py"), "run", "--drawn", "4"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 cuts of " in done.stdout
