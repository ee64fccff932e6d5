"""Comparisons from a study to its runs: nothing runs twice, what is bad is refused before the first run."""

import json
import re
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from command_line import run_command
from known_comparison import KDIA, run_locally, write_yaml
from small_recipes import THREE_CLIENTS

from rayfed_kd.cli.main import commands
from rayfed_kd.comparison import checking, runs
from rayfed_kd.comparison.compare import compare_runs as compare
from rayfed_kd.comparison.row_notes import row_notes, with_stop_as_target
from rayfed_kd.comparison.runs import run_each
from rayfed_kd.comparison.studies import Study
from rayfed_kd.comparison.study_changes import change_study
from rayfed_kd.comparison.table_text import caption, remarks
from rayfed_kd.comparison.writers.all_tables import render_markdown
from rayfed_kd.comparison.writers.latex import render_latex
from rayfed_kd.errors import DataError, RecipeError, RunError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.strict import Named
from rayfed_kd.reporting.study_sections import comparison_section
from rayfed_kd.results.tables import read_table


@pytest.mark.parametrize(
    ("change", "kind", "error"),
    [
        ("data={name: mnist}", DataError, "data mnist is not in"),
        ("model.hiden=5", RecipeError, "model.hiden is no option of mlp"),
    ],
)
def test_what_fails_in_a_later_table_is_told_at_once(change, kind, error, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYFED_KD_DATA", str(tmp_path))
    study = {
        "base": str(write_yaml(tmp_path / "base.yaml", THREE_CLIENTS)),
        "folder": str(tmp_path / "runs"),
        "runs": [{"label": "A"}],
        "tables": {"there": {}, "missing": {"overrides": [change]}},
    }
    told = CliRunner().invoke(commands, ["compare", str(write_yaml(tmp_path / "s.yaml", study)), "--local"])
    assert isinstance(told.exception, kind)
    assert error in str(told.exception)
    assert not (tmp_path / "runs").exists()


def test_quick_true_on_the_command_line_runs_it_and_json_has_what_the_files_have(tables, tmp_path):
    shown = run_command("compare", tables, "quick=true", "--local", "--json")
    assert shown.returncode == 0, shown.stderr
    first = json.loads(shown.stdout)[0]
    assert "quick: one round" in Path(first["files"][0]).read_text()
    assert first["rows"] == pq.read_table(tmp_path / "runs-quick/lr-.2/comparison.parquet").to_pylist()
    assert not (tmp_path / "runs").exists()


def test_what_the_command_line_changes_is_told_on_the_screen_in_the_files_and_on_the_page(tables, tmp_path):
    words = ["compare", str(tables), "quick=true", "--local", "--seeds", "2", "local.batch_size=32"]
    shown = CliRunner().invoke(commands, words)
    assert shown.exit_code == 0, shown.output
    told = "changed on the command line: local.batch_size=32, seeds 1 and 2 for 4"
    folder = tmp_path / "runs-quick" / "lr-.2"
    title = f"T; quick: one round; lr .2; {told}; last round, mean ± sample deviation over 2 seeds"
    differs = f"here differs: digits; one round for two; {told}"
    for text in (shown.output, *((folder / f"comparison.{kind}").read_text() for kind in ("md", "tex"))):
        assert title in text
        assert differs in text
    section = comparison_section("x", (folder / "comparison.md").read_text())
    assert title in section.tables[0].title
    assert differs in section.tables[2].title


def test_seeds_are_named_one_by_one_or_counted(tables):
    runs = CliRunner().invoke(commands, ["compare", str(tables), "--seed", "4", "--seeds", "2", "--local"])
    assert "--seeds and --seed: expected one of them" in str(runs.exception)
    words = ["compare", str(tables), "quick=true", "--local", "--seed", "9", "--table", "lr .2"]
    shown = CliRunner().invoke(commands, words)
    assert shown.exit_code == 0, shown.output
    assert "seeds 9 for 4" in shown.output
    (config,) = (tables.parent / "runs-quick").glob("*/A-seed9/config.yaml")
    assert f"folder: {config.parent}\n" in config.read_text()  # no longer that of a run under way


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("roundz=1", "roundz is no key of a recipe. Did you mean rounds?"),
        ("method.moo=1", "method.moo is no option of fedprox. 'method={name: fedprox}' replaces name and "),
        ("rounds", "override 'rounds': expected key.path=value"),
    ],
)
def test_mistake_in_a_row_names_the_study_the_row_and_its_recipe(tables, tmp_path, override, message):
    content = yaml.safe_load(tables.read_text())
    content["runs"][1]["overrides"].append(override)
    write_yaml(tables, content)
    shown = CliRunner().invoke(commands, ["compare", str(tables), "--local"])
    assert isinstance(shown.exception, RecipeError)
    assert str(shown.exception).startswith(f"{tables}, row B: {tmp_path / 'base.yaml'}: {message}")


