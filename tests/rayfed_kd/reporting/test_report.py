"""The report says what the tables say, fetches nothing, and believes no label."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from command_line import loaded_after, run_command
from known_comparison import run_locally, write_yaml
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.comparison.compare import compare_runs as compare
from rayfed_kd.comparison.compare import write_comparison
from rayfed_kd.comparison.studies import Study
from rayfed_kd.comparison.table_text import caption
from rayfed_kd.comparison.writers.all_tables import escaped, main_table, unescaped
from rayfed_kd.data.partition import Partition
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.reporting.page import report as write_report
from rayfed_kd.reporting.reading import read_sources
from rayfed_kd.reporting.run_sections import _command
from rayfed_kd.reporting.sections import lines_picture, series_curves
from rayfed_kd.reporting.study_sections import _headline, against_section
from rayfed_kd.results.charts.lines import Line
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.screen_table import TextTable
from rayfed_kd.results.tables import TableWriter, read_table
from rayfed_kd.tuning.search_folder import SearchFolder, SearchSettings, TrialRecord

HEADER = "# Table 2 of Atapour et al. 2024.\n"
RECIPE = {
    "method": {"name": "fedavg"},
    "data": {"name": "cifar10"},
    "partition": {"name": "dirichlet", "alpha": 0.1, "clients": 5},
    "sampling": {"count": 2},
    "rounds": 3,
    "seed": 7,
}
AMP, FM = (0.5, 0.8, 0.6), (0.04, 0.01, 0.03)
MIB = 2**20


class Page(HTMLParser):
    """What a page holds: tags with attributes, tables of cell texts, all text."""

    VOID = ("meta", "img", "path", "use", "line", "br")

    def __init__(self, path):
        super().__init__()
        self.tags, self.tables, self.text, self.open = [], [], "", []
        self.feed(path.read_text(encoding="utf8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("th", "td"):
            self.tables[-1][-1][-1] += data

    def table(self, *header):
        """The rows of the one table whose header starts so."""
        (found,) = [t for t in self.tables if tuple(t[0][: len(header)]) == header]
        return found[1:]

    def pairs(self):
        return dict(next(t for t in self.tables if all(len(row) == 2 for row in t)))


def made(
    folder, *, rounds=3, header=HEADER, status="finished", paper="McMahan et al. 2017", raw=MIB, **changes
):
    """A run of three rounds whose every number is known."""
    writer = TableWriter(folder / "tables")
    for index in range(1, rounds + 1):
        one = {"round": index, "sim_s": 2.5 * index}
        seconds = {"dispatch_s": 0.25, "client_s": 2.0, "server_s": 0.5, "evaluate_s": 0.125}
        logged = {"ce": 2.0 / index, "kl": [float("nan"), 2, 3][index - 1]}
        sent = {"bytes_up": 2 * MIB, "bytes_down": MIB, "logged": logged}
        replies = {"cohort": index, "dropped": index % 2, "staleness": index}
        score = {"model": "global", "metric": "macro_f1", "test": "local", "samples": 20, "value": index / 8}
        sizes = {"bytes": MIB, "raw_bytes": raw, "parts": 1}
        message = {"client": 0, "kind": "weights", "direction": "up", **sizes}
        tables = {
            "rounds": [one | seconds | sent | replies | {"wall_s": 3.0 * index}],
            "metrics": [one | {"model": "global", "amp": AMP[index - 1], "fm": FM[index - 1]}],
            "clients": [
                one | {"client": c, "model": "global", "samples": 4, "correct": c, "accuracy": c / 4}
                for c in range(5)
            ],
            "scores": [one | score | {"better": "larger"}],
            "messages": [
                one | message,
                one | message | {"client": 1},
                one | message | {"direction": "down", "bytes": 512, "raw_bytes": 512, "parts": 2},
            ],
            "hosts": [one | {"host": 0, "node": "here", "rss_mb": 100 * index, "busy_s": 1.5, "clients": 2}],
        }
        writer.write(index, tables)
    writer.close()
    (folder / "config.yaml").write_text(header + yaml.safe_dump(RECIPE | changes))
    versions = {"rayfed-kd": "0.0.1", "torch": "9.9", "numpy": "8.8"}
    (folder / "options.yaml").write_text(yaml.safe_dump({"paper": paper}))
    (folder / "environment.json").write_text(json.dumps({"packages": versions, "engine": "local"}))
    counts = {"client": [0, 0, 1, 1], "class": ["cat", "dog"] * 2, "samples": [3, 0, 1, 6]}
    pq.write_table(pa.table(counts), folder / "classes.parquet")
    if status is not None:
        (folder / "summary.json").write_text(json.dumps({"status": status, "rounds": rounds}))
    return folder


def report(*folders):
    to = folders[0].parent / "out" / "report.html"
    assert write_report(*folders, to=to) == [to, to.with_suffix(".md")]
    return Page(to)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return report(made(tmp_path_factory.mktemp("report") / "one"))


def test_metrics_are_the_last_the_best_and_the_mean(page):
    """(.5 + .8 + .6) / 3 = .6333; of FM the least is the best, (.04 + .01 + .03) / 3 = .02667.

    Macro-F1 is 1/8, 2/8, 3/8; the best round is that of AMP.
    """
    assert page.table("run", "model", "metric") == [
        ["one", "global", "AMP %", "60.00", "80.00", "63.33", "2"],
        ["one", "global", "FM", "0.0300", "0.0100", "0.0267", "2"],
        ["one", "global", "local_macro_f1", "0.3750", "0.2500", "0.2500", "2"],
    ]


def test_mean_says_of_how_many_evaluations_it_is(page, tmp_path):
    def headings(found):
        return [table[0][5] for table in found.tables if table[0][:3] == ["run", "model", "metric"]]

    assert headings(page) == ["mean of last 3 evaluations"]
    two = report(made(tmp_path / "one"), made(tmp_path / "two", rounds=2))
    assert headings(two) == ["mean of last 2 to 3 evaluations"]


def test_client_accuracies_are_quartiles_of_the_last_round(page):
    shown = ["5", "0.00", "25.00", "50.00", "75.00", "100.00", "50.00"]
    assert page.table("run", "model", "clients") == [["one", "global", *shown]]


def test_bytes_are_those_of_the_messages(page):
    """Two replies of a MiB and 512 bytes down in two messages to one client in each of three rounds."""
    assert page.table("run", "kind", "direction") == [
        ["one", "weights", "down", "1,536", "0.00", "0.000", "6"],
        ["one", "weights", "up", "6,291,456", "6.00", "2.000", "6"],
    ]


def test_bytes_without_codec_are_shown_where_one_made_fewer_of_them(tmp_path):
    """Two replies of 4 MiB in each of three rounds, each of which took one."""
    found = report(made(tmp_path / "one", raw=4 * MIB))
    assert [row[-1] for row in found.table("run", "kind", "direction")] == ["0.00", "24.00"]


def test_time_is_split_by_phase_with_a_rest(page):
    """Nine seconds: three rounds of 0.25, 2, 0.5 and 0.125; 9 - 8.625 is the rest."""
    shown = ["9.00", "0.75", "6.00", "1.50", "0.38", "0.38", "7.5"]
    assert page.table("run", "rounds", "all") == [["one", "3", *shown]]


def test_hosts_show_their_busy_share_and_most_memory(page):
    assert page.table("run", "host") == [["one", "0", "here", "3", "6", "4.50", "50.0", "300"]]


def test_logged_values_and_dropped_replies_are_told(page):
    """Of 1, 2 and 3 replies 0, 2 and 2 are used, of staleness 2 and 3: 10 / 4. NaN is no least or most."""
    ce, kl = page.table("run", "name")
    assert (ce, kl) == (["one", "ce", "2", "0.666667", "0.666667", "2"], ["one", "kl", "nan", "3", "2", "3"])
    assert page.table("run", "status") == [["one", "finished", "never", "6", "2", "2", "2.500"]]


def test_partition_has_clients_by_classes(page):
    assert page.table("client", "all") == [["0", "3", "3", "0"], ["1", "7", "1", "6"]]


def test_heading_names_method_paper_recipe_seed_status_and_versions(page):
    facts = page.pairs()
    assert facts["method"] == "fedavg"
    assert "McMahan et al. 2017" in facts["paper"]
    assert facts["recipe"] == "Table 2 of Atapour et al. 2024."
    assert (facts["seed"], facts["status"]) == ("7", "finished")
    assert facts["versions"] == "Python not noted, rayfed-kd 0.0.1, torch 9.9, numpy 8.8"


def test_command_is_shown_as_one_types_it():
    assert _command(["/home/me/venv/bin/rayfed-kd", "run", "a b"]) == "rayfed-kd run 'a b'"
    assert _command([]) == ""


def test_run_keeps_its_recipes_header_and_its_classes(tmp_path):
    small = {**THREE_CLIENTS, "rounds": 1, "sampling": {"count": 1}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("# First line.\n# Second.\n" + yaml.safe_dump(small))
    folder = rayfed_kd.run(recipe, [f"results.folder={tmp_path / 'run'}"], local=True).folder
    assert (folder / "config.yaml").read_text().startswith("# First line.\n# Second.\nmethod:\n")
    rayfed_kd.resume(folder, ["rounds=2"], local=True)
    assert load_recipe(folder / "config.yaml").header == "# First line.\n# Second."
    labels = np.asarray(rayfed_kd.prepare(recipe).setting.dataset.train.labels)
    expected = Partition.load(folder / "partition.parquet", len(labels)).counts(labels, 10)
    found = pq.read_table(folder / "classes.parquet")["samples"].to_numpy().reshape(3, 10)
    assert np.array_equal(found, expected)
    shown = report(folder)
    assert shown.table("run", "status")[0][:3] == ["run", "finished", "1"]  # went on after round 1


def test_markdown_has_the_same_tables(page, tmp_path):
    folder = made(tmp_path / "a|b*c_d")
    found = report(folder)
    text = (tmp_path / "out" / "report.md").read_text()
    tables = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = [re.split(r"(?<!\\) \| ", line.strip()[1:-1]) for line in block.splitlines()]
        tables.append([[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in line] for line in lines])
        assert set("".join(tables[-1].pop(1))) <= set("- :")
    tables = [table[1:] if not any(table[0]) else table for table in tables]
    assert tables == found.tables


def test_page_fetches_nothing(page):
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "base")
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,")), (tag, name)
        assert not re.search(r"url\((?!#)|@import", json.dumps(attributes))
    assert not re.search(r"url\(|@import", page.text)


def test_every_reference_in_the_page_has_its_one_target(page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = re.findall(r"url\(#([^)]+)\)", json.dumps(page.tags))
    named += [a["href"][1:] for _, a in page.tags if a.get("href", "").startswith("#")]
    named += [a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a]
    assert len(named) > 50
    assert set(named) <= set(ids)


def test_tables_and_pictures_are_told_to_those_who_do_not_see_them(page):
    headers = [attributes for tag, attributes in page.tags if tag == "th"]
    assert {attributes["scope"] for attributes in headers} == {"row", "col"}
    pictures = [a for tag, a in page.tags if tag == "svg" and "aria-hidden" not in a]
    assert len(pictures) >= 8
    assert all(a["role"] == "img" and a["aria-labelledby"].endswith("-title") for a in pictures)


def test_labels_are_text_and_never_markup(tmp_path):
    label, header = '<img src=x onerror="alert(1)"> & $a$', "# </pre><script>alert(2)</script>\n"
    found = report(made(tmp_path / label, header=header), made(tmp_path / "other"))
    assert not any(tag in ("img", "script") for tag, _ in found.tags)
    assert found.text.count(label) > 5
    assert "</pre><script>alert(2)</script>" in found.text


@pytest.mark.parametrize(
    ("rounds", "noted", "status"),
    [
        (2, None, "not ended, 2 of 3 rounds: it still runs, or was killed"),
        (0, None, "not ended, 0 of 3 rounds: it still runs, or was killed"),
        (2, {"status": "interrupted", "rounds": 2}, "interrupted, 2 of 3 rounds"),
        (1, {"status": "failed", "rounds": 1}, "failed, 1 of 3 rounds"),
        (3, {"status": "finished", "rounds": 3}, "finished"),
        (2, {"status": "interrupted", "rounds": 1}, "gone on with and not ended, 2 of 3 rounds"),
        (2, {"status": "finished", "rounds": 2}, "gone on with and not ended, 2 of 3 rounds"),
    ],
)
def test_run_is_reported_as_what_became_of_it(tmp_path, rounds, noted, status):
    folder = made(tmp_path / "one", rounds=rounds, status=None)
    if noted is not None:
        (folder / "summary.json").write_text(json.dumps(noted))
    found = report(folder)
    assert found.pairs()["status"].startswith(status)
    assert ("Metrics by round" in found.text) == (rounds > 0)


@pytest.mark.pictures
def test_what_runs_share_is_told_once_and_seeds_of_a_row_share_a_look(tmp_path):
    study = tmp_path / "study"
    for seed in (1, 2):
        made(study / f"A-seed{seed}", seed=seed)
    made(study / "B-seed1.running", rounds=1, status=None, seed=1)
    found = report(study)
    rows = [tuple(row[:2]) for row in found.table("run", "seed")]
    assert rows == [("A-seed1", "1"), ("A-seed2", "2"), ("B-seed1.running", "1")]
    assert found.pairs()["method"] == "fedavg"
    assert "The comparison was not ended" in found.text
    used = {style for _, a in found.tags for style in re.findall(r"var\(--s\d\)", a.get("style", ""))}
    legend = [a["stroke"] for tag, a in found.tags if tag == "line"][:2]
    assert legend == ["var(--s0)", "var(--s1)"]
    assert set(legend) <= used


def test_study_gives_the_page_its_title(tmp_path):
    made(tmp_path / "study" / "A-seed1")
    text = "Two methods; last round, one seed.\n\n| run | AMP |\n| --- | --- |\n| A | 5 |\n"
    (tmp_path / "study" / "comparison.md").write_text(text)
    report(tmp_path / "study")
    assert (tmp_path / "out" / "report.md").read_text().startswith("# Two methods\n")


def test_runs_of_one_name_are_told_apart(tmp_path):
    first, second = made(tmp_path / "x" / "run"), made(tmp_path / "y" / "run", seed=8)
    rows = report(first, second, first).table("run", "seed")
    assert [row[0] for row in rows] == [str(first), str(second)]


def test_comparison_shows_its_own_table_and_the_studys_published_rows(tmp_path):
    base = write_yaml(tmp_path / "base.yaml", {**THREE_CLIENTS, "rounds": 1, "sampling": {"count": 1}})
    content = {"base": str(base), "folder": str(tmp_path / "runs"), "title": "T", "runs": [{"label": "A b"}]}
    content["published"] = [{"paper": "fedd2s", "table": "2", "where": {"dataset": "CIFAR-10", "alpha": 0.1}}]
    comparison = compare(Study.model_validate(content), run=run_locally())
    write_comparison(comparison, tmp_path / "runs")
    found = report(tmp_path / "runs")
    ours = next(t for t in found.tables if t[0] == main_table(comparison).header)
    assert ours[1:] == main_table(comparison).rows
    assert ["FedD2S", "UA 77.47 ± 0.29"] in found.table("system", "as printed")
    assert caption(comparison) in found.text


def searched(folder):
    """Four trials: the second is the best that did not fail."""
    space = {"method.prox": {"uniform": [0.0, 1.0]}, "local.epochs": {"choice": [1, 2]}}
    recipe = load_recipe(RECIPE).model_dump()
    search = SearchFolder(folder)
    records = [
        TrialRecord(0, {"method.prox": 0.25, "local.epochs": 1}, "stopped", 1),
        TrialRecord(1, {"method.prox": 0.5, "local.epochs": 2}, "finished", 3),
        TrialRecord(2, {"method.prox": 1.0, "local.epochs": 1}, "failed", 2, "round 3: <NaN>"),
        TrialRecord(3, {"method.prox": 0.125, "local.epochs": 1}),
    ]
    with search.claimed(SearchSettings(recipe, space, "amp/global", "random", "asha", {}), resume=False):
        for record in records[:3]:
            made(search.trial(record.number), rounds=record.round)
        for record in records:
            search.write_record(record)
    return folder


def test_search_shows_every_trial_and_its_best_one_as_a_run(tmp_path):
    found = report(searched(tmp_path / "tune-x"))
    trials = found.table("trial", "status", "prox", "local.epochs", "best (%)", "in round", "last (%)")
    shown = [" ".join(row[:4]) for row in trials]
    assert shown == ["1 finished 0.5 2", "0 stopped 0.25 1", "3 running 0.125 1", "2 failed 1 1"]
    best, last = 100 * max(AMP), 100 * AMP[2]
    assert trials[0][4:] == [f"{best:.2f}", "2", f"{last:.2f}", "3", "9.0"]
    assert trials[1][4:] == [f"{100 * AMP[0]:.2f}", "1", f"{100 * AMP[0]:.2f}", "1", "3.0"]
    assert trials[2][4:] == ["", "", "", "0", "0.0"]
    assert found.table("trial", "error") == [["2", "round 3: <NaN>"]]
    assert found.table("coefficient") == [
        ["method.prox", "uniform", "[0.0, 1.0]", "0.5"],
        ["local.epochs", "choice", "[1, 2]", "2"],
    ]
    assert "4 trials, 1 finished, 1 stopped early; 18 s in rounds" in found.text
    # Of the trials only the best one has its bytes and hosts told.
    folders = [row[1] for table in found.tables for row in table if row[0] == "folder"]
    assert folders == [str(tmp_path / "tune-x/trials/00001")]
    assert sum(tag == "figure" for tag, _ in found.tags) > 4


def test_search_without_a_value_is_a_page_too(tmp_path):
    folder = tmp_path / "tune-x"
    search = SearchFolder(folder)
    recipe, space = load_recipe(RECIPE).model_dump(), {"local.epochs": {"choice": [1, 2]}}
    with search.claimed(SearchSettings(recipe, space, "amp/global", "grid", "fifo", {}), resume=False):
        search.write_record(TrialRecord(0, {"local.epochs": 1}, "failed", 0, "no such thing"))
    found = report(folder)
    assert "No trial has a value." in found.text
    assert found.table("trial", "error") == [["0", "no such thing"]]


def test_search_of_another_form_is_refused(tmp_path):
    (tmp_path / "search.yaml").write_text("recipe: {}\nsteps: 3\n")
    with pytest.raises(RecipeError, match=r"search.yaml: damaged, or of another version"):
        report(tmp_path)


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="nowhere: no such folder"):
        report(tmp_path / "nowhere")
    (tmp_path / "study").mkdir()
    with pytest.raises(RecipeError, match=r"study holds no run: .* none one or two levels below"):
        report(tmp_path / "study")


def test_study_of_several_tables_is_one_page(tmp_path):
    for table in ("alpha-1", "alpha-2"):
        made(tmp_path / "study" / table / "A-seed1")
        text = f"| run | AMP |\n| --- | --- |\n| A {table} | 5 |\n"
        (tmp_path / "study" / table / "comparison.md").write_text(text)
    found = report(tmp_path / "study")
    for table in ("alpha-1", "alpha-2"):
        assert f"Comparison {table}" in found.text
        assert [["run", "AMP"], [f"A {table}", "5"]] in found.tables


def test_older_forms_of_a_run_are_refused_with_their_version(tmp_path):
    folder = made(tmp_path / "one")
    for part in (folder / "tables" / "hosts").iterdir():
        pq.write_table(pq.read_table(part).drop_columns(["client_ids"]), part)
        report(folder)  # which needs no ids
        pq.write_table(pq.read_table(part).drop_columns(["gpu_mb"]), part)
    with pytest.raises(RecipeError, match=r"hosts has no column gpu_mb; .* rayfed-kd 0\.0\.1"):
        report(folder)
    made(tmp_path / "two", teacher="big")
    with pytest.raises(RecipeError, match=r"teacher.*begun with rayfed-kd 0\.0\.1"):
        report(tmp_path / "two")


def test_damaged_table_is_refused_by_name(tmp_path):
    folder = made(tmp_path / "one")
    next((folder / "tables" / "rounds").iterdir()).write_bytes(b"PAR1 cut off")
    with pytest.raises(RecipeError, match="one: table rounds cannot be read"):
        report(folder)


def test_page_needs_the_name_of_one(tmp_path):
    with pytest.raises(RecipeError, match=r"--to .*page\.txt: expected a name that ends in \.html"):
        write_report(made(tmp_path / "one"), to=tmp_path / "page.txt")


OWN = {
    section: {"name": "own_by_folder:Object"} for section in ("method", "model", "data", "partition", "clock")
} | {
    "codec": {"up": {"weights": "own_by_folder:Object"}},
    "schedule": {"name": "own_by_folder:Object", "staleness": {"name": "own_by_folder:Object"}},
}


@pytest.fixture
def never_imported(own_module):
    """A module that a folder names; importing it ends the test."""
    own_module("own_by_folder", "raise SystemExit('imported')")


def test_report_imports_nothing_that_a_run_names(never_imported, tmp_path):
    found = report(made(tmp_path / "one", paper="Doe et al. 2026", **OWN))
    assert (found.pairs()["method"], found.pairs()["paper"]) == ("own_by_folder:Object", "Doe et al. 2026")


def test_run_of_an_earlier_version_has_no_paper(tmp_path):
    folder = made(tmp_path / "one")
    (folder / "options.yaml").unlink()
    assert "paper" not in report(folder).pairs()


def test_report_imports_nothing_that_a_search_names(never_imported, tmp_path):
    folder = searched(tmp_path / "tune-x")
    for file in [folder / "search.yaml", *folder.glob("trials/*/config.yaml")]:
        content = yaml.safe_load(file.read_text())
        content.get("recipe", content).update(OWN)
        file.write_text(yaml.safe_dump(content))
    assert report(folder).tables


@pytest.mark.parametrize("name", sorted(set(SCHEMAS) - {"privacy"}))
def test_table_is_read_without_importing_what_its_folder_names(never_imported, tmp_path, name):
    assert read_table(made(tmp_path / "one", **OWN) / "tables", name).num_rows


def test_help_loads_neither_templates_nor_pictures():
    code = "from click.testing import CliRunner\nfrom rayfed_kd.cli.main import commands\n"
    code += "assert CliRunner().invoke(commands, ['report', '--help']).exit_code == 0"
    assert loaded_after(code, "torch", "ray", "jinja2", "matplotlib") == []


def test_any_key_in_which_recipes_differ_is_told(tmp_path):
    """Rows with and without codec, that are evaluated in every round or in every second one."""
    coded = made(tmp_path / "coded", codec={"up": {"weights": {"name": "cast", "to": "fp16"}}})
    seldom = made(tmp_path / "seldom", evaluation={"every": 2})
    rows = {row[0]: row for row in report(coded, seldom).table("run", "codec", "evaluation.every")}
    assert rows["coded"][1:3] == ["up weights [cast (to fp16)]", "1"]
    assert rows["seldom"][1:3] == ["", "2"]


def test_recipe_of_a_row_is_shown_once_with_its_seeds(tmp_path):
    study = tmp_path / "study"
    for label, seed, epochs in (("A", 1, 1), ("A", 2, 1), ("B", 1, 1), ("B", 2, 3)):
        own = {"local": {"epochs": epochs}, "results": {"folder": f"runs/{label}-seed{seed}"}}
        made(study / f"{label}-seed{seed}", seed=seed, **own)
    text = (write_report(study, to=tmp_path / "page.html")[1]).read_text()
    titles = [line for line in text.splitlines() if line.startswith("### config.yaml of ")]
    assert titles == [
        "### config.yaml of A, seeds 1 and 2: that of seed 1",
        "### config.yaml of B-seed1",
        "### config.yaml of B-seed2",
    ]


def test_page_of_one_folder_lies_inside_it_and_of_several_in_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = made(tmp_path / "first"), made(tmp_path / "second")
    assert rayfed_kd.report(first) == [first / "report.html", first / "report.md"]
    assert rayfed_kd.report(first, second)[0].resolve() == tmp_path / "report.html"


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_report_replaces_a_report_about_the_same_folders_and_no_other_file(tmp_path, name):
    first, second = made(tmp_path / "first"), made(tmp_path / "second")
    to = tmp_path / "report.html"
    rayfed_kd.report(first, second, to=to)
    rayfed_kd.report(second, first, to=to)  # the same folders
    (tmp_path / name).write_text("mine")
    with pytest.raises(
        RecipeError, match=rf"{name} is there, and is no report about the same folders; .*--force"
    ):
        rayfed_kd.report(first, second, to=to)
    assert (tmp_path / name).read_text() == "mine"
    rayfed_kd.report(first, second, to=to, force=True)
    before = to.read_text()
    with pytest.raises(RecipeError, match="is no report about the same folders"):
        rayfed_kd.report(first, to=to)
    assert to.read_text() == before


def test_folder_may_move_with_its_page(tmp_path):
    rayfed_kd.report(made(tmp_path / "here"))
    (tmp_path / "here").rename(tmp_path / "there")
    assert rayfed_kd.report(tmp_path / "there") == [
        tmp_path / "there" / f"report.{kind}" for kind in ("html", "md")
    ]


def test_command_says_where_it_wrote_and_forces_and_draws_over_what_it_is_told(tmp_path):
    made(tmp_path / "one")
    done = run_command("report", "one", "--against", "bytes_down", folder=tmp_path)
    assert done.stdout.split() == ["one/report.html", "one/report.md"], done.stderr
    assert "AMP %, by MiB sent down" in (tmp_path / "one" / "report.html").read_text()
    (tmp_path / "x.html").write_text("mine")
    refused = run_command("report", "one", "--to", "x.html", folder=tmp_path)
    assert (refused.returncode, "x.html is there" in refused.stderr) == (2, True)
    done = run_command("report", "one", "--to", "x.html", "--force", folder=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["x.html", "x.md"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("+1.20 [-0.21, +2.60], undecided", "+1.20 [-0.21, +2.60], undecided"),
        ("`--add-seeds N` runs them", "`--add-seeds N` runs them"),
        ("5 > 4 < 6", "5 > 4 < 6"),
        ("a|b", r"a\|b"),
        ("[x](y) [x][y]", r"[x\](y) [x\][y]"),
        ("<img src=x>", "&lt;img src=x>"),
        ("</p> &lt; R&D &#60;", "&lt;/p> &amp;lt; R&D &amp;#60;"),
        ("a\n\n# b", "a # b"),
        ("**bold**", r"\*\*bold\*\*"),
        (r"a\b \* c", r"a\b \\\* c"),
    ],
)
def test_markdown_escapes_only_what_it_would_not_show(text, shown):
    assert escaped(text) == shown
    assert unescaped(shown) == " ".join(text.split())


def test_columns_of_words_stand_on_the_left_and_of_numbers_on_the_right(tmp_path):
    rows = [("A", "shown", "+1.2 [1, 2]", ""), ("B", "not shown; 8 more", "-3 [-4, -2]", "inf")]
    table = TextTable("T", ("claim", "verdict", "difference", "epsilon"), rows)
    assert table.words == [True, True, False, False]
    assert TextTable("T", ("a", "b"), [("x", "")]).words == [True, False]
    assert TextTable("T", ("a", "b"), [("x", "not reached"), ("y", "3.0")]).words == [True, False]
    made(tmp_path / "study" / "A-seed1")
    text = "Claims:\n\n| claim | number | verdict |\n| --- | --- | --- |\n| A above B | +1 | shown |\n"
    (tmp_path / "study" / "comparison.md").write_text(text)
    html, markdown = (path.read_text() for path in write_report(tmp_path / "study", to=tmp_path / "x.html"))
    assert "| claim | number | verdict |\n| --- | ---: | --- |" in markdown
    assert '<td>+1</td><td class="words">shown</td>' in html


def two_models(folder, **changes):
    """A run of which the server's model comes before the clients', as its method names them."""
    made(folder, **changes)
    for name in ("metrics", "clients", "scores"):
        for part in (folder / "tables" / name).iterdir():
            part.unlink()
    writer = TableWriter(folder / "tables")
    for index in (1, 2, 3):
        one = {"round": index, "sim_s": 2.5 * index, "fm": 0.0}
        rows = [one | {"model": model, "amp": 0.1 * index} for model in ("server", "personal")]
        writer.write(index, {"metrics": rows})
    writer.close()
    return folder


def test_models_stand_in_the_methods_own_order(tmp_path):
    rows = report(two_models(tmp_path / "one")).table("run", "model", "metric")
    assert list(dict.fromkeys(row[1] for row in rows)) == ["server", "personal"]


def noised(folder, epsilon, **changes):
    """A run that has spent `epsilon` a round."""
    made(folder, **changes)
    writer = TableWriter(folder / "tables")
    for index in (1, 2, 3):
        words = {"neighbours": "replace one client", "noise": "server", "sampling": "x", "accountant": "y"}
        row = {"round": index, "sim_s": 2.5 * index, "epsilon": epsilon * index, "delta": 1e-5, "releases": 1}
        writer.write(index, {"privacy": [row | words | {"noise_multiplier": 1.0}]})
    writer.close()
    return folder


def against(folders, *asked):
    return against_section(read_sources(folders).runs, asked)


def test_several_rows_are_drawn_over_bytes_and_private_ones_over_epsilon(tmp_path):
    """Each round sends 2 MiB up and 1 down, so 9 in all; AMP is .5, .8, .6."""
    plain, private = made(tmp_path / "plain"), noised(tmp_path / "private", 2.0)
    section = against([plain, private])
    assert [picture.title for picture in section.pictures] == [
        "AMP %, by MiB sent, up and down",
        "AMP %, by epsilon",
    ]
    assert section.notes[1:] == ["epsilon: plain (no finite epsilon): dotted, at the last value."]
    runs = read_sources([plain, private]).runs
    curves = series_curves(runs, "amp")
    (seed,) = curves["plain"]
    assert (seed.rounds, seed.values) == ([1, 2, 3], [0.5, 0.8, 0.6])
    assert [cost.along("bytes") for cost in seed.costs] == [3.0, 6.0, 9.0]
    (seed,) = curves["private"]
    assert [cost.along("epsilon") for cost in seed.costs] == [2.0, 4.0, 6.0]
    assert "Against costs" in report(plain, private).text


def test_metric_over_costs_is_one_that_most_models_have(tmp_path):
    """One run has an official test, of a model that has AMP as well; the other's clients have AMP alone."""
    both = made(tmp_path / "both")
    for part in (both / "tables" / "metrics").iterdir():
        table = pq.read_table(part)
        place = table.schema.get_field_index("server_accuracy")
        pq.write_table(table.set_column(place, "server_accuracy", table["amp"]), part)
    assert _headline(read_sources([both]).runs) == "server_accuracy"
    assert _headline(read_sources([both, made(tmp_path / "clients")]).runs) == "amp"


