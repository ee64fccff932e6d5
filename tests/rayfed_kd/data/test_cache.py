"""The decoded cache: made once, found again, rebuilt when its source or itself is damaged."""

import subprocess
import sys

import numpy as np
import pytest

from rayfed_kd.data import cache, cache_keys
from rayfed_kd.data.cache import load_cached, open_entry
from rayfed_kd.data.dataset import RawDataset, Source, Split
from rayfed_kd.errors import DataError
from rayfed_kd.recipe.sample_shapes import RowShape, TextShape

pytestmark = pytest.mark.usefixtures("own_cache")


class Counted:
    """A source that counts how often it is decoded."""

    def __init__(self, file, value=1):
        self.decoded, self.file, self.value = 0, file, value

    def source(self, **settings):
        return Source((self.file,), settings, self.decode)

    def decode(self):
        self.decoded += 1
        pixels = np.full((4, 1, 2, 2), self.value, dtype=np.uint8)
        return RawDataset(Split(pixels, np.array([0, 1, 0, 1])), None, ("a", "b"))


@pytest.fixture
def counted(tmp_path):
    file = tmp_path / "source.bin"
    file.write_bytes(b"one")
    return Counted(file)


def test_changed_content_is_decoded_again(counted):
    load_cached("made", counted.source(), 1.0)
    counted.file.write_bytes(b"two")
    counted.value = 2
    assert load_cached("made", counted.source(), 1.0).train.images.max() == 2


def test_same_content_under_a_new_time_is_not_decoded_again(counted):
    load_cached("made", counted.source(), 1.0)
    counted.file.touch()
    load_cached("made", counted.source(), 1.0)
    assert counted.decoded == 1


def test_other_settings_make_another_entry(counted):
    for size in (1, 2, np.zeros(2000), np.eye(1, 2000, 900)[0]):
        load_cached("made", counted.source(size=size), 1.0)
    assert counted.decoded == 4


def test_truncated_entry_is_made_again(counted):
    entry = load_cached("made", counted.source(), 1.0).folder
    images = entry / "train-images.npy"
    images.write_bytes(images.read_bytes()[:-3])
    with pytest.raises(DataError, match="no whole cache entry"):
        open_entry(entry)
    assert len(load_cached("made", counted.source(), 1.0).train) == 4
    assert counted.decoded == 2


def test_half_written_entry_never_counts(counted, monkeypatch):
    monkeypatch.setattr(cache.json, "dumps", lambda *a, **k: 1 / 0 if "files" in a[0] else "x")
    with pytest.raises(ZeroDivisionError):
        load_cached("made", counted.source(), 1.0)
    monkeypatch.undo()
    assert not list(counted.file.parent.glob("cache/made-*"))


def test_two_processes_that_start_at_once_make_one_entry(tmp_path):
    code = (
        "from rayfed_kd.data.loading import load_dataset\n"
        "print(load_dataset('synthetic', options={'samples': 3000}).train.images.sum())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    sums = {process.communicate()[0] for process in processes}
    assert len(sums) == 1
    assert len(list((tmp_path / "cache").glob("synthetic-*"))) == 1


def test_statistics_are_those_of_the_pixels(counted):
    """All pixels 1: mean 1 / 255, no deviation, which counts as 1."""
    data = load_cached("made", counted.source(), 1.0)
    assert data.mean == pytest.approx((1 / 255,))
    assert data.std == (1.0,)


@pytest.fixture
def hashed(monkeypatch):
    """The files whose content is hashed, in order."""
    files, whole = [], cache_keys.file_digest
    monkeypatch.setattr(cache_keys, "file_digest", lambda file: files.append(file) or whole(file))
    return files


def test_second_start_hashes_and_decodes_nothing(counted, hashed):
    folders = {load_cached("made", counted.source(), 1.0).folder for _ in range(2)}
    assert (len(folders), counted.decoded, hashed) == (1, 1, [counted.file])


def test_many_files_go_by_size_and_time(counted, hashed, monkeypatch):
    monkeypatch.setattr(cache_keys, "MANY_FILES", 0)
    load_cached("made", counted.source(), 1.0)
    counted.file.write_bytes(b"longer")
    load_cached("made", counted.source(), 1.0)
    assert counted.decoded == 2
    assert hashed == []


def test_missing_file_of_a_source_is_named(counted):
    counted.file.unlink()
    with pytest.raises(DataError, match=r"source.bin: cannot be read"):
        load_cached("made", counted.source(), 1.0)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"files": 3}'])
def test_entry_with_damaged_meta_is_made_again(counted, content):
    (load_cached("made", counted.source(), 1.0).folder / "meta.json").write_text(content)
    assert len(load_cached("made", counted.source(), 1.0).train) == 4
    assert counted.decoded == 2


