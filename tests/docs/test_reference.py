"""The recipe reference has every key and option, each with a meaning and an example that a recipe takes."""

import re
from copy import deepcopy
from inspect import ismodule

import pytest
import yaml
from hooks import hook
from pages import PAGES, code_blocks
from paths import ROOT

import rayfed_kd
from rayfed_kd import protocol
from rayfed_kd.algorithms import METHODS
from rayfed_kd.comparison import studies
from rayfed_kd.data import SOURCES
from rayfed_kd.data.partition import SCHEMES
from rayfed_kd.features.codecs.loading import CODECS
from rayfed_kd.models import CLASSIFIERS, GENERATORS
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.recipe.timing import CLOCKS, SCHEDULES
from rayfed_kd.results.trackers.tracking import TRACKERS
from rayfed_kd.setting.blueprint import make_method, read_names
from rayfed_kd.setting.metrics import METRICS
from rayfed_kd.timing.staleness import STALENESS_RULES

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
QUICKSTART = ROOT / "configs/quickstart.yaml"
CLOCK = "clock.name=lognormal"
DEFAULTS = yaml.safe_load((ROOT / "tests/configs/defaults.yaml").read_text())


reference = hook("reference")
EXAMPLES = reference.EXAMPLES
WRITTEN = reference.written(PAGES["reference/recipe.md"])


def part(name):
    """The cells of the option, and of its meaning, of every row in a part of the reference."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", reference.PARTS[name](), re.MULTILINE)
    return [(option, [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)]) for option, rest in rows]


def test_every_part_is_on_the_page():
    assert set(re.findall(r"<!-- generated: (\w+) -->", PAGES["reference/recipe.md"])) == set(reference.PARTS)
    assert "<!-- generated" not in WRITTEN


def test_every_key_of_the_frame_has_its_row():
    listed = {option for option, _ in part("keys")}
    listed |= set(re.findall(r"^### (\w+)$", reference.PARTS["keys"](), re.MULTILINE))
    assert listed == {row.option for row in reference.recipe_rows()}


@pytest.mark.parametrize("name", reference.PARTS)
def test_every_row_says_what_the_key_means(name):
    rows = part(name)
    assert rows
    assert [option for option, cells in rows if not cells[2]] == []


@pytest.mark.parametrize("name", sorted({*DEFAULTS} - {"codecs"}))
def test_every_registered_thing_has_its_options(name):
    """`tests/configs/test_defaults.py` holds the file to the code."""
    sections = dict(
        re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", reference.PARTS[name](), re.DOTALL | re.MULTILINE)
    )
    assert set(sections) == set(DEFAULTS[name])
    for thing, options in DEFAULTS[name].items():
        listed = set(re.findall(r"^\| `([^`]+)` \|", sections[thing], re.MULTILINE))
        assert listed == set(options), thing
        assert "Example" in sections[thing]


REGISTERED = {
    "method": METHODS,
    "model": CLASSIFIERS,
    "generator": GENERATORS,
    "data": SOURCES,
    "partition": SCHEMES,
    "metric": METRICS,
    "schedule": SCHEDULES,
    "staleness": STALENESS_RULES,
    "clock": CLOCKS,
    "codec": CODECS,
    "tracker": TRACKERS,
}


def test_examples_are_of_things_that_exist():
    assert set(EXAMPLES["keys"]) == {
        row.option for row in reference.recipe_rows() if not row.option.endswith(".*")
    }
    assert set(EXAMPLES) == {"keys", *REGISTERED} - {"method"}
    for kind, registered in REGISTERED.items():
        assert set(EXAMPLES.get(kind, ())) <= set(registered)


def taken(word, *words):
    """The quickstart's recipe with an example, after all checks that need no data."""
    recipe = load_recipe(QUICKSTART, [*words, word])
    read_names(recipe)
    return recipe


@pytest.fixture
def own_codec(tmp_path, monkeypatch):
    """The codec that the examples name is that of its page."""
    (shown,) = code_blocks(PAGES["extend/codec.md"], "python")
    (tmp_path / "my_half.py").write_text(shown)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_codec")
@pytest.mark.parametrize("key", EXAMPLES["keys"])
def test_example_of_a_key_is_taken_and_changes_the_recipe(key):
    word, words = EXAMPLES["keys"][key], [CLOCK] if key.startswith(("schedule", "stop.sim")) else []
    path = word.partition("=")[0]
    assert path == key or key.startswith(f"{path}."), "the example is of another key"
    assert key.split(".")[-1] in word
    assert taken(word, *words) != load_recipe(QUICKSTART, words)


NAMES = {  # kind -> the names that a recipe has of it
    "metric": lambda recipe: [one.name for one in recipe.evaluation.metrics],
    "staleness": lambda recipe: [recipe.schedule.options["staleness"]["name"]],
    "codec": lambda recipe: [one.name for chain in recipe.codec.chains.values() for one in chain],
}


