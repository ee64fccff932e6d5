"""The pages of docs/methods/ are held to the code: sections, functions, files, bytes, numbers, markup."""

import importlib
import re
import shlex
from functools import cache, reduce

import pytest
from hooks import hook
from markdown_it import MarkdownIt
from matplotlib.mathtext import MathTextParser
from paths import ROOT
from runs import run_in_process

from rayfed_kd.algorithms import METHODS
from rayfed_kd.cli.listing import by_default, option_rows
from rayfed_kd.comparison.planning import plan_runs
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.recipe.shipped import shipped_files

methods = hook("methods")
PAGES = {path.stem: path.read_text(encoding="utf8") for path in sorted(ROOT.glob("docs/methods/*.md"))}
RESULTS = "\n".join((ROOT / "docs" / page).read_text(encoding="utf8") for page in methods.MEASURED)
INLINE = re.compile(r"(?<!\$)\$([^$\n]+)\$(?!\$)")
MATH_BLOCK = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHORT = [
    "partition={name: iid, clients: 4, test: local}",
    "sampling={count: 1}",
    "rounds=1",
    "local.epochs=1",  # who trains less sends as many bytes
    "evaluation={every: 1, samples: false}",
]
TRAFFIC = {
    "fedkf": (["configs/fedkf/mnist.yaml"], {("down", "weights"): 493_648, ("up", "weights"): 246_824}),
    "kdia": (
        ["configs/kdia/cifar10.yaml", "method.generator.epochs=1", "method.generator.batches=1"],
        {("down", "weights"): 741_008, ("down", "generator"): 3_570_064, ("up", "weights"): 370_504},
    ),
    "dafkd": (
        ["configs/dafkd/mnist.yaml", "method.distill_batches=1"],
        {
            ("down", "weights"): 518_504,
            ("down", "generator"): 2_297_868,
            ("up", "weights"): 518_504,
            ("up", "generator"): 2_297_868,
            ("up", "discriminator"): 1_028,
        },
    ),
}

PAPERS = ("fedkf", "kdia", "fedgems", "dafkd", "fedd2s")
SECTIONS = {  # heading -> what is generated below it
    "The algorithm": None,
    "Equations": None,
    "Readings": None,
    "What travels": "travels",
    "Options": "options",
    "Recipes": "recipes",
    "Published": "published",
    "Measured against published": "measured",
}

pages = pytest.mark.parametrize("name", PAGES)


def section(name, heading):
    return PAGES[name].split(f"\n## {heading}\n")[1].split("\n## ")[0]


def part(name, part):
    """What the site has in the place of a mark."""
    return methods.PARTS[part](name, methods.parted(PAGES[name])[0])


@cache
def methods_by_recipe():
    return {recipe: load_recipe(recipe).method.name for recipe in shipped_files("recipe")}


def command_lines(name):
    return re.findall(r"^(?: {4}|- `)(rayfed-kd [^`\n]+)", part(name, "recipes"), re.MULTILINE)


def table_rows(text):
    """Cells of all rows of Markdown tables but the rules."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if not set("".join(row)) <= set(" :-")]


def anchor(heading):
    """GitHub's: lower case, punctuation out, blanks to hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def messages(path, *overrides):
    """The bytes of a run of a recipe on made-up images of its shape."""
    shape = [1, 28, 28] if "mnist" in path else [3, 32, 32]
    data = f"data={{name: synthetic, samples: 50, classes: 10, shape: {shape}}}"
    return run_in_process(ROOT / path, data, *SHORT, *overrides).rows["messages"]


def test_each_method_has_its_page():
    assert set(PAGES) == set(METHODS)


@pages
def test_page_has_the_sections_of_all_pages_with_what_is_generated_in_them(name):
    assert re.findall(r"^## (.+)$", PAGES[name], re.MULTILINE) == list(SECTIONS)
    for heading, part in SECTIONS.items():
        assert re.findall(r"<!-- generated: (\w+) -->", section(name, heading)) == [*filter(None, [part])]
    assert set(filter(None, SECTIONS.values())) == set(methods.PARTS)


@pages
def test_page_lists_every_option_with_its_default(name):
    model = load_object(METHODS[name], "").options_model()
    expected = {row.option: row.default for row in option_rows(model)}
    listed = {row[0].strip("`"): row[1].strip("`") for row in table_rows(part(name, "options"))[1:]}
    assert listed == expected


