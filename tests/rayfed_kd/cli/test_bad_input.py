"""Whatever a user hands in: one message, exit code 2, within seconds and without taking memory.

Every case is a command line, with the files that it names. The commands run in this process.
"""

import json
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from command_line import run_command
from image_files import images, png
from memory_limit import full_disk, limited_memory
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.reporting.reading import read_sources

RECIPE = {
    **THREE_CLIENTS,
    "local": {"epochs": 1, "batch_size": 64},
    "rounds": 1,
    "evaluation": {"samples": False},
}
SECONDS = 10
LONGEST_MESSAGE = 1500
BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "\n".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]"
    for old, new in zip("abcdefghijk", "bcdefghijkl", strict=True)
)
BAD = yaml.safe_load(Path(__file__).with_name("bad_input.yaml").read_text(encoding="utf8"))
# A document that is no recipe, no study and no space.
DOCUMENTS = {
    **{name: text.encode() for name, text in BAD["documents"].items()},
    "not UTF-8": b"seed: caf\xe9",
    "UTF-16 without a mark": "seed: 1".encode("utf-16-le"),
    "control characters": b"seed: \x07",
    "binary abc": b"seed: !!binary \xff",
    "5,000 digits": b"seed: " + b"7" * 5000,
    "5,000 digits as a tag": b"seed: !!int '" + b"7" * 5000 + b"'",
    "5,000 hexadecimal digits": b"seed: 0x" + b"7" * 5000,
    "5,000 base-60 digits": b"seed: 1" + b":07" * 5000,
    "3,000 lists": b"seed: " + b"[" * 3000 + b"]" * 3000,
    "3,000 mappings": b"seed: " + b"{a: " * 3000 + b"}" * 3000,
    "900 indented mappings": b"".join(b" " * place + b"a:\n" for place in range(900)),
    "an alias bomb": BOMB.encode(),
    "3 MB": b"seed: [" + b"1, " * 1_000_000 + b"]",
}


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf8")
    return str(path)


def recipe(place, **changes):
    return written(place / "recipe.yaml", {**RECIPE, **changes})


def run(place, *overrides):
    return ["run", recipe(place), "--local", f"results.folder={place / 'run'}", *overrides]


def study(place, **changes):
    recipe(place)
    content = {"folder": str(place / "study"), "base": str(place / "recipe.yaml"), "runs": [{"label": "A"}]}
    return ["compare", written(place / "study.yaml", {**content, **changes}), "--local"]


def space(place, entry, *words):
    content = entry if isinstance(entry, bytes) else {"space": entry}
    name = written(place / "space.yaml", content)
    return ["tune", recipe(place), "--space", name, "--folder", str(place / "search"), *words]


def parquet(place, image, metadata=None):
    """A data set of nine equal images as Hugging Face has them."""
    stored = pa.table({"image": [{"bytes": image, "path": ""}] * 9, "label": [0] * 9})
    (place / "data").mkdir()
    pq.write_table(stored.replace_schema_metadata(metadata), place / "data" / "train-0.parquet")
    return run(place, f"data={{name: parquet, folder: {place / 'data'}}}")


def bomb():
    """A PNG of 60,000 by 60,000 pixels, as its header says."""
    import struct
    import zlib

    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    return png(images(4, 4))[:8] + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def trace(place, start, end, *overrides, **speeds):
    facts = {"seconds_per_sample": 0.01, "up_mbit_s": 1, "down_mbit_s": 1, **speeds}
    rows = [f"{client},{','.join(map(str, facts.values()))},{start},{end}" for client in range(3)]
    text = "\n".join([f"client,{','.join(facts)},from_s,until_s", *rows])
    return run(place, f"clock={{name: trace, file: {written(place / 'trace.csv', text)}}}", *overrides)


def partition_file(place, metadata):
    columns = {"client": [0, 1, 2], "split": ["train"] * 3, "sample": [0, 1, 2]}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), place / "p.parquet")
    return run(place, f"partition.file={place / 'p.parquet'}")


def loop(place):
    (place / "loop").symlink_to(place / "loop")
    return place / "loop"


def file(place):
    return written(place / "file", "x")


