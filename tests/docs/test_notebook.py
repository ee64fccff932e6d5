"""The notebook in examples/ runs from top to bottom, and each cell shows what a notebook can show."""

import json
import re

import pytest
from hooks import hook
from pages import PAGES, code_blocks
from paths import ROOT

NOTEBOOK = json.loads((ROOT / "examples/notebook.ipynb").read_text(encoding="utf8"))
SHOWN = ["image/png", "text/html", "image/png", "text/plain", "text/markdown", "image/png", "text/plain"]
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_notebook_is_listed_and_holds_what_its_cells_show():
    listed = (ROOT / "examples/README.md").read_text()
    for text in (PAGES["extend/examples.md"], PAGES["guide/python.md"], listed):
        assert "notebook.ipynb" in text
    assert (NOTEBOOK["nbformat"], len(CODE)) == (4, 8)
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    shown = [[kind for output in cell["outputs"] for kind in output["data"]] for cell in cells]
    assert [kinds[0] for kinds in shown[1:]] == SHOWN
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])


@pytest.mark.slow
@pytest.mark.pictures
def test_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    nothing, partition, result, curves, sent, comparison, bands, accuracy = (
        hook("notebook").run_cell(source, namespace) for source in CODE
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
