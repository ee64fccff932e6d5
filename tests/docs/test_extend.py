"""What the pages on your own method, model, data, partition, codec and metric show runs as it stands."""

import re

import numpy as np
import pytest
from pages import PAGES, code_blocks, run_quickstart
from paths import ROOT

import rayfed_kd

SHORT = ["data.fraction=0.2", "rounds=1", "local.epochs=1"]
FILES = {
    "extend/method.md": "my_fedprox.py",
    "extend/model.md": "my_models.py",
    "extend/data.md": "my_data.py",
    "extend/partition.md": "my_partitions.py",
    "extend/codec.md": "my_half.py",
    "extend/metric.md": "my_metrics.py",
}
COMMAND = re.compile(
    r"^ {4}rayfed-kd run configs/quickstart\.yaml ([\w.]+)='(.+?)'(?: --local)?$", re.MULTILINE
)


def own(page, folder):
    """Writes the page's file into a folder; the override by which its command names what is in it."""
    shown, *_ = code_blocks(PAGES[page], "python")
    name = FILES[page]
    assert name in PAGES[page]
    (folder / name).write_text(shown)
    commands = [f"{key}={value}" for key, value in COMMAND.findall(PAGES[page])]
    return [command for command in commands if f"{name.removesuffix('.py')}:" in command][-1]


@pytest.mark.parametrize("page", FILES)
def test_what_is_shown_runs_as_it_is_told(page, tmp_path):
    done = run_quickstart(tmp_path, own(page, tmp_path), "--local", *SHORT)
    assert done.returncode == 0, done.stderr


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


def test_own_method_keeps_the_contract(tmp_path, monkeypatch):
    own("extend/method.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    _, check = code_blocks(PAGES["extend/method.md"], "python")
    assert "check_method(" in check
    exec(check, {})


def test_own_method_with_mu_zero_is_fedavg_bit_for_bit(tmp_path, monkeypatch):
    own("extend/method.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    vectors = []
    for index, method in enumerate(("{name: my_fedprox:FedProx, mu: 0.0}", "{name: fedavg}")):
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
