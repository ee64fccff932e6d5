"""Waiting for what another process or thread does."""

import time


def wait_until(holds, seconds=60.0, process=None):
    """Until `holds()` is true; fails after so many seconds, or once the process has ended."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < deadline, f"it does not hold after {seconds} s"
        time.sleep(0.02)
