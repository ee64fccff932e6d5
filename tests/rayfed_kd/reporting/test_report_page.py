"""The report as a browser shows it: headless Chromium, driven over its debugging pipe."""

import base64
import json
import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from small_recipes import FOUR_CLIENTS, small_recipe

import rayfed_kd
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.reporting.page import report as write_report
from rayfed_kd.tuning.search_folder import SearchFolder, SearchSettings, TrialRecord
from rayfed_kd.tuning.space import coefficient_overrides

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
RECIPE = {
    **small_recipe(FOUR_CLIENTS, "fedkf"),
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 30, "min_size": 2},
    "clock": {"name": "constant"},
    "rounds": 2,
    "sampling": {"count": 2},
}
LONG = "a-run-with-a-name-that-is-very-long-" + "x" * 120


class Browser:
    """A page's remote control: one command at a time, JSON with a zero byte at the end."""

    def __init__(self, write, read):
        self._write, self._read, self._number, self._session = write, read, 0, None
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.asked = []
        for domain in ("Page", "Network"):
            self.do(f"{domain}.enable")

    def do(self, method, **parameters):
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._write.write(json.dumps(command).encode() + b"\0")
        self._write.flush()
        return self._until(lambda message: message.get("id") == self._number)["result"]

    def open(self, url, width, scheme):
        self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.do("Page.navigate", url=url)
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def value(self, expression):
        return self.do("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path):
        picture = self.do("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))

    def _until(self, wanted):
        while True:
            found = bytearray()
            while (byte := self._read.read(1)) != b"\0":
                assert byte, "Chromium ended"
                found += byte
            message = json.loads(found)
            assert "error" not in message, message
            if message.get("method") == "Network.requestWillBeSent":
                self.asked.append(message["params"]["request"]["url"])
            if wanted(message):
                return message


@contextmanager
def browser(folder):
    """Chromium reads commands from descriptor 3 and answers on 4."""
    (read_command, command), (answer, write_answer) = os.pipe(), os.pipe()
    words = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
    ]
    words += ["--no-first-run", f"--user-data-dir={folder / 'profile'}", "about:blank"]
    script = f'exec 3<&{read_command} 4>&{write_answer}; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *words],
        pass_fds=(read_command, write_answer),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_command)
    os.close(write_answer)
    try:
        with os.fdopen(command, "wb") as write, os.fdopen(answer, "rb") as read:
            yield Browser(write, read)
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for name, method in (("fedkf", RECIPE["method"]), (LONG, {"name": "fedavg"})):
        changed = {**RECIPE, "method": method, "results": {"folder": str(folder / name)}}
        rayfed_kd.run(changed, local=True)
    folders = [folder / "fedkf", folder / LONG, searched(folder / "tune")]
    return write_report(*folders, to=folder / "report.html")[0]


def searched(folder):
    """A search of three trials, as `tune` leaves it: two ran, one failed."""
    space = {"method.gamma": {"loguniform": [0.01, 10.0]}, "local.epochs": {"choice": [1, 2]}}
    recipe, search = load_recipe(RECIPE).model_dump(), SearchFolder(folder)
    with search.claimed(SearchSettings(recipe, space, "amp/oca", "random", "asha", {}), resume=False):
        for number, gamma in enumerate((0.1, 1.0)):
            drawn = {"method.gamma": gamma, "local.epochs": 1}
            changes = [*coefficient_overrides(drawn), f"results.folder={search.trial(number)}"]
            rayfed_kd.run(recipe, changes, local=True)
            search.write_record(TrialRecord(number, drawn, "finished", 2))
        search.write_record(
            TrialRecord(2, {"method.gamma": 10.0, "local.epochs": 2}, "failed", 0, "no such thing")
        )
    return folder


@pytest.mark.slow
@needs_browser
def test_page_fits_every_width_and_theme_and_asks_nothing_of_the_net(page, tmp_path):
    inks = {}
    with browser(tmp_path) as opened:
        for width in WIDTHS:
            for scheme in SCHEMES:
                opened.open(page.as_uri(), width, scheme)
                opened.screenshot(tmp_path / f"{scheme}-{width}.png")
                assert opened.value("document.documentElement.scrollWidth") <= width
                # Every picture has an extent, and lines, bars or dots within it.
                drawn = (
                    "[...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width,"
                )
                drawn += "s.getBBox().height, s.querySelectorAll('path, use').length])"
                sizes = opened.value(drawn)
                assert len(sizes) > 10
                assert all(across > 150 and height > 100 and marks > 3 for across, height, marks in sizes)
                # No formula's source where a number should stand.
                texts = (
                    "[...document.querySelectorAll('figure text')].every(t => !t.textContent.includes('$'))"
                )
                assert opened.value(texts)
                assert opened.value("[...document.images].every(i => i.naturalWidth > 100)")
                ink = opened.value("getComputedStyle(document.querySelector('figure text')).fill")
                paper = opened.value("getComputedStyle(document.body).backgroundColor")
                inks[scheme] = ink, paper
    assert len(inks["light"] + inks["dark"]) == len({*inks["light"], *inks["dark"]})
    assert {url.partition(":")[0] for url in opened.asked} <= {"file", "data"}