def test_what_a_killed_process_left_is_removed(counted):
    entry = load_cached("made", counted.source(), 1.0).folder
    aside = entry.with_name(f".part-0123456789abcdef-{entry.name}")
    entry.rename(aside)
    (aside / "meta.json").unlink()
    assert load_cached("made", counted.source(), 1.0).folder == entry
    assert not aside.exists()


def test_cache_that_cannot_be_made_is_told(counted, monkeypatch):
    monkeypatch.setenv("RAYFED_KD_CACHE", str(counted.file / "below-a-file"))
    with pytest.raises(DataError, match=r"cache folder .* cannot be made .* set RAYFED_KD_CACHE"):
        load_cached("made", counted.source(), 1.0)


def test_full_disk_is_told_and_leaves_nothing(counted, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.np, "save", full)
    with pytest.raises(DataError, match=r"cannot be written .*No space left"):
        load_cached("made", counted.source(), 1.0)
    assert not list(cache.cache_folder().glob("*made-*"))


def test_cache_folder_follows_the_desktops_rule(tmp_path, monkeypatch):
    monkeypatch.delenv("RAYFED_KD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "rayfed-kd"


PIXELS, LABELS = np.zeros((4, 1, 2, 2), dtype=np.uint8), np.array([0, 1, 0, 1])
TRAIN, AB = Split(PIXELS, LABELS), ("a", "b")
TOKENS = np.array([[1, 0], [5, 2], [1, 1], [0, 0]])


NONSENSE = {
    "count": (RawDataset(Split(PIXELS[:3], LABELS), None, AB), "3 images and 4 labels"),
    "rank": (RawDataset(Split(PIXELS[:, 0], LABELS), None, AB), r"expected \[n, c, h, w\] pixels"),
    "order": (RawDataset(Split(np.zeros((4, 5, 5, 3), np.uint8), LABELS), None, AB), "with channels last"),
    "order of floats": (
        RawDataset(Split(np.zeros((4, 5, 5, 3), np.float32), LABELS), None, AB),
        "with channels last",
    ),
    "type": (RawDataset(Split(PIXELS.astype(float), LABELS), None, AB), "images are float64"),
    "test-shape": (RawDataset(TRAIN, Split(PIXELS[..., :1], LABELS), AB), r"test samples are \(1, 2, 1\)"),
    "statistics": (RawDataset(TRAIN, None, AB, (0.5,) * 3, (0.5,) * 3), "3 values of mean"),
    "mean alone": (RawDataset(TRAIN, None, AB, (0.5,)), "1 values of mean, 0 of std"),
    "mask": (RawDataset(Split(np.ma.array(TRAIN.images), LABELS), None, AB), "are a MaskedArray"),
    "a column of labels": (RawDataset(Split(TRAIN.images, LABELS[:, None]), None, AB), r"\(4, 1\)"),
    "writers": (RawDataset(TRAIN, None, AB, writers=LABELS[:2]), "2 writers of 4 training samples"),
    "column": (
        RawDataset(TRAIN, None, AB, columns={"site": LABELS[:3]}),
        "3 values of the column site of 4 training samples",
    ),
    "masked writers": (RawDataset(TRAIN, None, AB, writers=np.ma.array(LABELS)), "a MaskedArray"),
    "objects": (RawDataset(TRAIN, None, AB, columns={"at": LABELS.astype(object)}), "of object"),
    "0 and 1": (RawDataset(TRAIN, None, AB, writers=LABELS, held_out=LABELS), r"expected \[n\] bool"),
    "deviation": (RawDataset(TRAIN, None, AB, (0.5,), (0.0,)), "deviations above 0"),
    "division": (RawDataset(TRAIN, None, AB, held_out=LABELS > 0), "expected writers as well"),
    "text": (RawDataset(TRAIN, None, AB, sample=TextShape(2, 5)), r"tokens are uint8 of \(1, 2, 2\)"),
    "token": (
        RawDataset(Split(TOKENS, LABELS), None, AB, sample=TextShape(2, 5)),
        "5 in sample 1, place 0; expected whole numbers from 0 to 4",
    ),
    "code": (
        RawDataset(Split(TOKENS.astype(np.float32) / 2, LABELS), None, AB, sample=RowShape(1, [4])),
        "0.5 in sample 2, place 1; expected whole numbers from 0 to 3",
    ),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_source_that_hands_over_nonsense_is_refused(what, counted, monkeypatch):
    raw, told = NONSENSE[what]
    monkeypatch.setattr(counted, "decode", lambda: raw)
    with pytest.raises(DataError, match=f"data made.*{told}"):
        load_cached("made", counted.source(), 1.0)
