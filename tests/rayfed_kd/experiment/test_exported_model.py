"""An exported model stands alone: it is built, fed and checked without the run, its recipe or its data."""

import json
import sys

import numpy as np
import pytest
import torch
from command_line import run_command
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_recipes import THREE_MLPS

import rayfed_kd
from rayfed_kd.errors import DataError, RecipeError

RECIPE = {**THREE_MLPS, "rounds": 1}
OWN = """
from torch import nn
import rayfed_kd

@rayfed_kd.model_builder
def net(shape, classes, *, width: int = 3):
    size = shape[0] * shape[1] * shape[2]
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.BatchNorm1d(width))
    return nn.Sequential(hidden, nn.Linear(width, classes))

def unmarked(shape, classes):
    raise AssertionError("called")
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return rayfed_kd.run(RECIPE, {"results.folder": tmp_path_factory.mktemp("exported") / "run"}, local=True)


@pytest.fixture(scope="module")
def exported(result):
    return rayfed_kd.export(result.folder, "global", result.folder.parent / "best0.1")[0]


@pytest.fixture(scope="module")
def setting(result):
    return rayfed_kd.prepare(result.folder / "config.yaml").setting


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of a model of the user's own, and its export; the module is not importable afterwards."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_net_of_export.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        changes = {"model": {"name": "own_net_of_export:net", "width": 4}, "results.folder": folder / "run"}
        result = rayfed_kd.run(RECIPE, changes, local=True)
        path = rayfed_kd.export(result.folder, "global", folder / "best")[0]
        net = sys.modules.pop("own_net_of_export").net
    return path, net, result.models["global"]


def changed(exported, to, change, state=None):
    """The exported file with another description."""
    with safe_open(exported, "pt") as file:
        description = json.loads(file.metadata()["rayfed_kd"])
    change(description)
    save_file(state or load_file(exported), to, metadata={"rayfed_kd": json.dumps(description)})
    return to


def test_metadata_say_what_the_file_is(exported, setting):
    assert exported.name == "best0.1.safetensors"  # .1 is no ending
    with safe_open(exported, "pt") as file:
        described = json.loads(file.metadata()["rayfed_kd"])
    assert described == {
        "weights": "global, round 1",
        "architecture": {"kind": "classifier", "name": "mlp", "options": {"hidden": 6}},
        "input_shape": [1, 8, 8],
        "outputs": 10,
        "class_names": [str(digit) for digit in range(10)],
        "pixels": True,
        "mean": list(setting.dataset.mean),
        "std": list(setting.dataset.std),
        "sample": {},
    }


def test_loaded_model_predicts_as_the_run_evaluated(exported, result, setting):
    """The run's own count of right predictions on the clients' test parts, from raw pixels alone."""
    model = rayfed_kd.load(exported)
    assert not model.training
    images = torch.from_numpy(np.asarray(setting.dataset.train.images))
    labels = np.asarray(setting.dataset.train.labels)
    with torch.no_grad():
        right = model(images).argmax(dim=1).numpy() == labels
    rows = result.table("clients").to_pylist()
    assert len(rows) == 3
    assert [row["correct"] for row in rows] == [int(right[part].sum()) for part in setting.partition.test]


def test_floats_are_the_same_images_as_pixels(exported, setting):
    model = rayfed_kd.load(str(exported))
    pixels = torch.from_numpy(np.asarray(setting.dataset.train.images[:5]))
    with torch.no_grad():
        expected = model(pixels)
        for floats in (pixels / 255, (pixels / 255).double()):
            torch.testing.assert_close(model(floats), expected, rtol=1e-5, atol=1e-6)
    assert expected.shape == (5, 10)
    assert model.class_names[3] == "3"


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (torch.zeros(1, 8, 8), ValueError, r"expected a batch of shape \[n, 1, 8, 8\], got \[1, 8, 8\]"),
        (torch.zeros(2, 1, 8, 9), ValueError, r"got \[2, 1, 8, 9\]"),
        (torch.full((2, 1, 8, 8), 255.0), ValueError, r"expected floats in \[0, 1\], got 255 to 255"),
        (torch.full((2, 1, 8, 8), -0.5), ValueError, r"images are normalised here"),
        (torch.full((2, 1, 8, 8), float("nan")), ValueError, r"got nan to nan"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.int64), TypeError, r"expected uint8 in \[0, 255\] or floats"),
        (np.zeros((2, 1, 8, 8)), TypeError, "expected a torch.Tensor, got ndarray"),
    ],
)
def test_inputs_of_another_kind_are_refused(exported, images, error, message):
    with pytest.raises(error, match=message):
        rayfed_kd.load(exported)(images)


def test_loading_draws_nothing_from_the_global_generator(exported):
    state = torch.get_rng_state()
    rayfed_kd.load(exported)
    assert torch.equal(torch.get_rng_state(), state)


def test_own_architecture_is_not_imported_but_given(own, tmp_path, monkeypatch):
    path, net, vector = own
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net_of_export.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        RecipeError, match=r"made by own_net_of_export:net, which is code .* as architecture=net"
    ):
        rayfed_kd.load(path)
    assert "own_net_of_export" not in sys.modules
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    by_name, by_module = rayfed_kd.load(path, architecture=net), net((1, 8, 8), 10, width=4)
    floats = [v for v in by_name.state_dict().values() if v.is_floating_point()]
    assert sum(v.numel() for v in floats) == len(vector)
    given = rayfed_kd.load(path, architecture=by_module)
    assert torch.equal(given(images), by_name(images)) and given.module is by_module


def test_code_that_an_option_names_is_not_imported_either(exported, tmp_path, monkeypatch):
    (tmp_path / "own_base.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"kind": "classifier", "name": "projected", "options": {"base": {"name": "own_base:net"}}}
    path = changed(exported, tmp_path / "x.safetensors", lambda d: d.update(architecture=named))
    with pytest.raises(RecipeError, match="made by own_base:net, which is code that this file does not hold"):
        rayfed_kd.load(path)
    assert "own_base" not in sys.modules


def test_torchvisions_model_stands_alone_without_the_file_of_weights_that_it_began_with(tmp_path):
    base = "torchvision:shufflenet_v2_x0_5"
    first = rayfed_kd.run(RECIPE, {"model": {"name": base}, "results.folder": tmp_path / "a"}, local=True)
    weights = rayfed_kd.export(first.folder, "global", tmp_path / "weights")[0]
    begun = {"name": "projected", "features": 8, "base": {"name": base, "weights": str(weights)}}
    second = rayfed_kd.run(RECIPE, {"model": begun, "results.folder": tmp_path / "b"}, local=True)
    path = rayfed_kd.export(second.folder, "global", tmp_path / "alone")[0]
    for name in (weights.name, "alone.safetensors"):
        assert rayfed_kd.load(tmp_path / name)(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    weights.unlink()
    model = rayfed_kd.load(path)
    floats = [part for part in model.state_dict().values() if part.is_floating_point()]
    assert sum(part.numel() for part in floats) == len(second.models["global"])
    assert model.description.architecture.options["base"] == {"name": base}


def test_files_that_are_of_no_export_are_kept(result, tmp_path):
    (tmp_path / "resnet18.safetensors").write_bytes(b"weights")
    with pytest.raises(RecipeError, match=r"resnet18.safetensors is there, and not of an export"):
        rayfed_kd.export(result.folder, "global", tmp_path / "resnet18")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"weights"]
    for _ in range(2):  # a former export is replaced
        rayfed_kd.export(result.folder, "global", tmp_path / "mine")


def test_servers_part_behind_clients_layers_is_told_as_that(tmp_path):
    changes = {"method": {"name": "fedgh"}, "results.folder": tmp_path / "run"}
    result = rayfed_kd.run(RECIPE, changes, local=True)
    with pytest.raises(RecipeError, match="one model behind each client's own first layers, and that part"):
        rayfed_kd.export(result.folder, "global_head", tmp_path / "x", 0)
    whose = result.load("global_head").description.weights
    assert whose == "global_head, the part behind each client's own first layers, round 1"


def test_trackers_of_the_run_are_not_asked_for(tmp_path, monkeypatch):
    methods = (
        "    def start(self, run): pass\n    def round(self, told): pass\n    def end(self, *of): pass\n"
    )
    text = f"import rayfed_kd\nclass Lines(rayfed_kd.Tracker):\n{methods}"
    (tmp_path / "lines_of_export.py").write_text(text)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        changes = {
            "results.trackers": [{"name": "lines_of_export:Lines"}],
            "results.folder": tmp_path / "run",
        }
        result = rayfed_kd.run(RECIPE, changes, local=True)
    sys.modules.pop("lines_of_export")
    assert result.load("global")


def test_file_that_export_did_not_write_is_told(exported, tmp_path):
    with pytest.raises(DataError, match=r"x\.safetensors: no such file; expected a \.safetensors file"):
        rayfed_kd.load(tmp_path / "x.safetensors")
    with pytest.raises(DataError, match="is no safetensors file, or damaged"):
        rayfed_kd.load(exported.with_suffix(".yaml"))
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(DataError, match="does not say what its weights are of"):
        rayfed_kd.load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda d: d.pop("mean"), DataError, "is damaged: .*mean"),
        (lambda d: d["architecture"].update(kind="generator"), DataError, "is damaged"),
        (lambda d: d["architecture"].update(name="mlq"), RecipeError, "'mlq' is not known.*Did you mean mlp"),
        (lambda d: d["architecture"]["options"].update(hiden=3), RecipeError, "hiden is no option of mlp"),
        (lambda d: d["architecture"]["options"].update(hidden=7), DataError, "the weights do not fit mlp"),
        (lambda d: d.update(outputs=10**12), DataError, "parameters: .* GiB, this machine has"),
    ],
)
def test_description_that_does_not_hold_is_told(exported, tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        rayfed_kd.load(changed(exported, tmp_path / "x.safetensors", change))


def test_result_loads_its_models(result, exported):
    images = torch.rand(4, 1, 8, 8)
    assert torch.equal(result.load("global")(images), rayfed_kd.load(exported)(images))
    with pytest.raises(
        RecipeError, match=r"no model is called 'aca'; this run evaluates global. Did you mean global"
    ):
        result.load("aca")


def test_onnx_without_its_packages_is_told_before_anything_is_written(result, tmp_path, monkeypatch):
    monkeypatch.setattr("rayfed_kd.experiment.exporting.NEEDED_BY_ONNX", ("no_such_package", "json"))
    done = run_command("export", result.folder, "--model", "global", "--to", tmp_path / "a", "--onnx")
    assert done.returncode == 2
    assert "pip install -e '.[onnx]' in the clone installs it" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_onnx_file_gives_the_models_logits(result, tmp_path):
    """The packages are no dependency of the tests: `pip install -e '.[onnx]' onnxruntime` brings them."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    paths = rayfed_kd.export(result.folder, "global", tmp_path / "best.yaml", onnx=True)
    assert [path.name for path in paths] == ["best.safetensors", "best.yaml", "best.onnx"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    session = runtime.InferenceSession(str(paths[2]), providers=["CPUExecutionProvider"])
    model = rayfed_kd.load(paths[0])
    for count in (1, 5):
        images = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(count))
        (logits,) = session.run(["logits"], {"images": images.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(logits), model(images), rtol=1e-4, atol=1e-5)
    described = json.loads(session.get_modelmeta().custom_metadata_map["rayfed_kd"])
    assert described["architecture"]["name"] == "mlp"


def test_a_model_of_text_takes_tokens(tmp_path):
    changes = {
        "model": {"name": "word_bag", "width": 4},
        "data": {"name": "synthetic_text", "samples": 60, "length": 5, "vocabulary": 30},
        "results.folder": tmp_path / "run",
    }
    result = rayfed_kd.run(RECIPE, changes, local=True)
    model = rayfed_kd.load(rayfed_kd.export(result.folder, "global", tmp_path / "best")[0])
    tokens = torch.randint(0, 30, (3, 5), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(tokens.to(torch.int32)), model.module(tokens))
    with pytest.raises(ValueError, match="expected tokens from 0 to 29, got"):
        model(tokens + 30)
    with pytest.raises(TypeError, match=r"token numbers of a whole type, got torch.float32"):
        model(tokens.float())
