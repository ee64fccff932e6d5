"""The check of a GPU: its driver, its page and its wheels; the whole of it at toy size on the CPU."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from waiting import wait_until

HERE = ROOT / "tests/gpu"


@pytest.fixture(autouse=True)
def _its_folder_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """The driver, and a function that writes the section's script which it calls."""
    import check

    def write_section(code):
        (tmp_path / "section.py").write_text(
            f"import sys\nfrom pathlib import Path\nrows = Path(sys.argv[3])\n{code}"
        )

    monkeypatch.setattr(check, "HERE", tmp_path)
    return check, write_section


def run(driver, code, limit_s=30):
    check, write_section = driver
    write_section(code)
    return check.run("bits", check.Options("cpu", True, check.HERE), limit_s)


def test_a_section_gives_its_rows(driver):
    section = run(driver, """rows.write_text('{"case": "a", "value": 1.5}\\n')""")
    assert (section["status"], section["reason"]) == ("done", "")
    assert section["rows"] == [{"case": "a", "value": 1.5}]


def test_a_section_that_fails_leaves_the_rows_that_it_found(driver):
    section = run(driver, """rows.write_text('{"case": "a"}\\n')\nraise ValueError("the reason")""")
    assert (section["status"], section["reason"]) == ("failed", "ValueError: the reason")
    assert section["rows"] == [{"case": "a"}]


def test_a_row_with_a_fault_makes_its_section_fail(driver):
    section = run(driver, """rows.write_text('{"case": "a", "fault": "other bits"}\\n{"case": "b"}\\n')""")
    assert (section["status"], section["reason"]) == ("failed", "1 rows: other bits")


def test_a_section_may_leave_itself_out(driver):
    section = run(driver, "print('Ray is not installed')\nsys.exit(77)")
    assert (section["status"], section["reason"]) == ("left out", "Ray is not installed")


def test_a_section_that_hangs_is_stopped_with_its_children(driver, tmp_path, monkeypatch):
    monkeypatch.setattr(driver[0], "LEAST_S", 0.0)
    code = f"""
import subprocess, time
child = subprocess.Popen(["sleep", "60"])
Path({str(tmp_path / "child")!r}).write_text(str(child.pid))
rows.write_text('{{"case": "a"}}\\n')
time.sleep(60)
"""
    section = run(driver, code, limit_s=3)
    assert (section["status"], section["reason"]) == ("out of time", "stopped after 3 s")
    assert section["rows"] == [{"case": "a"}]
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not _runs(child))


def _runs(pid):
    """Whether a process is there and no zombie, which only waits for whoever reads its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_section_without_time_left_does_not_start(driver):
    section = run(driver, "raise ValueError", limit_s=1)
    assert (section["status"], section["reason"]) == ("out of time", "no time was left for it")


def test_what_is_missing_is_named(monkeypatch, capsys, tmp_path):
    import check

    known = check.metadata.version

    def version(name):
        if name in ("greenlet", "ray", "pydantic-core"):
            raise check.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(check.metadata, "version", version)
    assert check.main(["--out", str(tmp_path / "out"), "--cpu"]) == 2
    told = capsys.readouterr().err
    assert "missing packages: greenlet, pydantic-core. " in told
    assert "tests/gpu/fetch_wheels.sh greenlet pydantic-core" in told
    assert not (tmp_path / "out").exists()


def test_the_page_has_a_table_for_each_section():
    from tables import page

    sections = {
        "bits": {"status": "done", "reason": "", "rows": [{"case": "a|b", "on_ray": None, "seconds": 2.25}]},
        "hosts": {"status": "left out", "reason": "Ray is not installed", "rows": []},
        "fedkf": {
            "status": "out of time",
            "reason": "stopped after 3 s",
            "rows": [{"what": "x", "value": 12345.6}, {"what": "y", "unit": "s", "value": 12}],
        },
    }
    found = {"device": "cuda", "commit": "0123456789abcdef", "started": "2026-11-23T09:00:00+0000"}
    text = page({**found, "seconds": 12.5, "sections": sections})
    assert "`tests/gpu/check.sh`, commit 0123456789ab, 2026-11-23, 12.5 s in all." in text
    assert "| case | on ray | seconds |\n| --- | ---: | ---: |\n| a\\|b |  | 2.25 |\n" in text
    assert "Left out: Ray is not installed.\n" in text
    assert "Out of time: stopped after 3 s.\n\n| what | value | unit |\n| --- | ---: | --- |\n" in text
    assert "| x | 12,346 |  |\n| y | 12 | s |\n" in text


def test_rays_wheel_is_joined_when_all_parts_are_there(tmp_path):
    from unpack_wheels import joined

    content = os.urandom(1000)
    (tmp_path / "ray").mkdir()
    name = "ray-1.0-cp312.whl"
    (tmp_path / "ray/parts.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    assert joined(tmp_path) is None
    for part, piece in ((1, content[600:]), (0, content[:600])):
        (tmp_path / f"ray-part-{part}").mkdir()
        (tmp_path / f"ray-part-{part}/{name}.{part}").write_bytes(piece)
        whole = joined(tmp_path)
        assert (whole is None) == (part == 1)
    assert whole.read_bytes() == content
    (tmp_path / f"ray-part-0/{name}.0").write_bytes(b"another")
    with pytest.raises(SystemExit, match=r"do not give ray-1\.0"):
        joined(tmp_path)


def test_what_is_installed_is_not_unpacked(tmp_path, monkeypatch):
    import unpack_wheels

    (tmp_path / "package").mkdir()
    for name in ("pydantic_core-2.0-py3-none-any.whl", "no_such_package-1.0-py3-none-any.whl"):
        (tmp_path / "package" / name).touch()
    assert [path.name for path in unpack_wheels.chosen(tmp_path)] == ["no_such_package-1.0-py3-none-any.whl"]


def test_every_section_is_there_and_has_a_title():
    import check
    from tables import TITLES

    files = {path.stem for path in (HERE / "sections").glob("*.py")} - {"apart"}
    assert files == set(check.SECTIONS) == set(TITLES)


@pytest.mark.slow
def test_the_check_works_at_toy_size_on_the_cpu(tmp_path):
    environment = {**os.environ, "PYTHON": sys.executable}
    words = [HERE / "check.sh", "--cpu", "--out", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    found = json.loads((tmp_path / "gpu.json").read_text())
    told = {name: (section["status"], section["reason"]) for name, section in found["sections"].items()}
    assert set(told.values()) == {("done", "")}, (told, done.stderr)
    assert done.returncode == 0
    rows = {name: section["rows"] for name, section in found["sections"].items()}
    assert all(row["twice_on_local"] == row["on_ray"] == "equal" for row in rows["bits"])
    assert {row["relative_distance_to_cpu"] for row in rows["devices"]} == {0.0}
    for row in [*rows["workloads"], *rows["hosts"]]:
        assert row["largest_difference_of_models"] < 1e-4, row
    exact, rounded = (row["relative_distance_of_the_way"] for row in rows["precision"])
    assert exact == 0 < rounded < 0.2
    page = (tmp_path / "gpu.md").read_text()
    assert len(re.findall(r"^## ", page, re.MULTILINE)) == len(rows)