def test_all_rows_that_cannot_be_built_are_told_before_the_first_run(tables):
    """What shows only where data and model are made; the row between them is right, and does not run."""
    content = yaml.safe_load(tables.read_text())
    good = {"label": "C"}
    for run in content["runs"]:
        run["overrides"] = [*run.get("overrides", []), "partition.clients=99999"]
    content["runs"].insert(1, good)
    write_yaml(tables, content)
    shown = CliRunner().invoke(commands, ["compare", str(tables), "--local"])
    assert isinstance(shown.exception, RecipeError)
    lines = str(shown.exception).splitlines()
    assert [line.partition(": ")[0].rpartition(", ")[2] for line in lines] == ["row A", "row B"]
    assert all("partition.clients = 99999: there are " in line for line in lines)
    assert not list(tables.parent.glob("runs*/**/tables"))


@pytest.fixture
def own(own_module):
    own_module(
        "own_of_study",
        "from broken_methods import Keeping\n\n\nclass Silent(Keeping):\n    evaluates = ()\n\n\n"
        "class Mine(Keeping):\n    evaluates = ('mine',)\n",
    )
    return "own_of_study"


def test_own_methods_models_are_those_that_it_says_or_any(own):
    study = Study(folder="x", runs=[{"label": "A"}], models={"mine": "mine"})
    for name in ("Mine", "Silent"):
        checking._check_models(study, [Recipe(method=Named(name=f"{own}:{name}"))])
    with pytest.raises(RecipeError, match="no method evaluates a model 'mine'"):
        checking._check_models(study, [Recipe(method=Named(name="fedavg"))])
    other = Study(folder="x", runs=[{"label": "A"}], models={"min": "mine"})
    with pytest.raises(RecipeError, match="no method evaluates a model 'min'"):
        checking._check_models(other, [Recipe(method=Named(name=f"{own}:Mine"))])


OCA_ABOVE = {"says": "A's oca above B", "higher": {"run": "A", "model": "oca"}, "lower": "B"}


NO_PERSONL = "no method evaluates a model 'personl'; there are .*[.] Did you mean personal[?]$"
OF_FEDPROX = r"claims\[1\]: the row B has no model 'aca': fedprox evaluates global. Did you mean global[?]"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baselines": {"personl": "A"}}, f"baselines: {NO_PERSONL}"),
        ({"models": {"personl": "own"}}, f"models: {NO_PERSONL}"),
        # B is FedProx, which evaluates one model; FedAvg, A's method, may have oca.
        (
            {"claims": [OCA_ABOVE, {"says": "x", "higher": {"run": "B", "model": "aca"}, "lower": "A"}]},
            OF_FEDPROX,
        ),
        ({"target": {"run": "Z"}}, "^{study}: target.run: 'Z' is unknown"),
    ],
)
def test_row_or_model_that_is_none_is_refused_before_the_first_run(tables, changes, message):
    write_yaml(tables, {**yaml.safe_load(tables.read_text()), **changes})
    shown = CliRunner().invoke(commands, ["compare", str(tables), "--local"])
    assert isinstance(shown.exception, RecipeError)
    assert re.search(message.format(study=tables), str(shown.exception))
    assert not list(tables.parent.glob("runs*"))


