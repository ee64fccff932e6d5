"""What the pages on your own method, model, data, partition, codec and metric show runs as it stands."""

import re

import numpy as np
import pytest
from pages import PAGES, README, code_blocks, run_quickstart
from paths import ROOT

import rayfed_kd

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
}
TEXTS = {"README.md": README, **PAGES}
COMMAND = re.compile(
    r"^ {4}rayfed-kd run configs/quickstart\.yaml ([\w.]+)='(.+?)'(?: --local)?$", re.MULTILINE
)


def own(page, folder):
    """Writes the page's file into a folder; the override by which its command names what is in it."""
    text = TEXTS[page]
    shown, *_ = code_blocks(text, "python")
    name = FILES[page]
    assert name in text
    (folder / name).write_text(shown)
    commands = [f"{key}={value}" for key, value in COMMAND.findall(text)]
    return [command for command in commands if f"{name.removesuffix('.py')}:" in command][-1]


@pytest.mark.parametrize("page", FILES)
def test_what_is_shown_runs_as_it_is_told(page, tmp_path):
    done = run_quickstart(tmp_path, own(page, tmp_path), "--local", *SHORT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "options", ["class_weights: [2, 1, 1, 1, 1, 1, 1, 1, 1, 1]", "steps: sam", "steps: lbfgs"]
)
def test_other_losses_and_steps_change_the_result(options, tmp_path, monkeypatch):
    own("extend/training.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    recipe = {
        "model": {"name": "mlp", "hidden": 8},
        "data": {"name": "digits", "fraction": 0.2},
        "partition": {"name": "iid", "clients": 2},
        "sampling": {"fraction": 1.0},
        "rounds": 1,
    }
    vectors = []
    for place, chosen in enumerate(("smoothing: 0", options)):
        changes = [f"method={{name: my_training:Fitted, {chosen}}}", f"results.folder=run{place}"]
        vectors.append(rayfed_kd.run(recipe, changes, local=True).models["global"])
    assert np.isfinite(vectors[1]).all()
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3


def test_early_stopping_and_trackers_run_as_they_are_shown(tmp_path, monkeypatch, capsys):
    _, stopping, tracking = code_blocks(PAGES["extend/training.md"], "python")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(stopping.replace('"rounds": 200', '"rounds": 60'), names)
    assert 4 <= names["rounds"] < 60
    assert names["rounds"] == int(capsys.readouterr().out.split()[-1])
    exec(tracking, names)
    assert len(re.findall(r"'aca/amp': 0\.\d+", capsys.readouterr().out)) == 2


@pytest.mark.slow
def test_own_method_runs_on_ray(tmp_path):
    done = run_quickstart(tmp_path, own("extend/method.md", tmp_path), *SHORT)
    assert done.returncode == 0, done.stderr
    assert "global" in done.stdout


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


def test_half_precision_halves_what_crosses(tmp_path, monkeypatch):
    codec = own("extend/codec.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    runs = [
        rayfed_kd.run(
            ROOT / "configs/quickstart.yaml",
            [c, "method={name: fedavg}", f"results.folder=run{i}", *SHORT],
            local=True,
        )
        for i, c in enumerate((codec, "codec={}"))
    ]
    for direction in ("bytes_up", "bytes_down"):
        half, whole = (run.tables["rounds"][direction].to_pylist() for run in runs)
        assert [2 * count for count in half] == whole
