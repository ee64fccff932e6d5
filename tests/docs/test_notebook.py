"""The notebook in examples/ runs from top to bottom, and each cell shows something that a notebook can show.

Its code cells are run here in one namespace: nbclient and ipykernel, which Jupyter runs cells with, would be
packages for this one test, and start a kernel process.
"""

import ast
import json
import re

import pytest
from pages import PAGES, code_blocks
from paths import ROOT

NOTEBOOK = json.loads((ROOT / "examples/notebook.ipynb").read_text(encoding="utf8"))
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def run_cell(source, namespace):
    """What the last line of a cell gives; None if it is no expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


def test_notebook_is_listed_and_holds_no_output():
    """Outputs are of one machine, and get old."""
    listed = (ROOT / "examples/README.md").read_text()
    for text in (PAGES["extend/examples.md"], PAGES["guide/python.md"], listed):
        assert "notebook.ipynb" in text
    assert (NOTEBOOK["nbformat"], len(CODE)) == (4, 8)
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])


@pytest.mark.slow
@pytest.mark.pictures
def test_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    nothing, partition, result, curves, sent, comparison, bands, accuracy = (
        run_cell(source, namespace) for source in CODE
    )
    assert nothing is None
    assert "8 rounds, finished" in result._repr_html_()
    for figure in (partition, curves, bands):
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert {row["kind"] for row in sent} == {"weights", "metadata"}
    assert "| FedProx (global) |" in comparison._repr_markdown_()
    count, share = re.fullmatch(r"(\d+) images, accuracy (0\.\d+)", accuracy).groups()
    assert int(count) == 1797
    assert float(share) > 0.5  # a tenth is chance


@pytest.mark.slow
def test_page_on_python_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in code_blocks(PAGES["guide/python.md"], "python"):
        exec(block, namespace)
    assert "3 rounds, finished" in capsys.readouterr().out
    assert not namespace["model"].training
