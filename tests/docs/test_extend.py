"""What README and the pages show runs as it stands: own parts of each kind, and every command."""

import re
import shlex
from contextlib import nullcontext

import numpy as np
import pytest
from command_line import run_command
from pages import PAGES, README, code_blocks, run_quickstart
from paths import ROOT
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.cli.main import commands
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import method_location
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.setting.blueprint import make_method, read_names
from rayfed_kd.tuning.space import read_space

SHORT = ["data.fraction=0.2", "rounds=1", "local.epochs=1"]
FILES = {
    "README.md": "my_kd.py",
    "extend/method.md": "my_fedprox.py",
    "extend/port-a-paper.md": "my_ditto.py",
    "extend/training.md": "my_training.py",
    "extend/model.md": "my_models.py",
    "extend/data.md": "my_data.py",
    "extend/partition.md": "my_partitions.py",
    "extend/codec.md": "my_half.py",
    "extend/metric.md": "my_metrics.py",
    "guide/schedules.md": "my_timing.py",
    "extend/tracker.md": "my_tracker.py",
}
TEXTS = {"README.md": README, **PAGES}


def told(text):
    """The commands of a page: in blocks, also behind another command as `ray job submit`, and in sentences.

    In a sentence a word in capitals stands for what the reader has.
    """
    text = re.sub(r"\\\n\s+", " ", text)
    shown = r"^ {4,}(?:\S.*)?(?:\brayfed-kd|-m rayfed_kd|launch/slurm\.sh) (\w.*)$"
    lines = re.findall(shown, text, re.MULTILINE)
    lines += re.findall(r"^rayfed-kd (\w.*)$", "\n".join(code_blocks(text, "sh")), re.MULTILINE)
    inline = [" ".join(words.split()) for words in re.findall(r"`rayfed-kd\s+(\w+\s[^`]+)`", text)]
    lines += [line for line in inline if not re.search(r"\b[A-Z]{3,}\b|^compare --", line)]
    return [line.replace("STUDY", "fedkf_quickstart") for line in lines]


TOLD = list(dict.fromkeys((page, line) for page, text in TEXTS.items() for line in told(text)))
WRONG = r"alfa=|mi: 1"  # of commands that show how a mistake is answered
COMMAND = re.compile(
    r"^ {4}rayfed-kd run (?:configs/)?quickstart(?:\.yaml)? ([\w.]+)='(.+?)'(?: --local)?$", re.MULTILINE
)


def saved(page, folder):
    """Writes the page's file into a folder; its module's name."""
    (folder / FILES[page]).write_text(code_blocks(TEXTS[page], "python")[0])
    return FILES[page].removesuffix(".py")


def own(page, folder):
    """Writes the page's file into a folder; the override by which its command names what is in it."""
    module = saved(page, folder)
    changes = [f"{key}={value}" for key, value in COMMAND.findall(TEXTS[page])]
    return [change for change in changes if f"{module}:" in change][-1]


def given(page, line, folder, monkeypatch):
    """A command's parameters, in a folder with the files that its page tells to save there."""
    if not (folder / "configs").exists():
        (folder / "configs").symlink_to(ROOT / "configs")
    taken = {"getting-started.md": "extend/method.md"}.get(page, page)  # where the method that it uses stands
    if taken in FILES:
        saved(taken, folder)
    devices = [f"{client},0.01,10,20" for client in range(10)]
    (folder / "devices.csv").write_text(
        "\n".join(["client,seconds_per_sample,up_mbit_s,down_mbit_s", *devices])
    )
    studies = [block for block in code_blocks(TEXTS[page], "yaml") if "\nruns:" in block]
    (folder / "mine.yaml").write_text("".join(studies[:1]))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(ROOT / "examples")  # a command is told to be called there
    monkeypatch.syspath_prepend(folder)
    name, *words = shlex.split(line, comments=True)
    return name, commands.commands[name].make_context(name, words).params


@pytest.mark.parametrize(("page", "line"), TOLD)
def test_every_command_that_is_told_is_taken(page, line, tmp_path, monkeypatch):
    name, words = given(page, line, tmp_path, monkeypatch)
    if name == "compare":
        parts = {option: words[option] for option in ("folder", "tables", "only", "without", "add_seeds")}
        changes = [word for word in words["configs"] if "=" in word and word != "quick=true"]
        sources = [word for word in words["configs"] if "=" not in word]
        assert select_studies(sources, changes, quick="quick=true" in words["configs"], **parts)
    if name == "tune":
        assert read_space(words["space"]).entries
    if name in ("run", "partition", "tune"):
        with pytest.raises(RecipeError, match="is no option") if re.search(WRONG, line) else nullcontext():
            recipe = load_recipe(words["recipe"], words["overrides"])
            read_names(recipe)
            make_method(method_location(recipe), recipe.method)


