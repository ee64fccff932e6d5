"""Tests of the cluster look at no run's pictures."""

import pytest


@pytest.fixture(autouse=True)
def no_pictures(blank_pictures):
    """See `blank_pictures`."""
