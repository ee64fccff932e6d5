"""The documentation as text, and what its tests do with it."""

import re

from command_line import run_command
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
    """`rayfed-kd run quickstart WORDS` from a folder."""
    return run_command("run", "quickstart", *words, folder=folder)