def test_claim_on_a_model_that_only_a_run_shows_to_be_missing_ends_with_exit_code_1(tables, tmp_path):
    """FedAvg has oca with track_oca alone: all is run and written, and then told."""
    write_yaml(tables, {**yaml.safe_load(tables.read_text()), "claims": [OCA_ABOVE]})
    shown = CliRunner().invoke(commands, ["compare", str(tables), "quick=true", "--local"])
    assert isinstance(shown.exception, RunError)
    assert shown.exception.exit_code == 1
    assert (
        "claims without a verdict, in tables just written: A's oca above B: A evaluates no oca; it has "
        "global. Correct" in str(shown.exception)
    )
    assert "no verdict" in (tmp_path / "runs-quick" / "lr-.2" / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("method", "models"),
    [
        ("{name: kdia}", ("student", "teacher")),
        ("{name: ccvr}", ["global", "oca", "global_ccvr", "oca_ccvr"]),
        ("{name: ccvr, method: {name: fedprox}}", ["global", "global_ccvr"]),
        ("{name: ccvr, method: {name: 'own_of_study:Silent'}}", []),
        ("{name: 'own_of_study:Silent'}", ()),
    ],
)
def test_models_of_a_method_are_those_that_its_class_says(method, models, own):
    assert checking.method_of(Recipe(method=Named(**yaml.safe_load(method)))).evaluates == models


def test_rows_chosen_on_the_command_line_are_told_and_their_runs_are_found_by_the_whole_study(
    tables, tmp_path
):
    words = ["compare", str(tables), "quick=true", "--local"]
    few = CliRunner().invoke(commands, [*words, "--only", "B"])
    assert few.exit_code == 0, few.output
    assert "changed on the command line: of 2 rows only B; last round" in few.output
    assert "A (global)" not in few.output
    whole = CliRunner().invoke(commands, words)
    assert whole.exit_code == 0, whole.output
    assert "1 of 2 runs are finished" in whole.output
    written = (tmp_path / "runs-quick" / "lr-.2" / "comparison.md").read_text()
    assert "A (global)" in written
    assert "changed on the command line" not in written