LONG = "x" * 400
# Sections that name an object, with the key beside it that a partition must have.
CLIENTS = dict.fromkeys(("method", "model", "data", "schedule", "clock", "codec.up.weights"), "") | {
    "partition": "clients: 3"
}
OBJECTS = (":", ":b", "os:", "os:getcwd", "shutil:rmtree", "math:pi", "torch.nn:Linear", "os:environ")
# Names of files and folders that cannot be read, written or made, and where they are given, by `PATHS`.
EVERYWHERE = "compare run resume report pictures space study base results data train partition clock"
WRONG_PATHS = {
    "a zero byte": (lambda place: "a\0b", f"{EVERYWHERE} export"),
    "400 characters": (lambda place: LONG, EVERYWHERE),
    "~nouser": (lambda place: "~nouser-at-all/x", "search study results data"),
    "a loop": (lambda place: str(loop(place)), "run resume report results data"),
    "below a loop": (lambda place: f"{loop(place)}/x", "results"),
    "below a file": (lambda place: f"{file(place)}/x", "run pictures search study results"),
    "a folder": (str, "compare run resume report export space partition clock"),
    "a file": (file, "pictures results"),
    "/proc": (lambda place: "/proc/nothing", "pictures results"),
}
RATES = {"local.optimizer.lr": {"uniform": [0.1, 0.2]}}
# What takes the name of a file or folder -> the command line; JSON's quotes are YAML's.
PATHS = {
    "compare": lambda place, path: ["compare", path],
    "run": lambda place, path: ["run", path, "--local"],
    "resume": lambda place, path: ["resume", path, "--local"],
    "report": lambda place, path: ["report", path],
    "export": lambda place, path: ["export", path, "--model", "global", "--to", "x"],
    "pictures": lambda place, path: ["partition", recipe(place), "--out", path],
    "space": lambda place, path: ["tune", recipe(place), "--space", path],
    "search": lambda place, path: [*space(place, RATES)[:-1], path],
    "study": lambda place, path: study(place, folder=path),
    "base": lambda place, path: study(place, base=path),
    "results": lambda place, path: run(place, f"results.folder={json.dumps(path)}"),
    "data": lambda place, path: run(place, f"data={{name: mnist, folder: {json.dumps(path)}}}"),
    "train": lambda place, path: run(place, f"data={{name: parquet, train: {json.dumps(path)}}}"),
    "partition": lambda place, path: run(place, f"partition.file={json.dumps(path)}"),
    "clock": lambda place, path: run(place, f"clock={{name: trace, file: {json.dumps(path)}}}"),
}
NO_METHODS = ("os:system", ":", "a:", ":b", "os:", ".os:a", "os:path.join", "o\0s:a")
# Name -> the command line; `place` is an empty folder.
CASES = {
    **{
        f"recipe: {name}": lambda place, text=text: ["run", written(place / "r.yaml", text), "--local"]
        for name, text in DOCUMENTS.items()
    },
    **{
        f"study: {name}": lambda place, text=text: ["compare", written(place / "s.yaml", text), "--local"]
        for name, text in DOCUMENTS.items()
    },
    **{
        f"study with runs: {name}": lambda place, text=text: [
            "compare",
            written(place / "s.yaml", b"runs: [{label: A}]\nfolder: x\ntitle: " + text),
            "--local",
        ]
        for name, text in DOCUMENTS.items()
        if name not in ("nothing", "a number", "a text", "null", "a date")  # titles
    },
    **{f"space: {name}": lambda place, text=text: space(place, text) for name, text in DOCUMENTS.items()},
    **{
        f"override: {name}": lambda place, text=text: run(place, text.decode())
        for name, text in {
            "5,000 digits": b"seed=" + b"7" * 5000,
            "3,000 lists": b"seed=" + b"[" * 3000 + b"]" * 3000,
            "3,000 keys": b".".join([b"model"] * 3000) + b"=1",
            "a long word": b"w" * 5000,
            "a long key": b"w" * 5000 + b"=1",
            "a long value": b"seed=" + b"w" * 5000,
            "a long name": b"model.name=" + b"w" * 5000,
        }.items()
    },
    **{name: lambda place, words=words: run(place, *words) for name, words in BAD["run"].items()},
    **{name: lambda place, entry=entry: space(place, entry) for name, entry in BAD["space"].items()},
    **{name: lambda place, keys=keys: study(place, **keys) for name, keys in BAD["study"].items()},
    "compare without a recipe": lambda place: ["compare", "a=1"],
    **{
        f"methods {name[-20:]}": lambda place, name=name: ["methods", name]
        for name in (*NO_METHODS, "w" * 5000, "w" * 5000 + ":x")
    },
    **{
        f"methods of {name}": lambda place, name=name, code=code: (
            written(place / f"{name}.py", code),
            ["methods", f"{name}:Method"],
        )[1]
        for name, code in BAD["modules"].items()
    },
    **{
        f"{key}.name={name}": lambda place, key=key, name=name: run(
            place, f"{key}={{name: '{name}', {CLIENTS[key]}}}"
        )
        for key in CLIENTS
        for name in OBJECTS
    },
    "partition file whose metadata is no JSON": lambda place: partition_file(place, {"rayfed_kd": "{"}),
    "partition file whose metadata is not UTF-8": lambda place: partition_file(place, {"rayfed_kd": b"\xff"}),
    "partition file whose metadata is deep": lambda place: partition_file(
        place, {"rayfed_kd": '{"origin": ' * 100_000}
    ),
    "trace file that is no Parquet": lambda place: run(
        place, f"clock={{name: trace, file: {written(place / 't.parquet', 'PAR1')}}}"
    ),
    "trace file of bytes": lambda place: run(
        place, f"clock={{name: trace, file: {written(place / 't.csv', bytes([255, 254, 10]))}}}"
    ),
    "trace window of 1e-300 s": lambda place: trace(place, 0, 1e-300),
    "trace window of 1e-9 s": lambda place: trace(place, 5, 5 + 1e-9),
    "trace window until 1e300 s": lambda place: trace(place, 0, 1e300),
    "trace of 1e300 seconds a sample": lambda place: trace(place, 0, 1, seconds_per_sample=1e300),
    "trace of 1e-300 Mbit/s": lambda place: trace(place, 0, 1, up_mbit_s=1e-300),
    "trace latency of 1e300 s": lambda place: trace(place, 0, 1, latency_s=1e300),
    "trace period of 1e300 s": lambda place: trace(place, 0, 1, "clock.period_s=1e300"),
    "trace client of 10^30": lambda place: trace(place, 0, 1, "partition.clients=1000000000000"),
    **{
        f"metadata of images {what}": lambda place, text=text: parquet(
            place, png(images(4, 4)), {"huggingface": text}
        )
        for what, text in {
            "that is no JSON": "{",
            "that is not UTF-8": b"\xff",
            "with names that are numbers": json.dumps({"info": {"features": {"label": {"names": 5}}}}),
            "that is deep": "[" * 100_000,
        }.items()
    },
    "an image that is a decompression bomb": lambda place: parquet(place, bomb()),
    "an image that is no image": lambda place: parquet(place, b"PNG"),
    "an image without bytes": lambda place: parquet(place, None),
    "images that are names of files": lambda place: parquet(place, "recipe.yaml"),
    "a grid of 10^14 combinations": lambda place: space(
        place,
        {"seed": {"randint": [1, 10**7]}, "local.batch_size": {"randint": [1, 10**7]}},
        "--search",
        "grid",
    ),
    "10^9 trials": lambda place: space(place, RATES, "--samples", "1000000000"),
    "a label of 400 characters": lambda place: study(place, runs=[{"label": LONG}]),
    "10^12 seeds": lambda place: [*study(place), "--seeds", "1000000000000"],
    **{
        f"{what}: {kind}": lambda place, words=PATHS[what], path=path: words(place, path(place))
        for kind, (path, given) in WRONG_PATHS.items()
        for what in given.split()
    },
}
ADDRESSES = {
    "none": ("127.0.0.1:1", "--address 127.0.0.1:1: no Ray answers there"),
    "no port": ("x", "--address x: expected HOST:PORT"),
    "a port beyond all": ("localhost:99999999", "no Ray answers there"),
    "a zero byte": ("a\0b:1", "no Ray answers there"),
    "5,000 characters": ("x" * 5000 + ":1", "no Ray answers there"),
}


