"""Whole files: the old content or the new one, nothing half written, and names that stay in their folder."""

import ast
from concurrent.futures import ThreadPoolExecutor

import pytest
from paths import ROOT

from rayfed_kd.files.folders import file_name, locked_folder, new_folder
from rayfed_kd.files.whole import (
    atomic_write,
    empty_folder,
    folder_written_aside,
    remove_unfinished,
    write_json,
    written_aside,
)


def test_text_and_bytes_are_written_whole(tmp_path):
    atomic_write(tmp_path / "text", "±\n")
    atomic_write(tmp_path / "bytes", b"\x00\xff")
    write_json(tmp_path / "json", {"a": 1})
    assert (tmp_path / "text").read_text(encoding="utf8") == "±\n"
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    assert (tmp_path / "json").read_text() == '{\n  "a": 1\n}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes", "json", "text"]


def test_file_has_the_rights_that_any_new_file_has(tmp_path):
    """A report or a table is for the group to read, as the umask says."""
    atomic_write(tmp_path / "ours", "")
    (tmp_path / "plain").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_error_in_mid_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "table.parquet"
    path.write_text("old")

    def fill(aside):
        aside.write_text("half of the ne")
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"), written_aside(path) as aside:
        fill(aside)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_that_cannot_be_renamed_leaves_nothing_behind(tmp_path):
    """A folder stands where the file should go."""
    (tmp_path / "search.yaml").mkdir()
    with pytest.raises(OSError, match=r"search\.yaml"):
        atomic_write(tmp_path / "search.yaml", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["search.yaml"]


def test_unfinished_file_has_a_name_of_its_own_the_suffix_and_a_dot(tmp_path):
    with written_aside(tmp_path / "a.png") as first, written_aside(tmp_path / "a.png") as second:
        assert first != second
        assert {first.suffix, second.suffix} == {".png"}
        assert first.name.startswith(".")
        second.write_text("second")
        first.write_text("first")
    assert (tmp_path / "a.png").read_text() == "first"  # the inner block ends first


def test_folder_is_whole_or_as_it_was(tmp_path):
    entry = tmp_path / "entry"
    with folder_written_aside(entry) as aside:
        (aside / "old").touch()
        assert not entry.exists()

    def fill(aside):
        (aside / "half").touch()
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"), folder_written_aside(entry) as aside:
        fill(aside)
    assert [path.name for path in tmp_path.rglob("*")] == ["entry", "old"]
    with folder_written_aside(entry) as aside:
        (aside / "new").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["entry", "new"]


def test_emptied_folder_stays_locked(tmp_path):
    folder = tmp_path / "run"
    with locked_folder(folder, "results.folder", "running"):
        (folder / "tables").mkdir()
        (folder / "tables" / "part").touch()
        (folder / "config.yaml").touch()
        empty_folder(folder)
        assert [path.name for path in folder.iterdir()] == [".lock"]


def writes_in_place(tree):
    """The calls that write a file under its own name, with their lines."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        modes = {value.value for value in arguments if isinstance(value, ast.Constant)}
        opens = name == "open" and any(isinstance(mode, str) and set(mode) & set("wax+") for mode in modes)
        saves = name in ("write_text", "write_bytes", "write_table", "save_file", "savefig") or (
            name == "save" and ast.unparse(call.func) in ("np.save", "torch.save")
        )
        aside = any(word in ast.unparse(call) for word in ("aside", "stream"))
        if (opens or saves) and not aside:
            yield call.lineno, ast.unparse(call)


def test_no_file_is_written_under_its_own_name():
    """log.txt and TensorBoard's event files grow; their libraries open them."""
    sources = [
        path for room in ("rayfed_kd", "cluster", "algorithms") for path in (ROOT / room).rglob("*.py")
    ]
    written = {str(path): [*writes_in_place(ast.parse(path.read_text()))] for path in sources}
    assert len(sources) > 100
    assert {path: calls for path, calls in written.items() if calls} == {}


def test_a_write_in_place_is_seen():
    seen = 'path.write_text("x")\nopen(path, "w")\npath.open(mode="ab")\nnp.save(path, a)'
    assert len([*writes_in_place(ast.parse(seen))]) == 4
    assert not [*writes_in_place(ast.parse('path.open("rb")\nsetting.save(path)'))]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / ".part-0123456789abcdef-summary.json").touch()
    (tmp_path / ".part-0123456789abcdef-entry").mkdir()
    (tmp_path / ".lock").touch()
    atomic_write(tmp_path / "summary.json", "{}")
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "summary.json"]


def test_only_the_unfinished_file_of_that_name_is_removed(tmp_path):
    for name in ("report.html", "my-report.html"):
        (tmp_path / f".part-0123456789abcdef-{name}").touch()
    remove_unfinished(tmp_path, "report.html")
    assert [path.name for path in tmp_path.iterdir()] == [".part-0123456789abcdef-my-report.html"]


LABELS = ["../../../x", "/etc/x", "..", ".", "", "a/b", "a\\b", "a\x00b"]


@pytest.mark.parametrize("label", LABELS)
def test_name_made_of_a_label_stays_in_its_folder(label, tmp_path):
    place = tmp_path / "study" / file_name(label)
    assert place.resolve().parent == tmp_path / "study"


def test_name_has_no_blanks_and_brackets():
    assert file_name("B, server (global)") == "B-server-global-"


def test_hundred_runs_that_begin_at_once_get_a_hundred_folders(tmp_path):
    """By name and second all would have one: each makes its own, and none is refused."""
    with ThreadPoolExecutor(20) as at_once:
        folders = list(
            at_once.map(
                lambda _: new_folder(tmp_path / "runs" / "fedavg-digits", "results.folder"), range(100)
            )
        )
    numbered = {f"fedavg-digits-{place}" for place in range(2, 101)}
    assert {folder.name for folder in folders} == {"fedavg-digits", *numbered}
    assert all(folder.is_dir() for folder in folders)
