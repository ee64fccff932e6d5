"""How much code one round runs through: what a reader opens to follow it from end to end.

python tests/tools/round_path.py fedprox           # rounds 2 to 4 of the quickstart's recipe, without Ray
python tests/tools/round_path.py fedkf --list      # and the functions, file by file

Counts files and functions of `rayfed_kd`, `algorithms` and `cluster` that were called in this thread while
those rounds ran, and the code lines (no blank, comment or docstring) of those functions and of their files.
"""

import ast
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from size import PACKAGE, ROOT, code_line_numbers

ROUNDS = 4  # the first is left out: it builds what the others have


def round_path(method):
    """How many functions a round enters, and a row a file: it, its functions, their code lines, its own."""
    import rayfed_kd

    called, rooms = set(), tuple(f"{ROOT / name}/" for name in PACKAGE)

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(rooms):
            called.add((code.co_filename, code.co_firstlineno, code.co_qualname))

    def on_event(event):
        sys.setprofile(note if event["round"] < ROUNDS else None)

    with tempfile.TemporaryDirectory() as folder:
        options = {
            "method": {"name": method},
            "rounds": ROUNDS,
            "results.folder": f"{folder}/run",
            "evaluation.samples": False,
        }
        try:
            rayfed_kd.run(ROOT / "configs/quickstart.yaml", options, local=True, on_event=on_event)
        finally:
            sys.setprofile(None)
    firsts = defaultdict(set)
    for file, line, _ in called:
        firsts[file].add(line)
    return len(called), [_row(file, lines) for file, lines in sorted(firsts.items())]


def _row(file, firsts):
    source = Path(file).read_text(encoding="utf8")
    code, spans = code_line_numbers(source), {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            spans[first] = range(first, node.end_lineno + 1)
    lines = sum(len(code.intersection(spans[first])) for first in firsts if first in spans)
    return str(Path(file).relative_to(ROOT)), len(firsts), lines, len(code)


if __name__ == "__main__":
    name = sys.argv[1]
    functions, rows = round_path(name)
    if "--list" in sys.argv[2:]:
        for file, count, lines, whole in rows:
            sys.stdout.write(f"{file:60} {count:4} functions, {lines:4} of {whole:4} code lines\n")
    lines, whole = (sum(row[place] for row in rows) for place in (2, 3))
    told = f"{len(rows)} files, {functions} functions, {lines} code lines of them, {whole} of their files"
    sys.stdout.write(f"{name}: {told}\n")