@pages
def test_page_lists_what_travels(name):
    method = by_default(load_object(METHODS[name], ""))
    listed = {(row[0], row[1].strip("`")) for row in table_rows(part(name, "travels"))[1:]}
    assert listed == {*(("down", key) for key in method.down), *(("up", key) for key in method.up)}


@pages
def test_commands_on_the_page_are_those_of_the_method(name):
    """A recipe of the method, and rows of studies that are of the method."""
    commands = [shlex.split(line)[1:] for line in command_lines(name)]
    assert commands
    for kind, source, *words in commands:
        if kind == "run":
            assert load_recipe(source, words).method.name == name
        else:
            (table, *_) = select_studies([source], only=words[1::2])
            assert {load_recipe(run.source, run.overrides).method.name for run in plan_runs(table)} == {name}


@pages
def test_published_numbers_on_the_page_are_those_of_the_papers(name):
    meta, _ = methods.parted(PAGES[name])
    shown = "\n".join(" ".join(row) for row in table_rows(part(name, "published")))
    if "published" in meta:  # the five papers' tables lack the method, and its page says whose have it
        assert meta["published"] in shown + part(name, "published")
        assert not meta["systems"]
        return
    assert meta["systems"]
    found = dict.fromkeys(meta["systems"], 0)
    for paper, ids in meta.get("tables", methods.MAIN_TABLES).items():
        tables = methods.paper_tables(paper)["tables"]
        for row in (row for table in tables if table["id"] in ids for row in table["rows"]):
            if row.get("method") in found:
                found[row.get("method")] += 1
                assert row["mean"] is None or f"{row['mean']:g}" in shown
    assert any(found.values())


@pages
def test_measured_rows_on_the_page_are_those_of_the_results(name):
    meta, _ = methods.parted(PAGES[name])
    rows = [line for line in part(name, "measured").splitlines() if line.startswith("| ")]
    assert [row for row in rows if row not in RESULTS] == []
    results = [row[0] for row in table_rows(RESULTS)]
    systems = meta.get("rows", meta["systems"])
    assert bool(rows) == any(
        result == system or result.startswith(f"{system} (") for result in results for system in systems
    )


def test_a_curve_is_shown_where_there_is_a_picture(tmp_path, monkeypatch):
    assert "![" not in part("dense", "measured")
    (tmp_path / "docs/images/methods").mkdir(parents=True)
    (tmp_path / "docs/images/methods/fedprox.png").touch()
    for page in methods.MEASURED:
        (tmp_path / "docs" / page).parent.mkdir(exist_ok=True)
        (tmp_path / "docs" / page).write_text("# No table\n")
    monkeypatch.setattr(methods, "ROOT", tmp_path)
    assert part("fedprox", "measured").startswith(
        "![Accuracy of fedprox by round](../images/methods/fedprox.png)"
    )


@pages
def test_every_function_named_on_a_page_exists(name):
    named = set(re.findall(r"`([\w/]+)\.py:([\w.]+)`", PAGES[name]))
    assert len(named) > (5 if name in PAPERS else 0)
    for path, function in named:
        module = importlib.import_module(path.replace("/", "."))
        assert callable(reduce(getattr, function.split("."), module)), f"{path}.py:{function}"


@pages
def test_every_file_named_on_a_page_exists(name):
    named = set(re.findall(r"[`( ]((?:algorithms|rayfed_kd|configs|tests)/[\w/]+\.(?:py|yaml))", PAGES[name]))
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []


@pages
def test_every_recipe_of_the_method_is_on_its_page(name):
    recipes = {recipe for recipe, method in methods_by_recipe().items() if method == name}
    assert recipes <= {line.split()[2] for line in command_lines(name)}


@pages
def test_links_lead_to_files_and_headings_that_exist(name):
    _, markdown = methods.parted(PAGES[name])
    for link in re.findall(r"\]\(([^)]+)\)", methods.written(name, markdown, methods.parted(PAGES[name])[0])):
        path, _, heading = link.partition("#")
        target = ROOT / "docs/methods" / path
        assert target.is_file(), link
        if not heading:  # a picture, or a whole page
            continue
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf8"), re.MULTILINE)
        assert heading in map(anchor, headings), link


def test_headings_of_the_results_are_told_apart():
    """GitHub numbers the anchors of equal ones, and a link leads to the first."""
    headings = re.findall(r"^#+ (.+)$", RESULTS, re.MULTILINE)
    assert len(set(map(anchor, headings))) == len(headings)


