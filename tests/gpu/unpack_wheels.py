"""Installs the wheels of a folder, without network: python unpack_wheels.py WHEELS SITE.

What this Python has already, in any version, is left as it is.
Ray's wheel may lie in parts, in folders WHEELS/ray-part-N. They are joined when all are there; until then Ray
and what only Ray needs are left out. A second call with the same wheels does nothing.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path


def joined(wheels: Path) -> Path | None:
    """Ray's wheel, joined from its parts; None if a part is missing.

    Raises: SystemExit if the parts do not give the wheel that was cut.
    """
    listed = wheels / "ray" / "parts.sha256"
    parts = sorted(wheels.glob("ray-part-*/*.whl.*"))
    if not listed.exists() or not parts:
        return None
    wanted, name = listed.read_text(encoding="utf8").split()
    whole = wheels / "joined" / name
    content = b"".join(part.read_bytes() for part in parts)
    if hashlib.sha256(content).hexdigest() != wanted:
        if len(parts) < 2:
            return None
        raise SystemExit(f"{parts[0].parent} and its siblings do not give {name}: fetch the wheels again")
    whole.parent.mkdir(exist_ok=True)
    whole.write_bytes(content)
    return whole


def chosen(wheels: Path) -> Iterator[Path]:
    """The wheels to install."""
    every = sorted((wheels / "package").glob("*.whl"))
    if not installed("ray") and (ray := joined(wheels)) is not None:
        every += [*sorted((wheels / "ray").glob("*.whl")), ray]
    yield from (wheel for wheel in every if not installed(wheel.name.partition("-")[0]))


def installed(name: str) -> bool:
    """Whether this Python has the package."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def main(wheels: Path, site: Path) -> None:
    """Install what is not installed."""
    paths = list(chosen(wheels))
    done, names = site / "installed.txt", "\n".join(path.name for path in paths)
    if not paths or (done.exists() and done.read_text(encoding="utf8") == names):
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    command = [*pip, "--upgrade", "--target", str(site), *map(str, paths)]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(
            f"the wheels in {wheels} do not suit {sys.executable}; fetch_wheels.sh says for which Python it "
            "fetches, and PYTHON names another one"
        )
    done.write_text(names, encoding="utf8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
