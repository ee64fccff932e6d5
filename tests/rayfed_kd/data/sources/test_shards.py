"""A zoo of `save_to_disk` folders and WebDataset shards, by hand: read as what they are, or refused."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from image_files import images, png

GREY = images(4, 6, 5)
ENCODED = [png(one) for one in GREY]
NAMES = {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}


def write_split(folder, *shards, label=int):
    """Shards of these labels, and the JSON beside them, as `datasets` writes them."""
    folder.mkdir(parents=True)
    files = [f"data-{place:05}-of-{len(shards):05}.arrow" for place in range(len(shards))]
    for file, labels in zip(files, shards, strict=True):
        column = [{"bytes": ENCODED[place], "path": None} for place in range(len(labels))]
        table = pa.table({"image": column, "label": list(map(label, labels))})
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": NAMES})} if label is int else None
        )
        with pa.ipc.new_stream(folder / file, table.schema) as stream:
            stream.write_table(table)
    (folder / "state.json").write_text("{}")
    return folder / files[-1]


def splits(folder):
    write_split(folder / "test", [1, 0])
    write_split(folder / "validation", [0])
    write_split(folder / "train", [0, 1], [1])
    pixels = GREY[[0, 1, 0], None]
    note = r"validation/\*.arrow is not used; 'data.test=\"validation/\*.arrow\"' makes"
    written = {"labels": [0, 1, 1], "names": ("cat", "dog"), "test_labels": [1, 0], "images": pixels}
    return written | {"notes": [note]}


def one_dataset(folder):
    write_split(folder / "saved", [1, 0])
    return {"labels": [1, 0], "names": ("cat", "dog")}


def texts(folder):
    write_split(folder / "train", ["b", "a"], label=str)
    return {"labels": [1, 0], "names": ("a", "b")}


def no_split_train(folder):
    write_split(folder / "validation", [0])
    return r"data.train = 'train/\*.arrow' names no file in .*There are validation/data-00000-of-00001.arrow"


def cut_between_batches(folder):
    file = write_split(folder / "train", [0, 1])
    file.write_bytes(file.read_bytes()[:-8])
    return "data-00000-of-00001.arrow: not readable as Arrow .*cut off"


def lost_shard(folder):
    write_split(folder / "train", [0], [1]).unlink()
    return r"data-\*.arrow: their names say that there are 2; found 1. A pattern without \* takes"


def stray_shard(folder):
    file = write_split(folder / "train", [0, 1])
    file.with_name("data-00000-of-00003.arrow").write_bytes(file.read_bytes())
    return r"data-\*.arrow: their names say that there are 3; found 1"


@pytest.mark.parametrize(
    "write", [splits, texts, no_split_train, cut_between_batches, lost_shard, stray_shard]
)
def test_a_saved_folder_is_what_it_means_or_one_line(write, tmp_path, read_or_refused):
    read_or_refused("arrow", write(tmp_path))


def test_a_saved_dataset_alone_trains(tmp_path, read_or_refused):
    read_or_refused("arrow", one_dataset(tmp_path), folder=tmp_path / "saved")


def write_tar(path, *samples):
    """A shard of (key, ending -> content) each."""
    with tarfile.open(path, "w") as shard:
        for key, sample in samples:
            for ending, content in sample.items():
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    return path


def pair(place, label, image=None):
    return f"0000{place}", {"png": image or ENCODED[place], "cls": str(label).encode()}


def two_shards(folder):
    for shard in (1, 0):
        write_tar(folder / f"train-{shard:06}.tar", pair(0, shard), pair(1, 1))
    write_tar(folder / "test-000000.tar", pair(2, 1), pair(3, 0))
    return {
        "labels": [0, 1, 1, 1],
        "names": ("0", "1"),
        "images": GREY[[0, 1, 0, 1], None],
        "test_labels": [1, 0],
        "test_images": GREY[2:, None],
    }


def json_labels(folder):
    samples = [
        (f"a/{place}", {"jpg": ENCODED[place], "json": b'{"label": "%c"}' % b"yx"[place]}) for place in (0, 1)
    ]
    write_tar(folder / "train.tar", *samples, ("__meta__", {"json": b"{}"}), ("._a", {"png": b"of macOS"}))
    return {"labels": [1, 0], "names": ("x", "y")}


def cut_in_a_file(folder):
    path = write_tar(folder / "train.tar", pair(0, 0), pair(1, 1))
    path.write_bytes(path.read_bytes()[:1900])
    return "train.tar: not readable as tar .unexpected end of data"


def cut_between_files(folder):
    path = write_tar(folder / "train.tar", pair(0, 0), pair(1, 1))
    path.write_bytes(path.read_bytes()[:2048])  # two headers, two files below 512 bytes
    return "train.tar: not readable as tar .damaged or cut off after 1 samples"


def damaged_header(folder):
    path = write_tar(folder / "train.tar", pair(0, 0), pair(1, 1))
    content = bytearray(path.read_bytes())
    content[2048] ^= 1
    path.write_bytes(content)
    return "train.tar: not readable as tar .damaged or cut off after 1 samples"


def both_parts(folder):
    write_tar(folder / "latest-train.tar", pair(0, 0), pair(1, 1))
    return "latest-train.tar trains and tests; .* data.test=null"


TARS = [two_shards, json_labels, cut_in_a_file, cut_between_files, damaged_header, both_parts]


@pytest.mark.parametrize("write", TARS)
def test_tar_shards_are_what_they_mean_or_one_line(write, tmp_path, read_or_refused):
    read_or_refused("webdataset", write(tmp_path))


UNFIT = {
    "no image": ({"cls": b"1", "npy": b""}, "cls and npy; expected one image"),
    "no label": (
        {"png": ENCODED[0], "txt": b"cat"},
        r"png and txt; expected one label, as cls or json.label.*data.label_",
    ),
    "no key": ({"png": ENCODED[0], "json": b'{"kind": 1}'}, "png, json and json.kind; expected one label"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_sample_without_image_or_label_is_refused(kind, tmp_path, read_or_refused):
    sample, message = UNFIT[kind]
    write_tar(tmp_path / "train.tar", ("00001", sample))
    read_or_refused("webdataset", f"train.tar, 00001: the sample has {message}")


def test_options_name_image_and_label_and_make_images_alike(tmp_path, read_or_refused):
    flat = [png(np.full((side, side, 3), 7, np.uint8)) for side in (4, 9)]
    samples = [
        (f"{place}", {"left.png": flat[place], "right.png": ENCODED[0], "json": b'{"kind": %d}' % place})
        for place in (0, 1)
    ]
    write_tar(tmp_path / "all.tar", *samples)
    options = {"train": "all.tar", "image_column": "left.png", "label_column": "json.kind"}
    written = {"labels": [0, 1], "images": np.full((2, 1, 3, 3), 7)}
    read_or_refused("webdataset", written, **options, size=3, colour="grey")
