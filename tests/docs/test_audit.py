"""`make audit`, with a made-up pip-audit: what it says, and how it ends."""

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT

CLEAN = {
    "dependencies": [{"name": "ray", "version": "2.60.0", "vulns": []}, {"name": "x", "skip_reason": "y"}]
}
FLAWED = {
    "dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "GHSA-1", "fix_versions": ["1.1"]}]}]
}
NOBODY = "requests.exceptions.ConnectionError: HTTPSConnectionPool: Max retries exceeded"


@pytest.mark.parametrize(
    ("printed", "error", "code", "said"),
    [
        (json.dumps(CLEAN), "", 0, "no known flaw in 2 packages"),
        (json.dumps(FLAWED), "Found 1 known vulnerability", 1, "a 1: GHSA-1, mended in 1.1"),
        ("", NOBODY, 0, "audit skipped: no index of advisories can be reached from here"),
        ("", "/usr/bin/python: No module named pip_audit", 0, "audit skipped: pip-audit is not installed"),
        ("", "usage: pip-audit: unrecognized arguments", 1, "unrecognized arguments"),
    ],
)
def test_audit_tells_flaws_and_is_skipped_in_a_line_where_nobody_answers(
    printed, error, code, said, tmp_path
):
    status = int(code or not printed)
    program = f"import sys\nprint({printed!r})\nprint({error!r}, file=sys.stderr)\nsys.exit({status})"
    (tmp_path / "pip_audit.py").write_text(program)
    done = subprocess.run(
        [sys.executable, ROOT / "tests/tools/audit.py"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == (0 if "usage" in error else 1)