class TooSlowError(BaseException):
    """No Exception, which the command might turn into a message."""


@contextmanager
def limits():
    """Seconds and memory that a bad input may take."""

    def stop(number, frame):
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with limited_memory():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answered(words):
    """What a command line says on standard error."""
    with limits():
        done = run_command(*words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert 10 < len(done.stderr) < LONGEST_MESSAGE, done.stderr
    return done.stderr


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_answered_with_one_message(name, place):
    answered(CASES[name](place))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with devices."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    changes = [f"results.folder={folder}", "clock.name=constant", "checkpoint.every=1"]
    return rayfed_kd.run(RECIPE, changes, local=True).folder


def damaged(name, content):
    return lambda folder: written(folder / name, content)


def damaged_part(folder):
    (part,) = (folder / "tables" / "metrics").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:-20])


def other_part(folder):
    (part,) = (folder / "tables" / "metrics").glob("*.parquet")
    pq.write_table(pa.table({"round": ["one"]}), part)


DAMAGES = {
    **{name: damaged(name.partition(":")[0], text) for name, text in BAD["damaged"].items()},
    "config.yaml: not UTF-8": damaged("config.yaml", b"\xff"),
    "config.yaml: deep": damaged("config.yaml", b"seed: " + b"[" * 3000),
    "summary.json: not UTF-8": damaged("summary.json", b"\xff"),
    "summary.json: deep": damaged("summary.json", b"[" * 100_000),
    "tables: a part cut off": damaged_part,
    "tables: a part of another table": other_part,
}


