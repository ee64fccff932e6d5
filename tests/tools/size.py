"""Code lines by room: lines with a token that is neither comment nor docstring.

python tests/tools/size.py            # rayfed_kd, algorithms, cluster, tests; from the project's root
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ("rayfed_kd", "algorithms", "cluster")
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_line_numbers(source):
    """The numbers of the lines that hold code, from 1."""
    documented, lines = set(), set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documented |= set(range(node.lineno, node.end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines - documented


def rooms():
    """Code lines by room: a folder of `rayfed_kd` or `cluster`, all of `algorithms`, all of `tests`."""
    counts = Counter()
    for top in (*PACKAGE, "tests"):
        for file in sorted((ROOT / top).rglob("*.py")):
            parts = file.relative_to(ROOT).parts[:2]
            room = "/".join(parts) if top in ("rayfed_kd", "cluster") else top
            counts[room] += len(code_line_numbers(file.read_text(encoding="utf8")))
    return counts


def total(counts, *tops):
    """The code lines of some top folders."""
    return sum(count for room, count in counts.items() if room.split("/")[0] in tops)


if __name__ == "__main__":
    found = rooms()
    for room, count in found.most_common():
        sys.stdout.write(f"{count:7,}  {room}\n")
    sys.stdout.write(f"{total(found, *PACKAGE):7,}  rayfed_kd, algorithms and cluster together\n")
