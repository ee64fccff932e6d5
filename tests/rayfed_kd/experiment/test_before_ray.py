"""What a run checks before Ray starts."""

import subprocess
import sys


def test_checks_before_ray_starts_load_neither_torch_nor_ray(tmp_path):
    """Torch takes a second to load, which Ray's start would wait for."""
    code = f"""
import sys
import rayfed_kd.experiment.running
from rayfed_kd.experiment.resumability import check_unused
from rayfed_kd.recipe.loading import load_recipe
check_unused(load_recipe("quickstart", ["results.folder={tmp_path}/run"]).results.path)
assert not {{"torch", "ray"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
