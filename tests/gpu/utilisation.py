"""How busy the GPU was meanwhile, and how much of its memory was taken, as nvidia-smi tells."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
from collections.abc import Iterable
from typing import Any

FIELDS = ("utilization.gpu", "memory.used")
EVERY_MS = 200


class Watch:
    """Looks at the first GPU while the block runs; without nvidia-smi it sees nothing."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Watch:
        if shutil.which("nvidia-smi") is None:
            return self
        asked = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
        self._process = subprocess.Popen(
            [*asked, f"--loop-ms={EVERY_MS}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._thread.start()
        return self

    def _read(self, output: Iterable[str]) -> None:
        self._lines.extend(output)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._thread.join(timeout=2)

    def summary(self) -> dict[str, Any] | None:
        """Mean and most of both; None if nothing was seen."""
        return summary_of(self._lines)


def summary_of(lines: Iterable[str]) -> dict[str, Any] | None:
    """Mean and most of busy percent and MiB in lines of `FIELDS`; a line that is none is passed over."""
    seen = []
    for line in lines:
        try:
            busy, held = map(float, line.split(","))
        except ValueError:  # "[N/A]", or a line that was cut off at the end
            continue
        seen.append((busy, held))
    if not seen:
        return None
    busy_, held_ = zip(*seen, strict=True)
    return {
        "busy_mean_percent": round(statistics.mean(busy_), 1),
        "busy_most_percent": max(busy_),
        "memory_most_mib": max(held_),
        "looks": len(seen),
    }
