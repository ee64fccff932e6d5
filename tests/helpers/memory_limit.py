"""Bounds on what a block may take: a bad input must not fill the machine's memory, and a disk may be full."""

import resource
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def limited(kind, most):
    """Let this process take no more of a kind of resource, as `resource.RLIMIT_AS`."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def limited_memory():
    """4 GiB more of address space than it has now; beyond it memory cannot be had."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return limited(resource.RLIMIT_AS, pages * resource.getpagesize() + 4 * 2**30)


def full_disk(most_bytes):
    """To this process the disk is full: its files cannot grow beyond so many bytes."""
    return limited(resource.RLIMIT_FSIZE, most_bytes)