def test_finished_runs_are_not_run_again(study, tmp_path):
    told = []
    first = compare(study, run=run_locally(told), tell=told.append)
    assert len(told) == 8
    again = compare(study, run=run_locally(told), tell=told.append)
    assert told[8:] == [f"4 of 4 runs are finished in {study.folder}"]
    assert render_markdown(again) == render_markdown(first)
    folders = ["A-seed1", "A-seed2", "B-b-seed1", "B-b-seed2"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == folders


def test_where_all_recipes_stop_is_the_target_of_a_study_that_names_none(study):
    """A learns nothing and runs to its end; B passes 0.5 in a round that its table of metrics has."""
    stopping = [*study.overrides, "stop={metric: ua, at: 0.5}", "rounds=6"]
    rates = {"A": "local.optimizer.lr=1e-30", "B b": "local.optimizer.lr=0.3"}
    rows = study.runs_with("runs", {label: [rate] for label, rate in rates.items()})
    study = study.model_copy(update={"seeds": [1], "overrides": stopping, "runs": rows})
    compared = compare(study, run=run_locally())
    assert (compared.headline, compared.study.target) == ("ua", 0.5)
    assert "the target is 50 %" in compared.notes
    ua = read_table(Path(study.folder) / "B-b-seed1/tables", "metrics")["ua"].to_pylist()
    assert ua[-1] >= 0.5 > max(ua[:-1], default=0.0)
    assert compared.costs(("A", "global"))["rounds"] == [None]
    assert compared.costs(("B b", "global"))["rounds"] == [len(ua)]


@pytest.mark.parametrize(
    ("stops", "changes"),
    [
        (["{metric: ua, at: 0.5}", "{metric: ua, at: 0.6}"], {}),
        (["{metric: ua, at: 0.5}", "null"], {}),
        (["{metric: ua, patience: 3}"], {}),
        (["{metric: ua, at: 0.5}"], {"headline": "amp"}),
        (["{metric: ua, at: 0.5}"], {"target": 0.9}),
    ],
)
def test_no_target_where_recipes_stop_otherwise_or_the_study_says_another(study, stops, changes):
    study = study.model_copy(update=changes)
    recipes = [load_recipe(study.base, [f"stop={stop}"]) for stop in stops]
    assert with_stop_as_target(study, recipes) is study


def test_finished_run_tells_its_seconds_in_all_and_in_rounds(study, monkeypatch):
    """What is not in rounds is data, partition, start and end."""
    told, make_ready = [], runs.make_ready
    monkeypatch.setattr(runs, "make_ready", lambda recipe: time.sleep(0.5) or make_ready(recipe))
    compare(study.model_copy(update={"seeds": [1]}), run=run_locally(told))
    found = re.search(r"A, seed 1: global amp .*; ([\d.]+) s in all, ([\d.]+) s in rounds$", told[1])
    assert float(found[1]) >= float(found[2]) + 0.4  # both are rounded


def test_notes_of_the_data_are_told_once_for_all_rows(study, tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.zeros((60, 4, 4), np.uint8), y_train=np.arange(60) % 3 + 1)
    data = f"data={{name: npz, folder: {tmp_path}, file: a.npz}}"
    runs = [run.model_copy(update={"overrides": [*run.overrides, data]}) for run in study.runs]
    told = []
    alone = [*runs[0].overrides, "method={name: lg_fedavg, shared_layers: 0}"]
    runs.append(runs[0].model_copy(update={"label": "Alone", "overrides": alone}))
    comparison = compare(study.model_copy(update={"seeds": [1], "runs": runs}), run=run_locally(told))
    assert comparison.notes.count("the labels are 1, 2 and 3; models number them 0 to 2, in this order") == 1
    assert [line for line in told if "labels are" in line or "shared_layers" in line] == [
        "note: the labels are 1, 2 and 3; models number them 0 to 2, in this order",
        "note: method.shared_layers = 0 of 2 layers: as with the method standalone",
    ]


def test_half_finished_run_is_made_again(study, tmp_path):
    (tmp_path / "runs" / "A-seed1.running").mkdir(parents=True)
    compare(study.model_copy(update={"seeds": [1]}), run=run_locally())
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"A-seed1", "B-b-seed1"}


ONE_ACTOR = "placement.clients_per_actor=3"


@pytest.mark.slow
def test_runs_at_a_time_on_one_ray_give_the_local_results(study, shared_ray, tmp_path):
    placed = [run.model_copy(update={"overrides": [*run.overrides, ONE_ACTOR]}) for run in study.runs]
    study = study.model_copy(update={"runs": placed})
    expected = compare(study, run=run_locally())
    on_ray = study.model_copy(update={"folder": str(tmp_path / "ray")})
    told = []
    found = compare(on_ray, run=partial(run_each, local=False, address=None, jobs=2, tell=told.append))
    assert found.curves == expected.curves
    starts = [line for line in told if "starts" in line]
    assert len(starts) == 4
    assert told[1] in starts  # the second began before the first was over


def test_rows_of_different_data_are_refused_with_both(study):
    other = study.runs[0].model_copy(update={"label": "C", "overrides": ["data.fraction=0.2"]})
    both = r"A has data name digits, fraction 0\.1, C has name digits, fraction 0\.2"
    with pytest.raises(RecipeError, match=both):
        compare(study.model_copy(update={"runs": [*study.runs, other]}), run=run_locally())


OFFICIAL = ["partition.test=official"]


