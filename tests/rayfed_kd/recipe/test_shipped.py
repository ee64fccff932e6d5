"""Recipes, studies and search spaces that come with the package are known by name, in any folder."""

import pytest
from click.testing import CliRunner
from paths import ROOT

from rayfed_kd.cli.main import commands
from rayfed_kd.comparison.studies import read_study
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.shipped import find_file, last_part, purpose, shipped_files
from rayfed_kd.tuning.space import read_space

FILES = shipped_files("recipe", "study", "space")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder that has no recipes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_file_of_configs_has_a_name():
    in_the_tree = {path.resolve() for path in ROOT.glob("configs/**/*.yaml")}
    assert {path.resolve() for path in FILES.values()} == in_the_tree
    assert set(FILES) == {str(path.relative_to(ROOT / "configs"))[:-5] for path in in_the_tree}


def test_a_recipe_is_loaded_by_its_name_as_by_its_path():
    by_name, by_path = load_recipe("quickstart"), load_recipe(ROOT / "configs/quickstart.yaml")
    assert (by_name, by_name.header) == (by_path, by_path.header)
    assert by_name.header.startswith("# FedKF on the embedded digits")


def test_header_does_not_go_with_another_method():
    """It names the file's own method and its paper's table."""
    assert load_recipe("quickstart", ["method={name: fedavg}"]).header == ""
    same = load_recipe("quickstart", ["method.gamma=0.5", "rounds=3"])
    assert same.header == load_recipe("quickstart").header != ""


@pytest.mark.parametrize(
    ("name", "kinds", "file"),
    [
        ("fedkf/mnist", ["recipe"], "fedkf/mnist"),
        ("fedper", ["recipe"], "baselines/fedper"),
        ("compare/attacks", ["study"], "compare/attacks"),
        ("attacks", ["study", "recipe"], "compare/attacks"),
        ("quickstart", ["study", "recipe"], "quickstart"),
        ("quickstart", ["space"], "tune/quickstart"),
    ],
)
def test_the_folder_may_be_left_out_where_one_file_of_the_kind_has_the_name(name, kinds, file):
    assert find_file(name, *kinds).resolve() == ROOT / f"configs/{file}.yaml"


def test_a_file_on_disk_wins_over_a_name(elsewhere):
    (elsewhere / "quickstart").write_text("method: {name: fedavg}\n")
    assert load_recipe("quickstart").method.name == "fedavg"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quikstart", "quikstart: no such recipe file. Did you mean quickstart?"),
        ("fedkf/mnst", "fedkf/mnst: no such recipe file. Did you mean fedkf/mnist?"),
        ("fedpr", "fedpr: no such recipe file. Did you mean fedper?"),
        ("configs/kdia/mnist.yaml", "configs/kdia/mnist.yaml: no such recipe file. Did you mean kdia/mnist?"),
        (
            "a/name/of/none",
            "a/name/of/none: no such recipe file; `rayfed-kd recipes` lists those that come with the package",
        ),
    ],
)
def test_a_wrong_name_suggests_the_nearest(name, message):
    with pytest.raises(RecipeError) as error:
        load_recipe(name)
    assert str(error.value) == message


def test_a_name_that_several_have_lists_them():
    with pytest.raises(RecipeError, match=r"several have this name: .*fedkf/cifar10, kdia/cifar10"):
        load_recipe("cifar10")


def test_studies_by_name_find_their_recipes():
    for name in shipped_files("study"):
        study = read_study(last_part(name))
        bases = {study.base, *(run.base for run in study.runs), *(t.base for t in study.tables.values())} - {
            None
        }
        assert bases
        for base in bases:
            assert find_file(base, "recipe").resolve().is_relative_to(ROOT / "configs")


def test_a_wrong_study_suggests_the_nearest_of_studies_and_recipes():
    with pytest.raises(RecipeError, match=r"no such study or recipe file. Did you mean kdia_cifar10\?"):
        select_studies(["kdia_cfar10"])


def test_a_space_is_read_by_its_name():
    assert set(read_space("fedkf").distributions) == {"method.gamma", "method.lambda1", "method.lambda2"}


def test_recipes_lists_every_name_with_a_line_that_says_what_it_is():
    shown = CliRunner().invoke(commands, ["recipes"]).output.splitlines()
    names = [line.split()[0] for line in shown if line.startswith("  ")]
    assert names == [*shipped_files("recipe"), *map(last_part, shipped_files("study", "space"))]
    (line,) = [line for line in shown if line.startswith("  fedkf/mnist ")]
    words = "MNIST (10 % of the images) with the settings of Zhou et al. 2023, Table V"
    assert line.split()[1:3] == ["fedkf", "mnist"]
    assert words in line


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_it_is_for(name):
    assert 20 < len(purpose(FILES[name])) <= 110
