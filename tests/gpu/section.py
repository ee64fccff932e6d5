"""One section of the check in its own process: python tests/gpu/section.py NAME --rows FILE --device cuda.

A section is a module of tests/gpu/sections with a function `rows(size)`, which yields its table's rows as it
finds them. Each is written at once, so that a section that is stopped leaves what it has found. A row with a
`fault` makes the section fail, and the next row follows.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from check import LEFT_OUT
from size import LeftOutError, Size

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Run the section that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    # The sections use the tests' recipes and the benchmarks; both are folders of scripts, no packages.
    sys.path[1:1] = [str(ROOT / "tests/helpers"), str(ROOT / "tests/benchmarks")]
    section = importlib.import_module(f"sections.{given.name}")
    size = Size(given.device, given.toy, given.seconds)
    try:
        with given.rows.open("a", encoding="utf8") as file:
            for row in section.rows(size):
                file.write(json.dumps(row) + "\n")
                file.flush()
    except LeftOutError as why:
        sys.stdout.write(f"{why}\n")
        sys.exit(LEFT_OUT)


if __name__ == "__main__":
    main()
