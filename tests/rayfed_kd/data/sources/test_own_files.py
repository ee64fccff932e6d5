"""A user's own files by name: folders of images, CSV, .npz; what is broken is told in one message."""

import importlib
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import images
from PIL import Image
from runs import run_in_process
from small_recipes import THREE_CLIENTS

from rayfed_kd.data.loading import load_dataset
from rayfed_kd.errors import DataError, RecipeError, setting
from rayfed_kd.recipe.loading import overridden
from rayfed_kd.recipe.torchvision_import import import_torchvision

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def pictures(tmp_path):
    return tmp_path / "pictures"


def write_images(folder, count, *shape, seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    for place, pixels in enumerate(images(count, *shape, seed=seed)):
        Image.fromarray(pixels).save(folder / f"{place}.png")


def test_a_folder_of_classes_is_read_as_torchvision_reads_it(pictures):
    datasets = importlib.import_module(f"{import_torchvision().__name__}.datasets")
    for place, name in enumerate(("cat", "dog", "ant")):
        write_images(pictures / name / "deep", 2 + place, 6, 5, 3, seed=place)
    (pictures / "cat" / "notes.txt").write_text("no image")
    theirs = datasets.ImageFolder(pictures)
    data = load_dataset("image_folder", pictures)
    assert data.class_names == tuple(theirs.classes)
    assert data.train.labels.tolist() == theirs.targets
    assert np.array_equal(
        data.train.images, [np.asarray(picture).transpose(2, 0, 1) for picture, _ in theirs]
    )
    assert data.test is None


def test_images_are_resized_and_cut_as_torchvisions_transforms_do_it(pictures):
    transforms = importlib.import_module(f"{import_torchvision().__name__}.transforms")
    write_images(pictures / "a", 1, 40, 60, 3)
    picture = Image.open(pictures / "a" / "0.png")
    cut = transforms.Compose([transforms.Resize(16), transforms.CenterCrop(16)])(picture)
    data = load_dataset("image_folder", pictures, options={"size": 16})
    assert np.array_equal(data.train.images[0], np.asarray(cut).transpose(2, 0, 1))
    stretched = load_dataset("image_folder", pictures, options={"size": 16, "fit": "stretch"})
    expected = picture.resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(stretched.train.images[0], np.asarray(expected).transpose(2, 0, 1))


def test_a_test_part_is_drawn_from_each_class_and_the_seed_decides(pictures):
    for place, name in enumerate("ab"):
        write_images(pictures / name, 10, 4, 4, seed=place)
    options = {"colour": "grey", "test_fraction": 0.3}
    data = load_dataset("image_folder", pictures, options=options)
    assert data.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    again = load_dataset("image_folder", pictures, options=options)
    other = load_dataset("image_folder", pictures, options={**options, "split_seed": 1})
    assert np.array_equal(data.test.images, again.test.images)
    assert not np.array_equal(data.test.images, other.test.images)
    whole = load_dataset("image_folder", pictures, options={"colour": "grey"}).train
    together = np.concatenate([data.train.images, data.test.images])
    assert sorted(map(bytes, together)) == sorted(map(bytes, whole.images))


def test_a_file_that_moves_to_another_class_is_of_that_class(pictures):
    """The same files in the same order, before and after."""
    for name in "ab":
        write_images(pictures / name, 2, 4, 4)
    assert load_dataset("image_folder", pictures).train.labels.tolist() == [0, 0, 1, 1]
    (pictures / "b" / "0.png").rename(pictures / "a" / "2.png")
    assert load_dataset("image_folder", pictures).train.labels.tolist() == [0, 0, 0, 1]


def test_a_link_to_a_folder_in_a_class_is_told(pictures):
    write_images(pictures / "a", 1, 4, 4)
    (pictures / "a" / "more").symlink_to(pictures / "a")
    assert "files that are left out: 1 linked folder(s)" in load_dataset("image_folder", pictures).notes


def no_folder(place):
    return (
        {},
        place / "nothing",
        "data.folder: no folder .*/nothing; expected one with a folder for each class",
    )


def two_sizes(place):
    write_images(place / "a", 1, 4, 4)
    write_images(place / "b", 1, 4, 5)
    return {}, place, r"b/0.png: an image of \(3, 4, 5\); expected \(3, 4, 4\).*data.size=32"


def no_picture(place):
    write_images(place / "a", 1, 4, 4)
    (place / "a" / "1.jpg").write_text("no image")
    return {}, place, r"a/1.jpg: no image format that Pillow knows"


def test_part_twice(place):
    write_images(place / "train" / "a", 1, 4, 4)
    write_images(place / "test" / "a", 1, 4, 4)
    return {"test_fraction": 0.5}, place, "data.test_fraction: the data have an official test set; expected 0"


test_part_twice.__test__ = False  # a case


@pytest.mark.parametrize("case", [no_folder, two_sizes, no_picture, test_part_twice])
def test_a_bad_folder_is_one_message(case, tmp_path):
    (tmp_path / "pictures").mkdir()
    options, folder, message = case(tmp_path / "pictures")
    with pytest.raises((DataError, RecipeError), match=message):
        load_dataset("image_folder", folder, options=options)


TABLE = "x,kind,y,site\n1,b,10,n\n3,a,10,s\n5,b,40,n\n"


def read_csv(tmp_path, text=TABLE, **options):
    (tmp_path / "train.csv").write_text(text)
    return load_dataset("csv", tmp_path, options={"label_column": "kind", "categorical": [], **options})


def test_a_csv_files_rows_have_clients(tmp_path):
    assert read_csv(tmp_path, client_column="site").writers.tolist() == [0, 1, 0]
    named = read_csv(tmp_path, TABLE.replace(",s\n", ",NA\n"), client_column="site")
    assert named.notes == ("'NA' is a client of its own, no missing value",)
    versions = read_csv(
        tmp_path, TABLE.replace(",n\n", ",1.1\n").replace(",s\n", ",1.10\n"), client_column="site"
    )
    assert versions.writers.tolist() == [0, 1, 0]
    floats = read_csv(tmp_path, TABLE.replace(",n\n", ",1.0\n").replace(",s\n", ",1\n"), client_column="site")
    assert floats.writers.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "value", [",", " ", "\t", "it's", ["?"], ["Unnamed: 0", "no"], "*.parquet", "caf\u00e9 \u202f"]
)
def test_a_messages_setting_reaches_the_recipe_through_a_shell(value):
    (line,) = shlex.split(setting("data.key", value))
    assert overridden({}, line) == {"data": {"key": value}}


