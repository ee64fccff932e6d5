"""What `import rayfed_kd` offers in Python: every command, by its name, loaded when it is called."""

import pytest
from command_line import loaded_after

import rayfed_kd
from rayfed_kd.cli.main import commands

# What a command shows on a screen alone.
ON_SCREEN = {"data", "doctor", "methods", "models", "recipes"}


def test_every_command_is_a_function_and_can_be_completed():
    names = set(commands.commands) - ON_SCREEN
    assert names == {"run", "resume", "export", "partition", "compare", "tune", "report"}
    assert names | {"load", "read_table", "prepare", "Result"} <= set(rayfed_kd.__all__)
    assert set(rayfed_kd.__all__) <= set(dir(rayfed_kd))
    assert list(rayfed_kd.__all__) == sorted(rayfed_kd.__all__)
    for name in rayfed_kd.__all__:
        assert getattr(rayfed_kd, name).__name__ == name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'rayfed_kd' has no attribute 'rum'"):
        _ = rayfed_kd.rum


def test_no_room_has_the_name_of_a_function():
    """Importing a room sets it as an attribute: `rayfed_kd.NAME` would no longer be the function."""
    code = "import rayfed_kd, pkgutil\n"
    code += "rooms = [m.name for m in pkgutil.iter_modules(rayfed_kd.__path__)]\n"
    code += "assert not set(rooms) & set(rayfed_kd.__all__)"
    assert loaded_after(code, "torch", "ray", "pandas", "matplotlib", "pyarrow") == []