@pytest.mark.parametrize("kind", [*NAMES, "model", "data", "partition", "method", "schedule", "clock"])
def test_examples_of_things_are_taken(kind):
    for name in REGISTERED[kind]:
        recipe = taken(reference.example_of(kind, name), *[CLOCK] * (kind in ("schedule", "staleness")))
        assert name in (NAMES[kind](recipe) if kind in NAMES else [getattr(recipe, kind).name])


def test_example_of_the_page_on_codecs_is_taken_and_its_table_is_of_all():
    (shown,) = code_blocks(PAGES["guide/codecs.md"], "yaml")
    codec = yaml.safe_load(shown)["codec"]
    read_names(load_recipe({**yaml.safe_load(QUICKSTART.read_text()), "codec": codec}))
    rows = re.findall(r"^\| `(\w+)`", PAGES["guide/codecs.md"], re.MULTILINE)
    assert set(rows) == set(CODECS)


def test_examples_of_generators_are_options_of_their_methods():
    for name, word in EXAMPLES["generator"].items():
        named = taken(word).method
        assert make_method(METHODS[named.name], named).options.generator.name == name


def test_a_formula_with_an_unknown_command_is_refused():
    formulas = hook("formulas")
    assert formulas.mathml(r"\hat{w}_k").startswith("<math")
    with pytest.raises(ValueError, match="nosuchcommand"):
        formulas.mathml(r"\nosuchcommand{w}")


def test_pages_of_the_site_are_those_of_the_folder():
    site = hook("methods").on_config(deepcopy(SITE))
    listed = re.findall(r": ([\w/-]+\.md)$", yaml.safe_dump(site["nav"]), re.MULTILINE)
    assert sorted(listed) == sorted(PAGES)
    places = re.findall(r"^- \[.*?\]\((.+?)\.html\): .", hook("llms").text(site), re.MULTILINE)
    assert {f"{place}.md" for place in places} == set(PAGES) - {"changelog.md"}
    assert SITE["theme"]["font"] is False  # nothing is fetched


def test_every_name_of_the_protocol_has_its_place_on_the_page():
    api = hook("api")
    listed = [name for names in api.names_by_module().values() for name in names]
    public = {name for name, thing in vars(protocol).items() if name[0] != "_" and not ismodule(thing)}
    assert sorted(listed) == sorted(public)
    assert api.MARK in PAGES[api.PAGE]
    sections = api.sections() + "\n"
    assert all(f"::: rayfed_kd.protocol.{name}\n" in sections for name in listed)


def directives(page):
    """The objects that a page's `:::` lines name."""
    return re.findall(r"^::: ([\w.]+)$", PAGES[page], re.MULTILINE)


@pytest.mark.parametrize("page", ["reference/functions.md", "reference/parts.md"])
def test_every_name_on_a_page_exists_and_says_what_it_is(page):
    for location in directives(page):
        module, _, name = location.rpartition(".")
        assert load_object(f"{module}:{name}", page).__doc__, location


def test_every_name_of_the_package_is_on_the_page_of_functions():
    listed = directives("reference/functions.md")
    for name in rayfed_kd.__all__:
        assert f"{getattr(rayfed_kd, name).__module__}.{name}" in listed, name


@pytest.mark.parametrize(
    ("tutorial", "links"),
    [
        ("method", ["protocol.md#contexts", "toolbox.md", "parts.md"]),
        ("data", ["parts.md#data"]),
        ("partition", ["parts.md#partitions"]),
        ("model", ["parts.md#models"]),
    ],
)
def test_tutorials_lead_to_all_that_an_author_may_call(tutorial, links):
    for link in links:
        assert f"](../reference/{link})" in PAGES[f"extend/{tutorial}.md"]
        page, _, heading = link.partition("#")
        if page == "parts.md" and heading:
            assert f"\n## {heading.capitalize()}\n" in PAGES[f"reference/{page}"]


def test_all_that_an_author_may_call_stands_under_one_heading():
    (reference,) = (part["Reference"] for part in SITE["nav"] if "Reference" in part)
    (author,) = (part["What an author may call"] for part in reference if "What an author may call" in part)
    pages = [page for entry in author for page in entry.values()]
    assert pages == ["reference/protocol.md", "reference/toolbox.md", "reference/parts.md"]
    assert "\n## Contexts\n" in hook("api").sections()
    named = {"Source", "RawDataset", "Split", "Dataset", "Pool", "Classifier", "Generator", "check_method"}
    assert named <= {location.rpartition(".")[2] for location in directives("reference/parts.md")}


def test_study_page_has_the_schemas_example_which_has_every_key():
    (example,) = re.findall(r"```yaml\n(.*)```", PAGES["reference/study.md"], re.DOTALL)
    assert example.strip() in studies.__doc__
    study = yaml.safe_load(example)
    assert set(studies.Study.model_fields) == set(study)
    studies.Study.model_validate(study)
