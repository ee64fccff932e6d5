"""Study files and what a command line makes of them: tables, rows, seeds, the quick version."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from known_comparison import KDIA, compared, write_yaml
from small_recipes import THREE_CLIENTS

from rayfed_kd.comparison.checking import check_study
from rayfed_kd.comparison.planning import plan_runs
from rayfed_kd.comparison.studies import Study, check_names, read_study
from rayfed_kd.comparison.study_changes import change_study
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.errors import RecipeError, in_words


def test_study_of_several_tables_is_one_study_each(tables, tmp_path):
    first, second = select_studies([str(tables)])
    assert (first.title, second.title) == ("T; lr .1", "T; lr .2")
    assert [study.folder for study in (first, second)] == [str(tmp_path / f"runs/lr-.{i}") for i in (1, 2)]
    assert second.published[0].where == {"dataset": "CIFAR-10", "beta": 0.5}
    assert [one.overrides for one in plan_runs(second) if one.seed == 1] == [
        ("local.optimizer.lr=0.2", "seed=1"),
        ("local.optimizer.lr=0.2", "method={name: fedprox}", "seed=1"),
    ]


def test_label_with_a_comma_stands_in_quotes():
    assert in_words(["A"]) == "A"
    assert in_words(["A", "B, server", "C"]) == 'A, "B, server" and C'
    with pytest.raises(RecipeError, match='expected one of A, "B, server", C'):
        check_names("--only", ["D"], ["A", "B, server", "C"])


def test_table_has_its_own_base_and_rows(tables):
    content = yaml.safe_load(tables.read_text())
    content["tables"]["lr .1"] |= {"base": "other.yaml", "runs": {"B": ["method.mu=0.1"]}, "without": ["A"]}
    content["tables"]["lr .1"]["target"] = 0.7
    first, second = select_studies([str(write_yaml(tables, content))])
    assert ([run.label for run in first.runs], first.target, second.target) == (["B"], 0.7, None)
    assert plan_runs(first)[0].overrides[-2:] == ("method.mu=0.1", "seed=1")
    assert (plan_runs(first)[0].source, plan_runs(second)[0].source) == ("other.yaml", content["base"])
    content["tables"]["lr .1"]["without"] = ["C"]
    with pytest.raises(RecipeError, match=r"tables.lr .1.without: 'C' is unknown; expected one of A, B"):
        select_studies([str(write_yaml(tables, content))])


def test_quick_version_is_named_and_lies_apart(tables, tmp_path):
    (study,) = select_studies([str(tables)], quick=True)
    assert (study.title, study.seeds) == ("T; quick: one round; lr .2", [4])
    assert study.folder == str(tmp_path / "runs-quick/lr-.2")
    assert study.published[0].differs == "digits; one round for two"
    in_order = "rounds=1 local.optimizer.lr=0.2 method={name: fedprox} method.mu=0.5 seed=4"
    assert " ".join(plan_runs(study)[1].overrides) == in_order


def test_quick_version_may_change_a_table_after_the_tables_own(tables):
    content = yaml.safe_load(tables.read_text())
    content["quick"]["tables"] = {"lr .1": ["local.optimizer.lr=0.3"]}
    (study,) = select_studies([str(write_yaml(tables, content))], quick=True)
    assert study.overrides == ["rounds=1", "local.optimizer.lr=0.1", "local.optimizer.lr=0.3"]


def test_rows_own_settings_that_the_command_line_takes_the_place_of_are_told(study):
    """C and D set another rate, D within the whole optimiser; B has the number that is asked for."""
    rates = {
        "C": ["local.optimizer.lr=0.5"],
        "D": ["local.optimizer={name: sgd, lr: 0.5}"],
        "E": ["rounds=7"],
    }
    runs = [*study.runs, *({"label": label, "overrides": own} for label, own in rates.items())]
    more_rows = Study.model_validate({**study.model_dump(), "runs": runs})
    changed = change_study(more_rows, ["local.optimizer.lr=0.1", "local.optimizer={name: adam}"])
    assert changed.title == (
        "Comparison; changed on the command line: "
        "local.optimizer.lr=0.1 (rows C and D: 0.5 -> 0.1), "
        "local.optimizer={name: adam} (row B b: {lr: 0.1} -> {name: adam}; row C: {lr: 0.5} -> {name: adam}; "
        "row D: {name: sgd, lr: 0.5} -> {name: adam})"
    )


@pytest.mark.parametrize("override", ["local.epochs=[1", "rounds"])
def test_override_that_cannot_be_read_is_answered(study, override):
    with pytest.raises(RecipeError, match=re.escape(f"override {override!r}: ")):
        change_study(study, [override])


def test_table_chosen_on_the_command_line_is_the_only_one(tables):
    (study,) = select_studies([str(tables)], tables=["lr .2"], without=["A"])
    assert study.title == "T; lr .2; changed on the command line: without A"
    assert [run.label for run in study.runs] == ["B"]


def test_table_that_has_none_of_the_chosen_rows_is_left_out(tables):
    content = yaml.safe_load(tables.read_text())
    content["tables"]["lr .1"]["without"] = ["A"]
    (study,) = select_studies([str(write_yaml(tables, content))], only=["A"])
    assert study.title.startswith("T; lr .2; ")


def test_what_is_held_against_a_row_that_is_left_out_goes_with_it_and_is_told(tables):
    content = yaml.safe_load(tables.read_text())
    content["runs"][1]["against"] = "A"
    content["target"] = {"run": "A"}
    content["published"] = [{**KDIA, "rows": ["A"]}, {**KDIA, "rows": ["A", "B"]}]
    (study, _) = select_studies([str(write_yaml(tables, content))], without=["A"])
    assert (study.target, study.runs[0].against) == (None, None)
    assert [named.rows for named in study.published] == [["B"]]
    content["tables"]["lr .1"]["without"] = ["A"]  # in a study's own table likewise
    (table, _) = select_studies([str(write_yaml(tables, content))])
    assert (table.target, table.runs[0].against) == (None, None)
    told = "without A, no target, which was A's best, B no longer against A"
    assert study.title == f"T; lr .1; changed on the command line: {told}"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"only": ["BB"]}, "--only: 'BB' is unknown; expected one of A, B"),
        ({"without": ["C"]}, "--without: 'C' is unknown; expected one of A, B"),
        ({"only": "AB"}, "--only = 'AB': expected a list, as ['AB']"),
        (
            {"tables": ["lr .3"]},
            "--table: 'lr .3' is unknown; expected one of lr .1, lr .2. Did you mean lr .2?",
        ),
        ({"only": ["A"], "without": ["A"]}, "--only and --without leave no row"),
    ],
)
def test_choice_of_what_is_not_there_is_answered_with_what_is(tables, chosen, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        select_studies([str(tables)], **chosen)


def test_recipes_compared_without_a_study_tell_their_overrides(tmp_path):
    source = write_yaml(tmp_path / "one.yaml", THREE_CLIENTS)
    (study,) = select_studies([str(source)], ["rounds=3"], seeds=np.int64(2))
    assert study.title == "Comparison; changed on the command line: rounds=3"
    assert plan_runs(study)[1].overrides == ("rounds=3", "seed=2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quick": None}, "this study has no quick version"),
        ({"quick": {"title": "q", "runs": {"C": []}}}, "quick.runs: 'C' is unknown; expected one of A, B"),
        (
            {"quick": {"title": "q", "tables": ["lr 1"]}},
            "quick.tables: 'lr 1' is unknown; expected one of lr .1, lr .2",
        ),
        ({"quick": {"title": "q", "overrides": ["local.optimizer.lr=1"]}}, "lr=1 has no effect in table lr"),
        ({"quick": {"title": "q", "overrides": ["local={optimizer: {lr: 1}}"]}}, "has no effect in table lr"),
    ],
)
def test_bad_quick_version_is_refused(tables, changes, message):
    write_yaml(tables, {**yaml.safe_load(tables.read_text()), **changes})
    with pytest.raises(RecipeError, match=re.escape(message)):
        select_studies([str(tables)], quick=True)


def test_table_that_looks_like_a_path_leads_to_no_folder_outside_of_the_studys(tables, tmp_path):
    content = yaml.safe_load(tables.read_text())
    content["tables"] = {"..": {}, "../../x": {}, "/etc": {}}
    del content["quick"]
    for study in select_studies([str(write_yaml(tables, content))]):
        assert Path(study.folder).resolve().parent == tmp_path / "runs"
    write_yaml(tables, {**content, "tables": {"α": {}, "β": {}}})
    with pytest.raises(RecipeError, match="two of α and β would have one folder"):
        select_studies([str(tables)], tables=["α"])


def test_recipes_on_the_command_line_are_rows(tmp_path):
    first, second = (write_yaml(tmp_path / f"{name}.yaml", THREE_CLIENTS) for name in ("one", "two"))
    (study,) = select_studies([str(first), str(second)], seeds=3, folder="elsewhere")
    assert [run.label for run in study.runs] == ["one", "two"]
    assert (study.seeds, study.folder) == ([1, 2, 3], "elsewhere")


@pytest.mark.parametrize("key", ["base", "seeds", "claims"])
def test_study_whose_runs_are_misspelt_is_told_that_it_needs_them(tmp_path, key):
    path = write_yaml(tmp_path / "bad.yaml", {"title": "T", key: [], "rows": [{"label": "A"}]})
    with pytest.raises(RecipeError, match=r"bad\.yaml: rows is no key of a study\. There are: .* runs,"):
        select_studies([str(path)])


def test_recipe_with_a_key_of_a_study_is_still_read_as_a_recipe(tmp_path):
    (study,) = select_studies([str(write_yaml(tmp_path / "one.yaml", {**THREE_CLIENTS, "seeds": [1]}))])
    with pytest.raises(RecipeError, match="seeds is no key of a recipe"):
        check_study(study)


def test_folder_of_the_command_line_is_that_of_a_study_without_one(tmp_path):
    content = {"runs": [{"label": "A"}], "tables": {"a 1": {}}}
    path = write_yaml(tmp_path / "study.yaml", content)
    for source in ([str(path)], content):
        (study,) = select_studies(source, folder="there")
        assert study.folder == "there/a-1"
        with pytest.raises(RecipeError, match="folder is missing"):
            select_studies(source)


def test_what_the_command_line_changes_is_a_fact_of_the_study(tables):
    assert [study.changes for study in select_studies([str(tables)], tables=["lr .2"], folder="x")] == [()]
    (study,) = select_studies([str(tables)], ["rounds=1"], quick=True, seeds=2, only=["A"])
    assert study.changes == ("rounds=1", "seeds 1 and 2 for 4", "of 2 rows only A")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, "one"]}, "seeds.1 = 'one': expected a whole number"),
        ({"last": 1.5}, "last = 1.5: expected a whole number"),
        ({"totals": "perhaps"}, "totals = 'perhaps': expected true or false"),
        ({"run": []}, "run is no key of a study. Did you mean runs?"),
        ({"tables": {"T": {"targett": 0.5}}}, "tables.T.targett is no key of tables.T. Did you mean"),
    ],
)
def test_value_of_another_kind_is_answered_in_words(tmp_path, changes, message):
    path = write_yaml(tmp_path / "study.yaml", {"folder": "x", "runs": [{"label": "A"}], **changes})
    with pytest.raises(RecipeError, match=re.escape(message)):
        read_study(path)


@pytest.mark.parametrize(("written", "seeds"), [(3, [1, 2, 3]), (1, [1]), ([5, 0], [5, 0])])
def test_seeds_of_a_study_are_listed_or_counted(written, seeds):
    quick = {"title": "few", "seeds": written}
    study = compared(seeds=written, quick=quick).study
    assert (study.seeds, study.quick.seeds) == (seeds, seeds)


@pytest.mark.parametrize("written", [0, 10_001, True, [], [-1], "3"])
def test_other_seeds_are_refused(written):
    with pytest.raises(ValueError, match="seeds"):
        compared(seeds=written)


def test_target_in_percent_is_refused():
    with pytest.raises(ValueError, match="less than or equal to 1"):
        compared(target=95.0)


def test_study_given_to_run_is_told(tmp_path):
    from rayfed_kd.recipe.loading import load_recipe

    path = write_yaml(tmp_path / "study.yaml", {"folder": "x", "runs": [{"label": "A"}]})
    with pytest.raises(RecipeError, match="rayfed-kd compare runs it"):
        load_recipe(path)


def test_seeds_are_added_to_those_that_are_there(tables, tmp_path):
    """Of seeds 1, 2, 3 the study's; 4 was added before; 5 and 7 were cut off in the second table."""
    for table in ("lr-.1", "lr-.2"):
        for label in ("A", "B"):
            for seed in (1, 2, 3, 4, 7):
                cut_off = ".running" if (table, label, seed) == ("lr-.2", "B", 7) else ""
                folder = tmp_path / "runs" / table / f"{label}-seed{seed}{cut_off}"
                folder.mkdir(parents=True)
                (folder / "summary.json").touch()
    (tmp_path / "runs" / "lr-.1" / "A-seed5").mkdir()
    (tmp_path / "runs" / "lr-.1" / "A-seed5" / "summary.json").touch()
    assert _seeds(tables, add_seeds=0) == [1, 2, 3, 4]
    assert _seeds(tables, add_seeds=1) == [1, 2, 3, 4, 5]
    assert _seeds(tables, add_seeds=3) == [1, 2, 3, 4, 5, 7, 8]
    # Of the first table alone 5 is not cut off in row A, but row B lacks it.
    assert _seeds(tables, add_seeds=0, tables=["lr .1"], only=["A"]) == [1, 2, 3, 4, 5, 7]


