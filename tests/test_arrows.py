"""The arrows of the house hold, and light commands load neither torch nor Ray."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import loaded_after
from paths import ROOT

MOST_ENTRIES = 20


def test_contracts_of_imports_hold():
    """The contracts stand in pyproject.toml; imports for type checking and within functions count."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    linted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("path", sorted(ROOT.glob("algorithms/*.py")), ids=lambda p: p.name)
def test_methods_import_their_two_rooms_torch_and_pydantic_only(path):
    allowed = {"rayfed_kd", "torch", "pydantic", "__future__"} | set(sys.stdlib_module_names)
    tree = ast.parse(path.read_text(encoding="utf8"))
    plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named = [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in (*plain, *named)} <= allowed


@pytest.mark.parametrize("package", ["rayfed_kd", "cluster"])
def test_no_folder_has_more_entries_than_one_looks_over(package):
    for folder in (ROOT / package, *(ROOT / package).rglob("*")):
        # A link stands for a folder beside it, which is counted where it is.
        if folder.is_dir() and not folder.is_symlink() and folder.name != "__pycache__":
            entries = [e for e in folder.iterdir() if e.name != "__pycache__" and not e.is_symlink()]
            assert len(entries) <= MOST_ENTRIES, folder


def test_importing_the_package_loads_neither_torch_nor_ray():
    assert loaded_after("import rayfed_kd, rayfed_kd.algorithms", "torch", "ray") == []


def test_help_loads_neither_torch_nor_ray():
    code = "from click.testing import CliRunner\nfrom rayfed_kd.cli.main import commands"
    code += "\nassert CliRunner().invoke(commands, ['run', '--help']).exit_code == 0"
    assert loaded_after(code, "torch", "ray") == []


def test_help_answers_at_once():
    """Half a second on a quiet machine; the bound leaves room for a loaded one."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "rayfed_kd", "--help"], check=True, capture_output=True)
    assert time.perf_counter() - started < 3


def test_importing_methods_loads_no_ray():
    assert loaded_after("import rayfed_kd.algorithms.fedavg, rayfed_kd.algorithms.fedkf", "ray") == []
