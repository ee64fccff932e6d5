"""Asks pip-audit for known flaws of the packages in constraints.txt: `make audit`.

It exits with 1 where a package has one.
Without pip-audit, or where no index of advisories answers, it says so in one line and exits with 0.
"""

import json
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
# As listed: nothing is resolved, downloaded or installed.
COMMAND = (
    *("-m", "pip_audit", "--requirement", str(CONSTRAINTS)),
    *("--no-deps", "--disable-pip", "--format", "json"),
)
# How requests and urllib3 call that nobody answers.
UNREACHABLE = (
    *("ConnectionError", "Connection refused", "Max retries", "NameResolution", "timed out"),
    "ProxyError",
)


def main() -> int:
    """Write a line for each flaw; the exit status."""
    done = subprocess.run([sys.executable, *COMMAND], capture_output=True, text=True, check=False)
    if "No module named pip_audit" in done.stderr:
        return _said("audit skipped: pip-audit is not installed; pip install pip-audit in .venv installs it")
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        if any(words in done.stderr for words in UNREACHABLE):
            return _said("audit skipped: no index of advisories can be reached from here")
        sys.stderr.write(done.stderr)
        return done.returncode or 1
    flaws = [
        f"{package['name']} {package['version']}: {flaw['id']}, mended in "
        f"{', '.join(flaw['fix_versions']) or 'no version'}"
        for package in packages
        for flaw in package.get("vulns", [])
    ]
    _said("\n".join(flaws or [f"no known flaw in {len(packages)} packages"]))
    return 1 if flaws else 0


def _said(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
