"""Studies whose rows are searched first, and judged on other seeds."""

from dataclasses import replace
from statistics import fmean

import pytest
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.comparison.checking import check_study
from rayfed_kd.comparison.compare import missing_searches
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.tuning.search_folder import SearchFolder, TrialRecord
from rayfed_kd.tuning.space import coefficient_overrides, parse_space

BASE = {**THREE_CLIENTS, "partition": {**THREE_CLIENTS["partition"], "public": {"fraction": 0.3}}}
TOO_SMALL = {"label": "B", "overrides": ["model={name: vgg11}"]}
OTHER_DATA = {"runs": [{"label": "A", "search": {"space": {"partition.alpha": {"choice": [1.0]}}}}]}
LR = {"local.optimizer.lr": {"loguniform": [0.001, 0.5]}}


@pytest.fixture
def study(tmp_path):
    return {
        "base": BASE,
        "seeds": [1],
        "last": 2,
        "folder": str(tmp_path / "runs"),
        "search": {"seeds": [7, 8], "samples": 3},
        "runs": [
            {"label": "A", "search": {"metric": "amp/global", "space": LR}},
            {"label": "M", "overrides": ["method={name: fedmd}"], "search": {"space": LR}},
            {"label": "plain"},
        ],
    }


@pytest.fixture
def trials(monkeypatch):
    """The trials that were made, in this process in place of Ray Tune's."""
    made = []

    def search_here(search, tell, **options):
        for number, coefficients in enumerate(search.listed):
            folder, overrides = search.folder.trial(number), coefficient_overrides(coefficients)
            made.append((search.recipe.method.name, coefficients["local.optimizer.lr"], coefficients["seed"]))
            place = [*overrides, f"results.folder={folder}"]
            rayfed_kd.run(search.recipe.model_dump(), place, local=True)
            search.folder.write_record(TrialRecord(number, coefficients, "finished", search.recipe.rounds))

    monkeypatch.setattr("rayfed_kd.tuning.tune._search_on_ray", search_here)
    return made


def best_rate(metric, model, overrides=()):
    """The learning rate with the best mean over both seeds and both rounds, of runs made one by one."""
    means = {}
    for rate in {
        parse_space({"space": LR}, None).draw(7, number)["local.optimizer.lr"] for number in range(3)
    }:
        changes = [*overrides, f"local.optimizer.lr={rate!r}"]
        found = [rayfed_kd.run(BASE, changes, seed=seed, local=True).tables["metrics"] for seed in (7, 8)]
        values = [row[metric] for table in found for row in table.to_pylist() if row["model"] == model]
        means[rate] = fmean(values)
    return max(means, key=means.get), max(means.values())


def test_rows_are_judged_with_what_is_best_on_the_searchs_seeds(study, trials, tmp_path):
    """A control has what its row's search found; a second call makes neither trials nor runs."""
    (table,) = rayfed_kd.compare(study, local=True)
    rates = [rate for _, rate, _ in trials]
    assert [seed for _, _, seed in trials] == [7, 8] * 6
    assert rates[:6] == rates[6:] == [rate for rate in rates[:6:2] for _ in range(2)]
    found = {"A": best_rate("amp", "global"), "M": best_rate("ua", "personal", ["method={name: fedmd}"])}
    for row, folder in (("A", "A-seed1"), ("M", "M-seed1"), ("M", "M-labels-alone-seed1")):
        recipe = load_recipe(tmp_path / "runs" / folder / "config.yaml")
        assert (recipe.local.optimizer.lr, recipe.seed) == (found[row][0], 1)
    assert load_recipe(tmp_path / "runs/plain-seed1/config.yaml").local.optimizer.lr not in rates
    rate, top = found["M"]
    said = f"M has local.optimizer.lr {rate:.4g}: the best of 3 configurations, {100 * top:.2f} % ua/personal"
    assert f"{said} with seeds 7 and 8." in str(table)
    assert f"{said} with seeds 7 and 8" in table.table().schema.metadata[b"found"].decode()
    (again,) = rayfed_kd.compare(study, local=True)
    assert (str(again), len(trials)) == (str(table), 12)
    with pytest.raises(RecipeError, match=r"holds another search: recipe\.rounds was 2, is 3"):
        rayfed_kd.compare(study, ["rounds=3"], local=True)