@pages
def test_every_measured_number_stands_in_the_results(name):
    """Nothing is measured here alone: what a page shows was copied from a page with its command."""
    shown = re.findall(r"\d+\.\d\d", section(name, "Measured against published"))
    assert [number for number in shown if number not in RESULTS] == []


@pages
def test_page_is_short_enough_to_lie_beside_the_paper(name):
    assert 40 <= len(PAGES[name].splitlines()) <= (140 if name in PAPERS else 90)


@pages
def test_formulas_survive_markdown(name):
    """What a plain Markdown reader would change (emphasis, escapes, table bars) GitHub may change as well."""
    kept = []
    for token in MarkdownIt("commonmark").enable("table").parse(PAGES[name]):
        kept += [child.content for child in token.children or () if child.type == "text"]
    formulas = INLINE.findall(re.sub(r"`[^`\n]*`", "", MATH_BLOCK.sub("", PAGES[name])))
    assert formulas
    for formula in formulas:
        assert any(f"${formula}$" in text for text in kept), formula
        assert formula == formula.strip(), f"{formula!r}: no blanks inside the dollars"
        assert not re.search(r"\\[^A-Za-z]", formula), f"{formula}: an escape that Markdown takes"
    assert PAGES[name].replace("$$", "").count("$") == 2 * len(formulas)


@pages
def test_formulas_are_tex(name):
    """matplotlib reads a subset of what GitHub does, and raises ValueError at anything else."""
    inline = INLINE.findall(re.sub(r"`[^`\n]*`", "", MATH_BLOCK.sub("", PAGES[name])))
    for formula in [*inline, *MATH_BLOCK.findall(PAGES[name])]:
        MathTextParser("path").parse(f"${' '.join(formula.split())}$")


@pages
def test_rows_of_a_table_have_as_many_cells(name):
    """GitHub drops what is too much without a word."""
    for table in re.findall(r"(?:^\|.*\n)+", PAGES[name], re.MULTILINE):
        assert len({len(line.split("|")) for line in table.splitlines()}) == 1, table


@pages
def test_dollars_stand_where_github_sees_a_formula(name):
    """It opens after a blank or a bracket, and closes before a blank or punctuation."""
    text = re.sub(r"`[^`\n]*`", "", MATH_BLOCK.sub("", PAGES[name]))
    for found in INLINE.finditer(text):
        before, after = text[found.start() - 1], text[found.end()]
        assert before in " \n(*", f"{before}{found[0]}"
        assert after in " \n).,:;*-", f"{found[0]}{after}"


@pytest.mark.parametrize("name", TRAFFIC)
def test_bytes_on_the_page_are_those_that_a_round_counts(name):
    words, expected = TRAFFIC[name]
    counted = {
        (row["direction"], row["kind"]): row["bytes"] for row in messages(*words) if row["kind"] != "metadata"
    }
    assert counted == expected
    text = section(name, "What travels")
    assert [number for number in expected.values() if f"{number:,}" not in text] == []


def test_bytes_of_dafkds_second_exchange_are_those_that_a_round_counts():
    """Of one batch of 32 images; the page has forty of them."""
    rows = messages("configs/dafkd/mnist.yaml", "method.distill_batches=1", "method.protocol=local")
    counted = {(row["direction"], row["kind"]): row["bytes"] for row in rows}
    assert ("up", "discriminator") not in counted
    assert counted["down", "generator"] == 2 * 2_297_868
    assert (40 * counted["up", "scalars"], 40 * counted["up", "logits"]) == (5_120, 51_200)
    assert "5,120 and 51,200 bytes for 1,280 of them" in section("dafkd", "What travels").replace("\n", " ")


def test_bytes_of_fedd2s_per_sample_are_those_that_a_round_counts():
    """With Z0 = 1 the four rounds of one client have l = 6, 5, 4, 3: the columns of the page's table."""
    alone = ["partition={name: iid, clients: 1, test: local}", "rounds=4", "method.z0=1"]
    rows = messages("configs/fedd2s/cifar10.yaml", *alone)
    printed = [row[1:] for row in table_rows(section("fedd2s", "What travels"))[1:]]
    for place in range(4):
        first, deep, labels, knowledge, head = (int(row[place].replace(",", "")) for row in printed)
        counted = {(r["direction"], r["kind"]): r["bytes"] for r in rows if r["round"] == place + 1}
        samples = counted["up", "labels"] // labels
        assert counted["up", "labels"] == 8 * samples > 0
        assert counted["up", "features"] == samples * (first + deep)
        assert counted["down", "logits"] == samples * knowledge
        assert counted.get(("down", "weights"), 0) == head