@pytest.mark.parametrize(
    ("page", "line"),
    [
        pytest.param(page, line, marks=[] if re.search("my_(?!timing)", line) else pytest.mark.slow)
        for page, line in TOLD
        if re.match(r"run (configs/)?quickstart(\.yaml)? ", line)
        and not re.search(rf"{WRONG}|/data|\.pth", line)
    ],
)
def test_what_is_shown_runs_as_it_is_told(page, line, tmp_path, monkeypatch):
    _, words = given(page, line, tmp_path, monkeypatch)
    changes = [word for word in words["overrides"] if not word.startswith("rounds=")]
    done = run_quickstart(tmp_path, *changes, "local.epochs=1", "rounds=3", "--local")
    assert done.returncode == 0, done.stderr


TOGETHER = r"compare (mine\.yaml|fedkf_quickstart)|tune (configs/)?quickstart"


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({page for page, line in TOLD if re.match(TOGETHER, line)}))
def test_comparisons_and_searches_run_as_they_are_told(page, tmp_path, monkeypatch):
    """Those of data that are there, one after another in one folder, with fewer rounds."""
    for line in [line for told_on, line in TOLD if told_on == page and re.match(TOGETHER, line)]:
        name, _ = given(page, line, tmp_path, monkeypatch)
        words = [word for word in shlex.split(line, comments=True) if not word.startswith("rounds=")]
        done = run_command(*words, "rounds=2", *["--local"] * (name == "compare"), folder=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "options", ["class_weights: [2, 1, 1, 1, 1, 1, 1, 1, 1, 1]", "steps: sam", "steps: lbfgs"]
)
def test_other_losses_and_steps_change_the_result(options, tmp_path, monkeypatch):
    own("extend/training.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    vectors = []
    for place, chosen in enumerate(("smoothing: 0", options)):
        # The weights of convolutions are channels-last, which torch's L-BFGS cannot read as one vector.
        changes = [f"method={{name: my_training:Fitted, {chosen}}}", f"results.folder=run{place}"]
        result = rayfed_kd.run(THREE_CLIENTS, changes, local=True, rounds=3, model={"name": "lenet5"})
        vectors.append(result.models["global"])
    assert 1e-3 < np.abs(vectors[0] - vectors[1]).max() < np.inf  # nor is it NaN


def test_early_stopping_and_trackers_run_as_they_are_shown(tmp_path, monkeypatch, capsys):
    _, stopping, tracking = code_blocks(PAGES["extend/training.md"], "python")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(stopping.replace('"rounds": 200', '"rounds": 60'), names)
    assert 4 <= names["rounds"] < 60
    assert names["rounds"] == int(capsys.readouterr().out.split()[-1])
    exec(tracking, names)
    assert len(re.findall(r"'global/amp': 0\.\d+", capsys.readouterr().out)) == 2


@pytest.mark.slow
def test_own_method_runs_on_ray(tmp_path):
    done = run_quickstart(tmp_path, own("extend/method.md", tmp_path), *SHORT)
    assert done.returncode == 0 and "global" in done.stdout, done.stderr


def test_own_methods_wrong_option_gets_the_printed_answer(tmp_path):
    own("extend/method.md", tmp_path)
    done = run_quickstart(tmp_path, "method={name: my_fedprox:FedProx, mi: 1.0}", "--local")
    assert done.returncode == 2
    answer = done.stderr.replace(str(ROOT) + "/", "").strip()
    assert answer in PAGES["extend/method.md"]


@pytest.mark.parametrize("page", ["README.md", "extend/method.md", "extend/port-a-paper.md"])
def test_own_method_keeps_the_contract(page, tmp_path, monkeypatch):
    own(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    (check,) = (block for block in code_blocks(TEXTS[page], "python") if "check_method(" in block)
    exec(check, {})


@pytest.mark.parametrize(
    ("page", "own_method"),
    [
        ("README.md", "{name: my_kd:DistilFromGlobal, coefficient: 0.0}"),
        ("extend/method.md", "{name: my_fedprox:FedProx, mu: 0.0}"),
        ("extend/port-a-paper.md", "{name: my_ditto:Ditto}"),
    ],
)
def test_own_method_without_its_term_is_fedavg_bit_for_bit(page, own_method, tmp_path, monkeypatch):
    own(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    vectors = []
    for index, method in enumerate((own_method, "{name: fedavg}")):
        changes = [f"method={method}", f"results.folder={tmp_path / str(index)}", *SHORT]
        result = rayfed_kd.run(ROOT / "configs/quickstart.yaml", changes, local=True)
        vectors.append(next(iter(result.models.values())))
    assert np.array_equal(*vectors)