def test_one_run_without_privacy_has_no_picture_over_costs_but_when_asked_for(tmp_path):
    one = made(tmp_path / "one")
    assert against([one]) is None
    assert [picture.title for picture in against([one], "bytes_up", "sim_s").pictures] == [
        "AMP %, by MiB sent up",
        "AMP %, by simulated seconds",
    ]
    with pytest.raises(RecipeError, match="--against epsilon: no run has epsilon"):
        against([one], "epsilon")
    with pytest.raises(RecipeError, match="--against: 'byte' is unknown"):
        against([one], "byte")


def test_rows_stand_in_the_studys_order(tmp_path):
    """Z before A, as in the table; what the table lacks comes last."""
    for name in ("A-b-seed1", "Z-seed2", "Z-seed1", "New-seed1"):
        made(tmp_path / "study" / name)
    text = "T.\n\n| run | AMP |\n| --- | --- |\n| Z (global) | 1 |\n| Z (oca) | 1 |\n| A b (global) | 1 |\n"
    (tmp_path / "study" / "comparison.md").write_text(text)
    labels = [run.label for run in read_sources([tmp_path / "study"]).runs]
    assert labels == ["Z-seed1", "Z-seed2", "A-b-seed1", "New-seed1"]


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("last", "ticks"), [(0.9, {"0.2", "0.4", "0.6", "0.8"}), (15.0, {"0.1", "1", "5", "10"})]
)
def test_picture_over_costs_has_plain_numbers_at_its_ticks_and_a_logarithm_beyond_a_decade(last, ticks):
    lines = [Line(0, [0.1, last], [1.5, 2.5]), Line(1, [0.1, last], [1.7, 1.7], dotted=True)]
    body = lines_picture("T", lines, "MiB", "D", costs=True).body
    shown = set(re.findall(r"<text[^>]*>([^<]*)</text>", body))
    assert ticks <= shown
    assert not [text for text in shown if "$" in text]
