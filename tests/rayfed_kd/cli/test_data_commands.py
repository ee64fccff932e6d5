"""`rayfed-kd data` and `data check`: what is known of named sets, and what a folder has."""

import json

import numpy as np
import pytest
from command_line import run_command
from image_files import images, png, write_parquet
from PIL import Image

from rayfed_kd.data import SOURCES
from rayfed_kd.data.sources.image_sets import known_sets
from rayfed_kd.recipe.torchvision_import import import_torchvision

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def place(tmp_path):
    return tmp_path / "place"


def write_folder(folder, classes=("cat", "dog"), count=2, side=6):
    for shade, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((side, side, 3), 200 * shade + number, np.uint8)
            (folder / name / f"{number}.png").write_bytes(png(pixels))


def checked(*words, code=0):
    done = run_command("data", "check", *words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_every_source_says_what_it_reads_and_named_sets_where_they_are():
    listed = {one["name"]: one for one in json.loads(run_command("data", "--json").stdout)}
    assert list(listed) == list(SOURCES)
    assert all(one["summary"] for one in listed.values())
    import_torchvision()
    from torchvision import datasets

    for name, known in (("mnist", datasets.MNIST), ("fashion_mnist", datasets.FashionMNIST)):
        assert listed[name]["files"] == {known.mirrors[0] + file: md5 for file, md5 in known.resources}
    for name, known in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        assert listed[name]["files"] == {known.url: known.tgz_md5}
    assert listed["emnist_letters"]["files"] == {datasets.EMNIST.url: datasets.EMNIST.md5}
    svhn = [datasets.SVHN.split_list[part] for part in ("train", "test")]
    assert listed["svhn"]["files"] == {address: md5 for address, _, md5 in svhn}
    assert {name for name, one in listed.items() if "files" in one} == set(known_sets())
    assert datasets.CIFAR10.url in run_command("data").stdout


@pytest.mark.pictures
def test_a_folder_of_images_is_told_and_drawn(place, tmp_path):
    write_folder(place / "train")
    write_folder(place / "test", count=1)
    sheet = tmp_path / "sheet.png"
    (found,) = checked(place, "--sheet", sheet)
    assert (found["shape"], found["dtype"]) == ([3, 6, 6], "uint8")
    assert found["train"] == {"samples": 4, "classes": 2, "by_class": {"cat": 2, "dog": 2}}
    assert found["test"]["by_class"] == {"cat": 1, "dog": 1}
    assert found["data"] == {"name": "image_folder", "folder": str(place)}
    colours = {colour for _, colour in Image.open(sheet).convert("RGB").getcolors(1 << 20)}
    assert {(0, 0, 0), (1, 1, 1), (200, 200, 200), (201, 201, 201)} <= colours
    said = run_command("data", "check", place).stdout
    assert f"data: {{name: image_folder, folder: {place}}}\n" in said
    assert "  by_class: {cat: 2, dog: 2}\n" in said


def test_named_sets_stand_beside_each_other_and_others_go_by_their_layout(place):
    write_parquet(place / "mnist" / "train-0.parquet", images(3, 28, 28), [0, 1, 2])
    write_parquet(place / "cifar10" / "train-0.parquet", images(3, 32, 32, 3), [0, 1, 2])
    assert [one["data"]["name"] for one in checked(place)] == ["mnist", "cifar10"]
    assert [one["data"]["name"] for one in checked(place / "mnist")] == ["mnist"]
    (place / "mnist").rename(place / "mine")
    assert [one["data"]["name"] for one in checked(place / "mine")] == ["parquet"]


def test_a_file_alone_goes_by_its_suffix_and_options_are_those_of_a_recipe(place):
    place.mkdir()
    (place / "iris.csv").write_text("length,species\n1.5,a\n2.5,b\n")
    for what in (place, place / "iris.csv"):
        (found,) = checked(what, "data.label_column=species")
        assert (found["data"]["name"], found["shape"]) == ("csv", [1])
        assert found["train"]["by_class"] == {"a": 1, "b": 1}
    (found,) = checked(place, code=2)
    assert "data.label_column = 'label'" in found["problem"]


def test_files_with_a_fault_are_a_problem_and_others_are_read(place):
    write_folder(place / "birds")
    (place / "birds" / "cat" / "0.png").write_bytes(b"no image")
    (birds,) = checked(place / "birds", code=2)
    assert (birds["data"]["name"], "train" in birds) == ("image_folder", False)
    assert "cat/0.png: no image format" in birds["problem"]
    write_parquet(place / "mnist" / "train-0.parquet", images(3, 32, 32), [0, 1, 2])
    write_parquet(place / "cifar10" / "train-0.parquet", images(3, 32, 32, 3), [0, 1, 2])
    mnist, cifar = checked(place, code=2)
    assert "images are (1, 32, 32), expected (1, 28, 28)" in mnist["problem"]
    assert cifar["train"]["samples"] == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["."], "has 1 .docx; no source reads them: `rayfed-kd data` lists"),
        *(([".", word], "expected options of the data") for word in ("rounds=3", "data=5")),
        ([".", "data.folder=x"], "--source and FOLDER say the others"),
    ],
)
def test_what_is_not_there_is_one_message(words, told, tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "a.docx").write_text("")
    done = run_command("data", "check", *words, folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_a_sheet_is_of_images(place, tmp_path):
    place.mkdir()
    np.savez(place / "a.npz", x_train=np.zeros((2, 3), np.float32), y_train=[0, 1])
    done = run_command("data", "check", place, "--sheet", tmp_path / "sheet.png")
    assert (done.returncode, "0 data sets of images" in done.stderr) == (2, True)