def _seeds(path, **selection):
    selected = select_studies([str(path)], **selection)
    assert len({tuple(study.seeds) for study in selected}) == 1
    return list(selected[0].seeds)


def test_own_seeds_are_any_numbers_once(tables):
    assert _seeds(tables, seeds=[7, 4]) == [7, 4]
    assert _seeds(tables, seeds=2) == [1, 2]
    for wrong in ([], [3, 3], [-1]):
        with pytest.raises(RecipeError, match="expected one or more, each once, and none below 0"):
            select_studies([str(tables)], seeds=wrong)


@pytest.mark.parametrize(
    ("more", "choice", "message"),
    [
        ([], {"tables": ["x"]}, "--table 'x': this study has a single table, which has no name"),
        ([], {"seeds": 2, "add_seeds": 1}, "--seeds and --add-seeds: expected one of them"),
        (["configs/quickstart.yaml"], {}, r"quickstart.yaml is named twice; expected each recipe once"),
        (["x/configs/quickstart.yaml"], {}, "another recipe have one name, in folders of one name"),
        ([], {"overrides": ["results.folder="]}, "a comparison gives each run its folder; expected --folder"),
    ],
)
def test_choice_that_does_not_fit_is_refused(more, choice, message):
    with pytest.raises(RecipeError, match=message):
        select_studies(["configs/quickstart.yaml", *more], **choice)
