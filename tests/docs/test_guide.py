"""What the guide tells is so: files of studies, tables, the recipe's frame, the table of methods."""

import re

import pytest
import torch
import yaml
from hooks import hook
from pages import PAGES, code_blocks
from paths import ROOT

import rayfed_kd
from rayfed_kd.comparison.studies import Quick, Study, StudyRun, StudyTable
from rayfed_kd.comparison.study_changes import quick_version, split_into_tables
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.data import SOURCES
from rayfed_kd.data.partition import SCHEMES
from rayfed_kd.models import CLASSIFIERS, GENERATORS
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.tuning.space import parse_space

SHORT = ["data.fraction=0.2", "rounds=1", "local.epochs=1"]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_the_study_file_is_planned_in_the_order_that_is_told(tmp_path):
    page = PAGES["guide/comparing.md"]
    shown = next(block for block in code_blocks(page, "yaml") if block.startswith("title:"))
    file = tmp_path / "mine.yaml"
    file.write_text(shown)
    (claims,) = (block for block in code_blocks(page, "yaml") if block.startswith("claims:"))
    Study.model_validate({**yaml.safe_load(shown), **yaml.safe_load(claims)})
    small = select_studies([str(file)], quick=True)
    assert [study.folder for study in small] == ["runs/two-methods-quick/alpha-0.1"]
    assert "5 rounds" in small[0].title
    told = re.findall(r"^\d\. (.+)[,.]$", page, re.MULTILINE)
    assert told == [
        "the study's overrides",
        "`quick`'s",
        "the table's",
        "the row's own",
        "`quick`'s for that row",
        "the table's for that row",
        "the command line's",
        "what the row's [search](tuning.md#judging-on-other-seeds) found",
    ]
    words = ("study", "quick", "table", "row", "quick row", "table row")
    named = {word: [f"{word}=1"] for word in words}
    study = Study(
        folder="f",
        base=str(ROOT / "configs/quickstart.yaml"),
        overrides=named["study"],
        runs=[StudyRun(label="a", overrides=named["row"])],
        tables={"t": StudyTable(overrides=named["table"], runs={"a": named["table row"]})},
        quick=Quick(title="q", overrides=named["quick"], runs={"a": named["quick row"]}),
    )
    (one,) = split_into_tables(quick_version(study))
    order = [*one.overrides, *one.runs[0].overrides]
    assert order == [change for word in words for change in named[word]]


def test_tables_and_models_are_read_as_it_is_told(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    rayfed_kd.run(ROOT / "configs/quickstart.yaml", [*SHORT, f"results.folder={folder}"], local=True)
    monkeypatch.chdir(tmp_path)
    model = rayfed_kd.read_table(folder, "metrics")["model"].to_pylist()[0]
    rayfed_kd.export(folder, model, "model")
    names = {"images": torch.zeros(3, 1, 8, 8, dtype=torch.uint8)}
    for page in ("guide/results-folder.md", "getting-started.md"):
        for shown in code_blocks(PAGES[page], "python"):
            exec(shown.replace("runs/NAME", str(folder)), names)
    assert names["messages"].num_rows and names["clients"].num_rows and names["metrics"].num_rows
    assert len(names["predicted"]) == 3


def test_every_file_of_a_run_folder_is_told(tmp_path):
    folder = tmp_path / "run"
    changes = [*SHORT, f"results.folder={folder}", "clock.name=lognormal"]
    rayfed_kd.run(ROOT / "configs/quickstart.yaml", changes, local=True)
    told = set(re.findall(r"^\| `([\w.]+)/?` \|", PAGES["guide/results-folder.md"], re.MULTILINE))
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} <= told


def test_python_of_the_reference_runs(tmp_path, monkeypatch):
    (shown,) = code_blocks(PAGES["reference/functions.md"], "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    assert '["rounds=3"])' in shown
    exec(shown.replace('["rounds=3"])', f"{SHORT}, local=True)"), {})


def test_the_space_that_is_told_is_one():
    space, study = map(yaml.safe_load, code_blocks(PAGES["guide/tuning.md"], "yaml"))
    assert parse_space(space, "tuning.md")
    assert Study.model_validate(study).search.samples == 6


def test_the_frame_of_a_recipe_is_whole_and_loads():
    shown = next(block for block in code_blocks(PAGES["guide/recipe.md"], "yaml") if "method:" in block)
    assert set(yaml.safe_load(shown)) == set(Recipe.model_fields)
    load_recipe(yaml.safe_load(shown))


def test_every_registered_thing_is_documented():
    for name in (*SOURCES, *SCHEMES, *CLASSIFIERS, *GENERATORS):
        assert f"`{name}`" in PAGES["guide/recipe.md"], name


def test_tables_of_methods_say_what_the_methods_say():
    page = PAGES["methods.md"]
    assert hook("methods").with_list(page) == page, "`make derived` writes them anew"


MADE_WITH_THE_SITE = [ROOT / f"docs/reference/{name}.md" for name in ("recipe", "protocol")]  # their headings


@pytest.mark.parametrize("name", ["../README.md", "../AGENTS.md", *PAGES])
def test_links_lead_to_files_and_headings_that_exist(name):
    """The same links as the site's, for those who read the files without it."""
    here = ROOT / "docs" / name
    for link in LINK.findall(here.read_text(encoding="utf8")):
        if link.startswith("https:"):
            continue
        path, _, heading = link.partition("#")
        target = (here.parent / path) if path else here
        assert target.exists(), link
        if heading and target.resolve() not in MADE_WITH_THE_SITE:
            text = target.read_text(encoding="utf8")
            headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings]
            assert heading in anchors, link


TABLES = ("measured/tables.md", "measured/performance.md")
GUIDE = [name for name in PAGES if name not in TABLES and "methods/" not in name]


@pytest.mark.parametrize("name", GUIDE)
def test_lines_are_short_enough_to_read(name):
    """100 characters; tables, code and pictures apart."""
    text = re.sub(r"^```.*?^```$", "", PAGES[name], flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    ", "!["))]
    assert [line for line in lines if len(line) > 100] == []


def test_page_of_the_examples_includes_every_script():
    """The marker as pymdownx.snippets takes it: a formatter of Python had put spaces into it."""
    included = re.findall(r'^--8<-- "examples/(.+\.py)"$', PAGES["extend/examples.md"], re.MULTILINE)
    assert sorted(included) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    assert not [name for name, page in PAGES.items() if re.search(r"^--\s*8\s*<\s+--", page, re.MULTILINE)]
