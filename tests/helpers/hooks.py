"""Hooks of the documentation site, loaded as MkDocs loads them."""

import importlib.util
import sys

from paths import ROOT

FOLDER = ROOT / "docs/hooks"


def hook(name):
    """The module of a hook. Its folder is on the import path meanwhile: hooks import one another."""
    spec = importlib.util.spec_from_file_location(f"hook_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(FOLDER))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module
