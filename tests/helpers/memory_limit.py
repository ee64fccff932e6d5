"""A bound on the memory that a block may take: a bad input must not fill the machine's."""

import resource
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def limited_memory(gigabytes=4):
    """Let this process take so much more address space than it has now; beyond it memory cannot be had."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + gigabytes * 2**30, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
