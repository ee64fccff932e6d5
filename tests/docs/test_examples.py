"""Every script in examples/ runs as it stands, is short, and is listed where readers look."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from pages import PAGES
from paths import ROOT

SCRIPTS = sorted(ROOT.glob("examples/*.py"))
PRINTED = {  # script -> what its output must match, and the files that it writes
    "own_method": (r"fedavg: accuracy 0\.\d+.*\n.*DistilFromGlobal: accuracy 0\.\d+", []),
    "own_data": (r"pictures: accuracy [01]\.\d+\n.*points.csv: accuracy [01]\.\d+", []),
    "inside_dafkd": (r"round 3: .*mean_right 0\.\d+, .*target_sure 0\.\d+", []),
    "heterogeneous_clients": (r"lenet5: accuracy 0\.\d+, 3 clients\n(.*\n)+what travelled: .*logits", []),
    "mlflow_tracker": (r"FINISHED: accuracy 0\.\d+", ["mlflow.db"]),
    "plot": (r"FedAvg: 0\.\d+ after .*\n(.*\n)+FedKF: 0\.\d+ after", ["accuracy.png"]),
    "exported_model": (r"accuracy on all 1797 digits: 0\.\d+; 21386 weights", ["exported.safetensors"]),
}

scripts = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def test_every_script_is_expected_to_print_something():
    assert [path.stem for path in SCRIPTS] == sorted(PRINTED)


@scripts
def test_script_is_a_page_long(script):
    assert 20 <= len(script.read_text().splitlines()) <= 60


@scripts
def test_script_is_listed(script):
    for text in (PAGES["extend/examples.md"], (ROOT / "examples/README.md").read_text()):
        assert script.name in text


@pytest.mark.slow
@scripts
def test_script_runs_as_it_stands(script, tmp_path):
    copy = shutil.copy(script, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, copy], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    pattern, files = PRINTED[script.stem]
    assert re.search(pattern, done.stdout), done.stdout
    assert [name for name in files if not (tmp_path / name).is_file()] == []
