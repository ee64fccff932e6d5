"""What torch.compile needs of a machine, told before anything is compiled."""

import pytest

from rayfed_kd.models.compiling import compiler_fault


def _compiler(tmp_path, monkeypatch, name, script):
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    monkeypatch.setenv("CC", str(program))
    return program


def test_a_machine_whose_compiler_finds_all_headers_is_fine(tmp_path, monkeypatch):
    _compiler(tmp_path, monkeypatch, "g++", "cat > includes; exit 0")
    monkeypatch.chdir(tmp_path)
    assert compiler_fault("cpu") is None
    assert (tmp_path / "includes").read_text() == "#include <Python.h>\n#include <omp.h>\n"


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    fault = compiler_fault("cpu")
    assert "torch.compile needs a compiler, and /nowhere/g++ cannot be run" in fault
    assert "install g++, or name one by CXX" in fault


def test_a_missing_header_is_named(tmp_path, monkeypatch):
    said = "<stdin>:1:10: fatal error: Python.h: No such file or directory"
    program = _compiler(tmp_path, monkeypatch, "g++", f"echo 'In file' >&2; echo '{said}' >&2; exit 1")
    fault = compiler_fault("cpu")
    assert f"torch.compile needs Python's headers and OpenMP, and {program} says: {said}" in fault
    assert "python3-dev" in fault


@pytest.mark.parametrize(
    ("triton", "capability", "told"),
    [
        (None, (9, 0), "needs the package triton for GPUs, and it is not installed"),
        ("there", (6, 1), "needs a GPU of capability 7.0 or more, and this one has 6.1"),
        ("there", (7, 0), None),
        ("there", None, None),
    ],
)
def test_gpus_need_triton_and_a_capability(triton, capability, told, tmp_path, monkeypatch):
    _compiler(tmp_path, monkeypatch, "gcc", "exit 0")
    monkeypatch.setattr("rayfed_kd.models.compiling.find_spec", lambda name: triton)
    fault = compiler_fault("cuda", capability)
    assert fault is None if told is None else told in fault
