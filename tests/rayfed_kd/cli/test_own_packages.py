"""A user's folder may have packages `algorithms`, `cluster`, `configs`, `runs` and `tests` of its own."""

import json
import os
import subprocess
import sys

from crowded_folder import OWN, crowd


def test_method_in_a_users_package_named_algorithms_is_the_users(tmp_path):
    crowd(tmp_path)
    words = ("run", "quickstart", OWN, "rounds=1", "results.folder=out", "--local")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", "rayfed_kd", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out/summary.json").read_text())["rounds"] == 1