@pytest.mark.parametrize("mark", [",", " ", "\t", "'", "|", "~"])
def test_one_mark_is_an_overrides_text_without_quotes(mark):
    assert overridden({}, f"data.key={mark}") == {"data": {"key": mark}}


def test_a_form_of_csv_beside_parquet_is_told(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "label": ["a", "b"]}), tmp_path / "train.parquet")
    options = {"train": "train.parquet", "null_values": ["?"]}
    with pytest.raises(RecipeError, match=r"data.null_values: train.parquet is Parquet; expected no form"):
        load_dataset("csv", tmp_path, options=options)


def test_a_csv_file_may_name_images_and_is_read_again_when_one_changes(tmp_path):
    write_images(tmp_path / "pictures", 2, 4, 4, 3)
    text = "file,kind\npictures/0.png,b\npictures/1.png,a\n"
    data = read_csv(tmp_path, text, image_column="file")
    assert np.array_equal(data.train.images, images(2, 4, 4, 3).transpose(0, 3, 1, 2))
    write_images(tmp_path / "pictures", 2, 4, 4, 3, seed=1)
    assert np.array_equal(
        read_csv(tmp_path, text, image_column="file").train.images,
        images(2, 4, 4, 3, seed=1).transpose(0, 3, 1, 2),
    )


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TABLE, {"train": "trian.csv"}, r"data.train = 'trian.csv' names no file in .* There are train.csv"),
        (TABLE, {"label_column": "kinds"}, r"there are x, kind, y, site. Did you mean kind\?"),
        ("x,kind\n1,a\nnan,b\n", {}, "train.csv, row 2: "),
        ("kind,file\na,0.png\n", {"image_column": "file"}, "row 1: no file .*/0.png"),
        (TABLE, {"numeric": ["x"], "image_column": "y"}, "data.numeric: images have no features"),
        (TABLE, {"missing": "mean", "image_column": "y"}, "data.missing: images have no features"),
        (TABLE, {"size": 8}, "data.size: only images have it, by data.image_column"),
        (TABLE, {"test_fraction": 0.1}, "data.test_fraction: 0.1 of each class is no sample"),
        (TABLE, {"split_seed": 1}, "data.split_seed: without data.test_fraction nothing is drawn"),
    ],
)
def test_a_bad_table_is_one_message(tmp_path, text, options, message):
    with pytest.raises((DataError, RecipeError), match=message):
        read_csv(tmp_path, text, **options)


def test_a_class_of_the_test_file_alone_is_told(tmp_path):
    (tmp_path / "held.csv").write_text("x,kind,y,site\n3,c,20,n\n")
    with pytest.raises(DataError, match=r"held.csv, column 'kind': the class 'c' is not in .*train.csv"):
        read_csv(tmp_path, numeric=["x"], test="held.csv")


