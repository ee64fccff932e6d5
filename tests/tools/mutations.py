"""Small faults of a source file: one changed node of its syntax tree each."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
        line, last_line, column: of the change.
        at_import: whether it stands in no function's body: options and their defaults do.
        kind: what is changed.
        before, after: the changed statement's source.
        source: the whole file with the fault.
    """

    file: str
    line: int
    last_line: int
    column: int
    at_import: bool
    kind: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """Names it in the file of results; a changed source gives other mutants."""
        return f"{self.file}:{self.line}:{self.column} {self.kind}: {self.before} -> {self.after}"


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
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    bodies = [(function.body[0].lineno, function.end_lineno or 0) for function in functions]
    faults = []
    for node in _nodes(tree):
        for kind, new in mutations(node):
            text = _replaced(source, node, new)
            line, place = node.lineno, (node.lineno, node.end_lineno, node.col_offset)  # type: ignore[attr-defined]
            at_import = not any(first <= line <= last for first, last in bodies)
            before = _one_line(ast.get_source_segment(source, node))
            after = "nothing" if new is None else _one_line(ast.unparse(ast.fix_missing_locations(new)))
            if _parses(text):
                faults.append(Mutant(file, *place, at_import, kind, before, after, text))
    return sorted(faults, key=lambda mutant: (mutant.line, mutant.key))


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
