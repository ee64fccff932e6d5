"""A pytest plugin: which test runs which line, and how long it takes. `mutants.py map` runs it.

A line that a fixture of a module or a session runs counts for every test that uses the fixture. Tests on Ray
are left out: the lines of their actors run in other processes.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path.cwd()
WATCHED = ("algorithms", "cluster", "rayfed_kd")


class ReachedLines:
    """Measures lines in contexts: one for each test, one for each fixture that several tests share."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source_pkgs=list(WATCHED))
        self._contexts = [""]
        self._fixtures: dict[str, list[str]] = {}
        self._seconds: dict[str, float] = defaultdict(float)
        self._coverage.start()

    @contextmanager
    def _within(self, context: str) -> Iterator[None]:
        self._contexts.append(context)
        self._coverage.switch_context(context)
        try:
            yield
        finally:
            self._contexts.pop()
            self._coverage.switch_context(self._contexts[-1])

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        """Leave tests on Ray out."""
        config.hook.pytest_deselected(items=[item for item in items if _on_ray(item)])
        items[:] = [item for item in items if not _on_ray(item)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
        """A test's own lines."""
        self._fixtures[item.nodeid] = [_fixture(name, item) for name in item.fixturenames]
        with self._within(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[Any]:
        """Lines of a fixture that other tests use too."""
        if fixturedef.scope == "function":
            return (yield)
        with self._within(_fixture(fixturedef.argname, request._pyfuncitem)):
            return (yield)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test's seconds."""
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the map: test -> seconds, file -> line -> numbers of tests."""
        self._coverage.stop()
        tests = list(self._seconds)
        tests_by_context: dict[str, list[int]] = defaultdict(list)
        for number, test in enumerate(tests):
            for context in (test, *self._fixtures[test]):
                tests_by_context[context].append(number)
        data, lines = self._coverage.get_data(), {}
        for file in sorted(data.measured_files()):
            contexts_by_line = data.contexts_by_lineno(file)
            lines[str(Path(file).relative_to(ROOT))] = {
                line: sorted({test for context in contexts for test in tests_by_context[context]})
                for line, contexts in contexts_by_line.items()
            }
        self._target.write_text(json.dumps({"seconds": self._seconds, "lines": lines}))


def _on_ray(item: Any) -> bool:
    return "session_ray" in item.fixturenames


def _fixture(name: str, item: Any) -> str:
    """A fixture's context; one with parameters has one for each."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return f"fixture {name} of {item.path}: {parameters.get(name)!r}"


def pytest_configure(config: pytest.Config) -> None:
    """Start to measure, before the project is imported."""
    config.pluginmanager.register(ReachedLines(Path(os.environ["REACHED_LINES"])))
