"""What tests of screens share."""

import io

import pytest


@pytest.fixture
def terminal(monkeypatch):
    """A stream that rich takes for a terminal of 80 columns."""
    for name, value in (("TERM", "xterm"), ("FORCE_COLOR", "1"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    return io.StringIO()
