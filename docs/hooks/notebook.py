"""Runs examples/notebook.ipynb from top to bottom and writes its outputs: `python docs/hooks/notebook.py`.

In one namespace and this process: nbclient and ipykernel, with which Jupyter runs cells, would be packages
for this one file.
"""

import ast
import base64
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

FILE = Path(__file__).parents[2] / "examples/notebook.ipynb"
RICH = {"text/html": "_repr_html_", "text/markdown": "_repr_markdown_", "image/png": "_repr_png_"}


def run_cell(source, namespace):
    """What the last line of a cell gives; None if it is no expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


def shown(value):
    """What a notebook shows of a value: MIME type -> text, a picture in base64."""
    asked = {kind: getattr(value, name)() for kind, name in RICH.items() if hasattr(value, name)}
    forms = {kind: form for kind, form in asked.items() if form is not None}
    forms["text/plain"] = repr(value) if not forms else f"<{type(value).__name__}>"
    return {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in forms.items()}


def outputs(source, count, namespace, folder):
    """A cell's outputs as its file has them; paths below `folder` begin with a point."""
    with redirect_stdout(io.StringIO()) as printed:
        value = run_cell(source, namespace)
    found = []
    if text := printed.getvalue().replace(folder, "."):
        found.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {
            kind: text if kind == "image/png" else text.replace(folder, ".").splitlines(keepends=True)
            for kind, text in shown(value).items()
        }
        found.append(
            {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}
        )
    return found


def main():
    """Runs every cell and writes the file."""
    content, namespace = json.loads(FILE.read_text(encoding="utf8")), {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        cells = (cell for cell in content["cells"] if cell["cell_type"] == "code")
        for count, cell in enumerate(cells, start=1):
            cell["execution_count"] = count
            cell["outputs"] = outputs("".join(cell["source"]), count, namespace, folder)
        os.chdir(FILE.parent)
    FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf8")


if __name__ == "__main__":
    sys.path.insert(0, str(FILE.parents[1]))
    import matplotlib

    matplotlib.use("agg")
    main()