def claim(metric):
    return {"says": "s", "higher": "A", "lower": "B b", "metric": metric}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": [{"label": "A/B"}, {"label": "A B"}]}, "two rows have the same label"),
        ({"runs": [{"label": "é"}, {"label": "è"}]}, "labels that differ in letters a to z or digits"),
        ({"seeds": [1, 1]}, "or a seed stands twice in [1, 1]"),
        ({"base": None}, "runs: A: no base recipe"),
        ({"overrides": ["seed=7"]}, "seed=7: a comparison's runs have its seeds; expected --seed, or seeds"),
        ({"published": [{"paper": "kdia", "table": "99"}]}, "published.table: '99'"),
        ({"runs": [{"label": "A", "against": "Z"}]}, "runs: A: against: 'Z' is unknown"),
        ({"runs": [{"label": "A", "against": "A"}]}, "runs: A: against: 'A' is unknown"),
        ({"headline": "amp", "overrides": OFFICIAL}, "headline: no row has amp: with partition.test="),
        ({"claims": [claim("local_f1")]}, "claims[0]: A has no local_f1: evaluation.metrics is without f1"),
        ({"claims": [claim("ua")], "overrides": OFFICIAL}, "claims[0]: A has no ua: with partition.test="),
        ({"published": [{**KDIA, "rows": ["Z"]}]}, "published.rows: 'Z' is unknown; expected one of A, B b"),
        (
            {"published": [{**KDIA, "metric": "AMP"}]},
            "published.metric: 'AMP' is unknown; expected one of accuracy",
        ),
        (
            {"published": [KDIA], "runs": [{"label": "A", "published": "FedAgv"}]},
            "published: 'FedAgv' is unknown; expected one of",
        ),
    ],
)
def test_bad_study_is_refused(study, changes, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        compare(Study.model_validate({**study.model_dump(), **changes}), run=run_locally())


def test_failed_run_names_itself(study, monkeypatch):
    def fail(*arguments, **options):
        raise RunError("round 3, client 1")

    monkeypatch.setattr(runs, "run_prepared", fail)
    with pytest.raises(RunError, match="A, seed 1: round 3, client 1"):
        compare(study, run=run_locally())


def test_run_of_another_recipe_is_refused_with_the_difference(study, tmp_path):
    """Also one that was cut off: its rounds are not lost to the new recipe."""
    compare(study, run=run_locally())
    finished = tmp_path / "runs/A-seed1"
    for folder in (finished, finished.with_name("A-seed1.running")):
        finished.rename(folder)
        with pytest.raises(RecipeError, match=rf"{folder.name} holds another run: rounds was 2, is 3\."):
            compare(change_study(study, ["rounds=3"]), run=run_locally())


def test_a_study_that_goes_on_without_bad_replies_keeps_its_runs(study, tmp_path, monkeypatch):
    """A run that none has ended is the same; one that may have left some out is not one without any."""
    drop = change_study(study, ["faults.bad_replies=drop"])
    compare(study, run=run_locally())
    with monkeypatch.context() as patch:
        patch.setattr(runs, "run_prepared", None)
        compare(drop, run=run_locally())
    shutil.rmtree(tmp_path / "runs/A-seed1")
    assert not any("left out" in note for note in compare(drop, run=run_locally()).notes)
    ended = tmp_path / "runs/A-seed1/summary.json"
    ended.write_text(ended.read_text().replace('"bad_replies": 0', '"bad_replies": 2'))
    assert "A, seed 1: 2 bad replies left out" in compare(drop, run=run_locally()).notes
    with pytest.raises(RecipeError, match=r"A-seed1 holds another run: faults.bad_replies was drop, is stop"):
        compare(study, run=run_locally())


def test_rows_that_differ_are_named_beneath_the_table_with_what_they_differ_in(study):
    changes = {"C": ["partition.public={fraction: 0.5}", "rounds=1"], "D": ["rounds=1"], "E": ["rounds=1"]}
    others = [{"label": label, "overrides": own} for label, own in changes.items()]
    runs = [study.runs[0].model_dump(), *others]
    asked = Study.model_validate({**study.model_dump(), "runs": runs, "seeds": [1]})
    found = compare(asked, run=run_locally())
    assert remarks(found) == [
        "Rows differ in partition.public: {fraction: 0.5, labels: true, apart: true} in C; "
        "null in the others.",
        "Rows differ in rounds: 2 in A; 1 in the others.",
        "Rows with another partition have other samples at their clients, with the same seed, too.",
    ]
    assert caption(found) == "Comparison; last round, one seed."
    table, *beneath, costs_title, costs = render_markdown(found).split("\n\n")[1:]
    assert table.startswith("| run |")
    assert beneath == remarks(found)
    assert all(f"% {remark}" in render_latex(found) for remark in remarks(found))
    section = comparison_section("x", render_markdown(found))
    assert section.notes == remarks(found)
    assert [table.title for table in section.tables] == [caption(found), "Costs of a whole run"]
    assert costs_title == "Costs of a whole run:"
    assert costs.startswith("| run | MiB up | MiB down | MiB |")


def notes_of(rows, *overrides):
    """The sentences on differences of rows of `THREE_CLIENTS`; label -> its overrides."""
    recipes = {
        label: load_recipe(
            THREE_CLIENTS, [*overrides, *changes, f"seed={place}", f"results.folder=runs/{label}"]
        )
        for place, (label, changes) in enumerate(rows.items(), start=1)
    }
    runs = [{"label": label} for label in rows]
    return row_notes(Study.model_validate({"folder": "x", "runs": runs}), recipes)


@pytest.mark.parametrize(("headline", "shown"), [(None, "2 %"), ("ua", "2 %"), ("fm", "0.02")])
def test_target_is_told_in_the_unit_of_its_metric(study, headline, shown):
    study = study.model_copy(update={"headline": headline, "target": 0.02})
    assert row_notes(study, {}) == [f"the target is {shown}"]


def test_rows_of_one_recipe_differ_in_nothing_though_seed_and_folder_do():
    assert notes_of({"A": [], "B": []}) == []


def test_any_key_in_which_rows_differ_is_named():
    """A section that a row has or has not is one sentence, without what is a default."""
    eight = "codec.up.weights=[difference, {name: uniform, bits: 8}]"
    noised = "privacy={noise_multiplier: 0.5, clip: 2.0}"
    rows = {"A": [], "B": [eight], "C": [noised], "D": ["evaluation.every=2", "data.augment=crop_flip"]}
    assert notes_of(rows) == [
        "rows differ in codec: {up: {weights: [{name: difference}, {name: uniform, bits: 8}]}} in B; "
        "null in the others",
        "rows differ in data.augment: crop_flip in D; none in the others",
        "rows differ in evaluation.every: 2 in D; 1 in the others",
        "rows differ in privacy: {noise_multiplier: 0.5, clip: 2.0} in C; null in the others",
    ]


def test_options_of_a_method_that_several_rows_have_are_named():
    """FedAvg's rows differ in its weighting; a single row of another method has nothing to differ from."""
    rows = {"A": [], "B": ["method.weighting=uniform"], "C": ["method={name: fedprox, mu: 0.3}"]}
    assert notes_of(rows) == ["rows of fedavg differ in method.weighting: uniform in B; the default in A"]
    two = {"A": ["method={name: fedprox, mu: 0.3}"], "B": ["method={name: fedprox, mu: 0.1}"]}
    assert notes_of(two) == ["rows differ in method.mu: 0.1 in B; 0.3 in A"]


def test_model_that_no_row_evaluates_is_pointed_out(study):
    found = compare(study.model_copy(update={"models": {"teacher": "A"}, "seeds": [1]}), run=run_locally())
    assert "Models: no row evaluates teacher." in remarks(found)


def test_estimate_of_a_study_has_each_row_with_its_seeds_and_leaves_nothing(tables, tmp_path):
    shown = CliRunner().invoke(commands, ["compare", str(tables), "--estimate", "--table", "lr .1"])
    assert shown.exit_code == 0, shown.output
    first, second, total = shown.stdout.splitlines()
    assert first.startswith("A, 3 runs, each about 0:0") and second.startswith("B, 3 runs, each about")
    assert re.fullmatch(r"all: \d:\d\d:\d\d \(h:mm:ss\) on one core or GPU, one run after another", total)
    assert not (tmp_path / "runs").exists()