@pytest.mark.parametrize(
    "command", [["resume", "--local", "rounds=2"], ["export", "--model", "global", "--to", "x"]]
)
@pytest.mark.parametrize("section", ["model", "data", "partition"])
def test_run_folder_calls_nothing_that_is_not_marked(command, section, finished, place):
    """Its config.yaml may be somebody else's."""
    shutil.copytree(finished, place / "run")
    (place / "precious").mkdir()
    content = yaml.safe_load((place / "run" / "config.yaml").read_text())
    content[section] = {**content[section], "name": "shutil:rmtree"}
    content["data"]["folder"] = "precious"
    written(place / "run" / "config.yaml", content)
    told = answered([command[0], str(place / "run"), *command[1:]])
    assert f"{section}.name: shutil:rmtree is not a function marked" in told
    assert (place / "precious").is_dir()


REPORTED = ("config", "summary", "environment", "tables")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, ["resume", "run", "rounds=2", "--local"]) for name in DAMAGES),
        *((name, ["report", "run"]) for name in DAMAGES if name.startswith(REPORTED)),
    ],
)
def test_damaged_run_is_neither_gone_on_with_nor_reported(name, words, finished, place):
    shutil.copytree(finished, place / "run")
    DAMAGES[name](place / "run")
    answered(words)


def test_report_reads_what_is_readable_of_a_damaged_log(finished, place):
    shutil.copytree(finished, place / "run")
    (place / "run" / "log.txt").write_bytes(b"\xff\nresumed after round 1\n\xc3")
    assert read_sources([place / "run"]).runs[0].resumed == [1]


@pytest.fixture
def no_ray_yet(monkeypatch):
    """As if this process had no Ray, without ending the one that other tests share."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: None)


@pytest.mark.parametrize("name", ADDRESSES)
def test_address_where_no_ray_answers_is_refused(name, place, no_ray_yet):
    address, message = ADDRESSES[name]
    assert message in answered(["run", recipe(place), "--address", address])


def test_ray_that_does_not_start_is_answered(place, no_ray_yet, monkeypatch):
    def time_out(**options):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", time_out)
    assert "timed out during startup" in answered(["run", recipe(place)])


@pytest.mark.parametrize("folder", ["a/../x", "-x"])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_dots_in_a_folder_lead_where_they_say_and_a_dash_is_no_option(command, folder, place):
    alone = ["run", recipe(place), "--local", f"results.folder={folder}"]
    words = alone if command == "run" else study(place, folder=folder)
    done = run_command(*words)
    assert done.returncode == 0, done.stderr
    assert list((place / folder[-2:].strip("/")).iterdir())
    assert command == "run" or f"\n{place / folder[-2:].strip('/')}/" in done.stdout


TARGETS = {
    "below a file": lambda place: f"{file(place)}/x.html",
    "a folder": str,
    "/proc": lambda place: "/proc/nothing/x.html",
    "/dev/full": lambda place: "/dev/full",
    "400 characters": lambda place: LONG,
    "a zero byte": lambda place: "a\0b",
    "a loop": lambda place: f"{loop(place)}/x.html",
}


@pytest.mark.parametrize("name", TARGETS)
def test_report_is_not_written_to_a_wrong_place(name, finished, place):
    assert "--to" in answered(["report", str(finished), "--to", TARGETS[name](place)])


@pytest.mark.parametrize("command", ["report", "partition", "export"])
def test_full_disk_is_answered_and_leaves_no_half_of_a_file(command, finished, place):
    words = {
        "report": ["report", str(finished), "--to", "x.html"],
        "partition": ["partition", recipe(place), "--out", "."],
        "export": ["export", str(finished), "--model", "global", "--to", "x"],
    }[command]
    with full_disk(100):
        told = answered(words)
    assert "cannot be written" in told
    assert [path.name for path in place.iterdir() if path.name != "recipe.yaml"] == []


@pytest.mark.parametrize("name", TARGETS)
def test_model_is_not_exported_to_a_wrong_place(name, finished, place):
    to = {"a folder": recipe(place), "/dev/full": "."}.get(name) or TARGETS[name](place)
    words = ["export", str(finished), "--model", "global", "--to", to]
    assert "--to" in answered(words)


def test_partition_of_a_run_is_not_replaced(finished, place):
    assert "would be lost" in answered(["partition", recipe(place), "--out", str(finished)])
