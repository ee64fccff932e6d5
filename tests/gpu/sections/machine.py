"""The machine: versions, the device, and what it can move and multiply at best."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator

import torch
from size import Row, Size
from torch import Tensor

from rayfed_kd.setting.code_identity import package_version


def rows(size: Size) -> Iterator[Row]:
    """A row for each fact. Raises: SystemExit if the device cannot be used."""
    if size.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU; --cpu tries the check itself at toy size")
    for name in ("torch", "torchvision", "numpy", "ray"):
        yield {"what": name, "is": package_version(name) or "not installed"}
    yield {"what": "python", "is": platform.python_version()}
    yield {"what": "cores", "is": str(os.cpu_count())}
    if size.device != "cpu":
        about = torch.cuda.get_device_properties(0)
        yield {"what": "GPU", "is": f"{about.name}, capability {about.major}.{about.minor}"}
        yield {"what": "GPU memory", "is": f"{about.total_memory / 2**30:.1f} GiB"}
        yield {
            "what": "CUDA of torch, cuDNN",
            "is": f"{torch.version.cuda}, {torch.backends.cudnn.version()}",
        }
    for name, value in _ceilings(size):
        yield {"what": name, "is": value}


def _ceilings(size: Size) -> Iterator[tuple[str, str]]:
    """Bytes copied and products computed a second, on random data; medians."""
    numbers = size.of(2**28, 2**18)
    source = torch.randn(numbers, device=size.device)
    target = torch.empty_like(source)
    seconds = _median_s(size, lambda: target.copy_(source))
    yield "a copy, read and written", f"{8 * numbers / seconds / 1e9:,.0f} GB/s"
    side = size.of(8192, 256)
    for name, dtype, tf32 in (
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bf16", torch.bfloat16, False),
    ):
        if tf32 and size.device == "cpu":
            continue
        one, other = (torch.randn(side, side, device=size.device, dtype=dtype) for _ in range(2))
        torch.backends.cuda.matmul.allow_tf32 = tf32
        seconds = _median_s(size, _product(one, other))
        yield f"a product in {name}", f"{2 * side**3 / seconds / 1e12:,.1f} TFLOP/s"


def _product(one: Tensor, other: Tensor) -> Callable[[], Tensor]:
    return lambda: one @ other


def _median_s(size: Size, work: Callable[[], object]) -> float:
    times = []
    for _ in range(13):
        started = time.perf_counter()
        work()
        size.wait()
        times.append(time.perf_counter() - started)
    return sorted(times[3:])[5]
