"""The documentation as text, and what its tests do with it."""

import os
import re
import subprocess
import sys

from paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf8")
PAGES = {
    str(path.relative_to(ROOT / "docs")): path.read_text(encoding="utf8")
    for path in sorted(ROOT.glob("docs/**/*.md"))
}


def code_blocks(text, language):
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run_quickstart(folder, *words):
    """`rayfed-kd run configs/quickstart.yaml WORDS` from a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "rayfed_kd", "run", str(ROOT / "configs/quickstart.yaml"), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
