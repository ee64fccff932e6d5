"""The arrows of the house: who may import whom, and what a light command loads."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a command starts; the rest below is free of Ray and of methods.
MAY_IMPORT_CLUSTER = {f"rayfed_kd/{name}.py" for name in ("cli", "preparation", "experiment", "trials")}
CORE = sorted(ROOT.glob("rayfed_kd/**/*.py"))


def imported(path):
    """Top-level packages that a file imports anywhere, except for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf8"))
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_core_knows_no_ray_and_no_method(path):
    name = str(path.relative_to(ROOT))
    found = imported(path)
    assert "ray" not in found
    assert "cluster" not in found or name in MAY_IMPORT_CLUSTER
    assert "algorithms" not in found or name in MAY_IMPORT_CLUSTER


@pytest.mark.parametrize("path", sorted(ROOT.glob("algorithms/*.py")), ids=lambda p: p.name)
def test_methods_import_the_core_and_torch_only(path):
    allowed = {"rayfed_kd", "torch", "pydantic", "__future__"} | set(sys.stdlib_module_names)
    assert imported(path) <= allowed


@pytest.mark.parametrize("path", sorted(ROOT.glob("cluster/*.py")), ids=lambda p: p.name)
def test_cluster_knows_no_method(path):
    assert "algorithms" not in imported(path)


def loaded_after(code):
    script = f"{code}\nimport sys\nprint([m for m in ('torch', 'ray') if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_loads_neither_torch_nor_ray():
    assert loaded_after("import rayfed_kd, algorithms").strip() == "[]"


def test_help_loads_neither_torch_nor_ray():
    code = "from click.testing import CliRunner\nfrom rayfed_kd.cli import commands"
    code += "\nassert CliRunner().invoke(commands, ['run', '--help']).exit_code == 0"
    assert loaded_after(code).strip() == "[]"


def test_help_answers_at_once():
    """Half a second on a quiet machine; the bound leaves room for a loaded one."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "rayfed_kd", "--help"], check=True, capture_output=True)
    assert time.perf_counter() - started < 3


def test_importing_methods_loads_no_ray():
    assert "ray" not in loaded_after("import algorithms.fedavg, algorithms.fedkf")
