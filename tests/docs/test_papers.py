"""The paper index is made of what docstrings cite, and no method, nor any number of arXiv's, is missing."""

import re

import pytest
from hooks import hook
from paths import ROOT

from rayfed_kd.algorithms import METHODS

papers = hook("papers")


def made(monkeypatch, *texts):
    found = [(f"rayfed_kd/toolbox/file{n}.py", "thing", text) for n, text in enumerate(texts)]
    monkeypatch.setattr(papers, "docstrings", lambda: iter(found))
    return papers.papers()


def test_every_method_and_every_number_of_the_sources_is_in_the_index():
    index = papers.index()
    modules = (place.partition(":")[0].removeprefix("rayfed_kd.") for place in METHODS.values())
    files = {f"{module.replace('.', '/')}.py" for module in modules}
    assert sorted(file for file in files if f"`{file}`" not in index) == []
    sources = [path.read_text("utf8") for top in papers.TOPS for path in (ROOT / top).rglob("*.py")]
    numbers = {number for source in sources for number in re.findall(r"arXiv\s+(\d{4}\.\d{5})", source)}
    assert sorted(numbers - set(re.findall(r"arXiv (\d{4}\.\d{5})", index))) == []
    assert "<!-- papers -->" in (ROOT / "docs/papers.md").read_text("utf8")


def test_a_paper_that_is_cited_twice_has_one_line_with_its_longest_names_and_title(monkeypatch):
    (paper,) = made(
        monkeypatch,
        "A loss. Roe et al. 2020, arXiv 2001.00001, eq. 2.",
        'Another: Roe, Poe 2020, "On Losses: a Study", ICML, arXiv 2001.00001, Algorithm 1.',
        "As Roe et al. 2020 have it.",
    )
    assert (paper.authors, paper.year, paper.title) == ("Roe, Poe", "2020", "On Losses: a Study")
    assert [*paper.files] == [f"rayfed_kd/toolbox/file{n}.py" for n in range(3)]


def test_a_number_without_authors_and_a_citation_of_two_papers_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"who wrote arXiv 2001\.00001"):
        made(monkeypatch, "As in arXiv 2001.00001.")
    two = "Roe 2020, arXiv 2001.00001.", "Roe 2020, arXiv 2001.00002."
    with pytest.raises(ValueError, match="fits several papers"):
        made(monkeypatch, *two, "After Roe 2020.")
