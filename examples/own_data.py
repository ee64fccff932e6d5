"""Short forms of the package's sources `image_folder` and `csv`, to be changed. Each is one marked function.
From the folder of this file:

    rayfed-kd run quickstart data='{name: own_data:image_folder, folder: /data/birds, side: 32}'
    rayfed-kd run quickstart data='{name: own_data:csv_table, folder: /data, file: iris.csv}' \
        method='{name: fedavg}' model.name=mlp
"""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

import rayfed_kd
from rayfed_kd.data.dataset import RawDataset, Source, Split


@rayfed_kd.data_source
def image_folder(folder: Path, *, side: int = 32) -> Source:
    """Pictures of any size; the name of the subfolder that a picture lies in is its class."""
    files = sorted(path for path in folder.glob("*/*") if path.suffix in (".png", ".jpg"))
    classes = sorted({path.parent.name for path in files})

    def decode() -> RawDataset:
        pictures = [Image.open(path).convert("RGB").resize((side, side)) for path in files]
        pixels = np.stack([np.asarray(picture) for picture in pictures]).transpose(0, 3, 1, 2)
        labels = np.array([classes.index(path.parent.name) for path in files])
        return RawDataset(Split(pixels, labels), None, tuple(classes))

    return Source(files, {}, decode)  # decoded once, and again when a file changes


@rayfed_kd.data_source
def csv_table(folder: Path, *, file: str, label: str = "label") -> Source:
    """A column of labels; all other columns are numbers. No official test set."""

    def decode() -> RawDataset:
        rows = list(csv.DictReader((folder / file).read_text().splitlines()))
        classes = sorted({row[label] for row in rows})
        labels = np.array([classes.index(row.pop(label)) for row in rows])
        features = np.array([[float(value) for value in row.values()] for row in rows], np.float32)
        return RawDataset(Split(features, labels), None, tuple(classes))

    return Source([folder / file], {}, decode)


if __name__ == "__main__":
    stream = np.random.default_rng(1)  # made up here: dark and bright pictures, and two heaps of points
    lines = ["x,y,label"]
    for index, bright in enumerate([0, 1] * 100):
        file = Path("pictures", ("dark", "bright")[bright], f"{index}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(stream.integers(80 * bright, 100 + 80 * bright, (40, 50, 3), np.uint8)).save(file)
        lines.append("{},{},{}".format(*stream.normal(bright, 0.5, 2), ("left", "right")[bright]))
    Path("points.csv").write_text("\n".join(lines))
    for data in ("image_folder, folder: pictures", "csv_table, folder: ., file: points.csv"):
        overrides = [f"data={{name: own_data:{data}}}", "model.name=mlp", "method={name: fedavg}", "rounds=3"]
        result = rayfed_kd.run("quickstart", overrides, local=True)
        print(f"{data}: accuracy", result.tables["metrics"].to_pylist()[-1]["amp"])