@pytest.mark.parametrize("bad", [{"status": "failed"}, {"round": 3}])  # no finite value after round 2
def test_configuration_counts_if_all_its_trials_have_ended_well(study, trials, tmp_path, bad):
    """A search that was cut off leaves its row as it is."""
    rayfed_kd.compare(study, only=["A"], local=True)
    folder = SearchFolder(tmp_path / "runs/search/A")
    best = select_studies(study)[0].runs[0].overrides
    number = next(n for n in (0, 2, 4) if coefficient_overrides(folder.record(n).coefficients)[0] in best)
    folder.write_record(replace(folder.record(number + 1), **bad))
    (changed,) = select_studies(study)
    assert ": the best of 2 of 3 configurations, " in changed.found[0]
    assert changed.runs[0].overrides != best
    for other in range(6):
        folder.write_record(replace(folder.record(other), **(bad if other % 2 else {"status": "finished"})))
    with pytest.raises(RunError, match=r"A: no configuration in .*search/A has a value with every seed; "):
        select_studies(study)
    folder.write_record(replace(folder.record(5), status="running"))
    (changed,) = select_studies(study)
    assert (changed.runs[0].overrides, changed.found) == ([], ())


def test_a_row_without_a_metric_is_searched_by_the_headline_and_more_samples_are_added(study, trials):
    rayfed_kd.compare(study, only=["M"], local=True)
    (more,) = select_studies({**study, "search": {"seeds": [7, 8], "samples": 4}}, only=["M"])
    assert [run.done for run in check_study(more)[0]] == [True, True]  # judged, and checked when it is over
    assert [row.trials_left for row in missing_searches([more])] == [2]
    with pytest.raises(RecipeError, match="another search: metric was ua/personal, is amp/personal"):
        select_studies({**study, "headline": "amp"}, only=["M"])


@pytest.mark.slow
def test_searches_of_rows_on_ray_find_the_same(study, trials, session_ray, tmp_path, monkeypatch):
    (here,) = rayfed_kd.compare(study, only=["A"], local=True)
    monkeypatch.undo()
    session_ray.start()
    (there,) = rayfed_kd.compare({**study, "folder": str(tmp_path / "ray")}, only=["A"], local=True)
    assert there.comparison.study.found == here.comparison.study.found != ()


@pytest.mark.parametrize(
    ("change", "overrides", "message"),
    [
        ({"seeds": [7]}, [], "search.seeds: 7 is judged on, too; expected none of the study's"),
        ({"search": None}, [], "runs: A is searched; the study has no search: {seeds, samples}"),
        ({"runs": [{"label": "A"}]}, [], "search: no row is searched; expected a row with search, or no"),
        ({"runs": [{"label": "A", "search": {"space": {}}}]}, [], "study, row A: space: it is empty"),
        ({}, ["local.optimizer={name: adam}"], "the row A searches local.optimizer.lr; expected another key"),
        ({"search": {"seeds": 2}}, [], "search.samples is missing"),
        ({"search": {"seeds": [7, 7], "samples": 3}}, [], "search.seeds = [7, 7]: expected each once"),
        (OTHER_DATA, [], "partition.alpha: all rows are judged on the same; expected another key"),
        ({"runs": [{"label": "A", "search": {"space": LR}}, TOO_SMALL]}, [], "row B: "),
    ],
)
def test_what_would_not_be_a_fair_search_is_refused(study, change, overrides, message):
    with pytest.raises(RecipeError) as caught:
        rayfed_kd.compare({**study, **change}, overrides, local=True)
    assert message in str(caught.value)


def test_all_tables_are_checked_once_more_with_what_was_found(study, trials, tmp_path):
    """Before the first table's runs: another run lies where the second one's is to be."""
    rayfed_kd.run(BASE, ["rounds=1", f"results.folder={tmp_path}/runs/y/A-seed1"], local=True)
    with pytest.raises(RecipeError, match="y/A-seed1 holds another run"):
        rayfed_kd.compare({**study, "tables": {"x": {}, "y": {}}}, only=["A"], local=True)
    assert (len(trials), (tmp_path / "runs/x/A-seed1").exists()) == (12, False)