def read_npz(tmp_path, arrays, **options):
    np.savez(tmp_path / "some.npz", **arrays)
    return load_dataset("npz", tmp_path, options={"file": "some.npz", **options})


LABELS, GREY = np.array([[0], [2], [1]], np.uint8), images(3, 4, 4)


def test_arrays_are_read_by_their_keys(tmp_path):
    pixels = images(3, 6, 5, 3)
    arrays = {"x_train": pixels, "y_train": LABELS, "x_test": pixels[:1], "y_test": LABELS[:1]}
    data = read_npz(tmp_path, arrays)
    assert np.array_equal(data.train.images, pixels.transpose(0, 3, 1, 2))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 2, 1], [0])
    assert data.class_names == ("0", "1", "2")
    own = read_npz(tmp_path, {"a": images(3, 6, 5), "b": LABELS}, images="a", labels="b")
    assert (own.train.images.shape, own.test) == ((3, 1, 6, 5), None)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": LABELS, "y_train": LABELS}, {}, "no array 'x_train'; there are x, y_train"),
        (
            {"x_train": GREY.astype(int), "y_train": LABELS},
            {},
            "is int64; expected pixels as uint8, .*x / 255",
        ),
        ({"x_train": 1.7e9 + np.eye(3, 2), "y_train": LABELS}, {}, "numbers that float32 cannot tell apart"),
        ({"x_train": np.full((3, 2), np.nan), "y_train": LABELS}, {}, "NaN, infinite"),
        ({"x_train": images(3, 4), "y_train": LABELS}, {}, "x_train has 2 dimensions; expected"),
        ({"x_train": GREY, "y_train": LABELS}, {"test_images": None}, "give both, or null for both"),
        ({"x_train": GREY, "y_train": LABELS, "x_test": GREY}, {}, "no array 'y_test'"),
    ],
)
def test_bad_arrays_are_one_message(tmp_path, arrays, options, message):
    with pytest.raises((DataError, RecipeError), match=message):
        read_npz(tmp_path, arrays, **options)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off", None])
def test_a_file_that_is_no_archive_is_told(tmp_path, content):
    np.save(tmp_path / "one.npy", LABELS)
    if content is not None:
        (tmp_path / "one.npy").write_bytes(content)
    message = "one array without a key" if content is None else "not readable as .npz"
    with pytest.raises(DataError, match=f"one.npy: {message}"):
        load_dataset("npz", tmp_path, options={"file": "one.npy"})


def trained_on(data, model):
    """The metrics of one round of FedAvg with two clients."""
    recipe = {
        **THREE_CLIENTS,
        "model": model,
        "data": data,
        "partition": {"name": "iid", "clients": 2, "test": "official"},
        "local": {"epochs": 1, "batch_size": 4, "optimizer": {"name": "sgd", "lr": 0.1}},
        "rounds": 1,
    }
    return run_in_process(recipe).rows["metrics"]


def test_each_kind_of_own_files_trains_a_model(tmp_path):
    """Six samples of each of two classes, of which a third is the test set: 4 samples."""
    for place, name in enumerate("ab"):
        write_images(tmp_path / "pictures" / name, 6, 8, 8, seed=place)
    numbers = np.random.default_rng(1).normal(size=(12, 3))
    rows = [",".join([*(f"{one:.3f}" for one in row), "ab"[place % 2]]) for place, row in enumerate(numbers)]
    (tmp_path / "train.csv").write_text("\n".join(["x,y,z,label", *rows]))
    pixels = np.random.default_rng(2).integers(0, 256, (12, 8, 8), np.uint8)
    np.savez(tmp_path / "arrays.npz", x_train=pixels, y_train=np.arange(12) % 2)
    test = {"test_fraction": 0.34}
    of_images = {"name": "image_folder", "folder": str(tmp_path / "pictures"), "colour": "grey", **test}
    of_arrays = {"name": "npz", "folder": str(tmp_path), "file": "arrays.npz", **test}
    of_numbers = {"name": "csv", "folder": str(tmp_path), **test}
    mlp, lenet = {"name": "mlp", "hidden": 4}, {"name": "lenet5"}
    for data, model in ((of_images, lenet), (of_arrays, mlp), (of_numbers, mlp)):
        (row,) = trained_on(data, model)
        # Of four test samples some are right: a quarter, a half, three quarters, all, or none.
        assert row["server_accuracy"] in (0.0, 0.25, 0.5, 0.75, 1.0)
