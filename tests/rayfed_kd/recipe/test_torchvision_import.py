"""torchvision beside a CPU-only torch: its import is mended, other failures are not hidden."""

import subprocess
import sys

import pytest
import torch

from rayfed_kd.recipe.torchvision_import import import_torchvision, torchvision_state

# What torchvision does where its compiled operators do not load: fakes for operators that do not exist.
WITHOUT_OPERATORS = """
import torch
for operator in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{operator}")(lambda dets, scores, iou: dets)
__version__ = "9.9"
"""


def fake_package(folder, code, monkeypatch):
    """A torchvision that is found first, here and by who names the folder."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(code)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(folder)


def test_import_without_compiled_operators_is_mended(tmp_path, monkeypatch):
    fake_package(tmp_path, WITHOUT_OPERATORS, monkeypatch)
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from rayfed_kd.recipe.torchvision_import import import_torchvision, torchvision_state
        assert import_torchvision() is import_torchvision()
        print(torchvision_state())"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("9.9, built for another torch than ")
    assert "pip install -c constraints.txt --force-reinstall torch torchvision" in done.stdout


def test_import_that_works_is_left_alone(tmp_path, monkeypatch):
    fake_package(tmp_path, "__version__ = '9.9'", monkeypatch)
    monkeypatch.setattr("rayfed_kd.recipe.torchvision_import._DEFINED", [])
    assert torchvision_state() == "9.9, works"
    sys.modules.pop("torchvision")  # not by monkeypatch: it would put the fake back afterwards


def test_other_failures_are_passed_on(tmp_path, monkeypatch):
    fake_package(tmp_path, "raise RuntimeError('disk on fire')", monkeypatch)
    with pytest.raises(RuntimeError, match="disk on fire"):
        import_torchvision()


@pytest.mark.parametrize("fault", ["RuntimeError('operator x')", "OSError('undefined symbol: _ZN')"])
def test_a_build_that_does_not_load_is_told_with_what_to_do(fault, tmp_path, monkeypatch):
    fake_package(tmp_path, f"raise {fault}", monkeypatch)
    told = torchvision_state()
    assert told.startswith(f"does not load beside torch {torch.__version__} (")
    assert "pip install -c constraints.txt --force-reinstall torch torchvision" in told


def test_missing_torchvision_is_a_state(monkeypatch):
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_hooks", [])
    monkeypatch.setattr(sys, "meta_path", [])
    assert torchvision_state() == "missing: pip install -c constraints.txt torchvision"
