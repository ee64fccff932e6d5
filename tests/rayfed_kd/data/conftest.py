"""What tests of data share."""

import pytest


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own, so that everything is decoded anew."""
    monkeypatch.setenv("RAYFED_KD_CACHE", str(tmp_path / "cache"))
