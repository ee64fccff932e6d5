"""FedKTL's server: the discrepancy by hand, what is trained, and generators given or trained."""

import pytest
import torch
from safetensors.torch import save_file
from small_recipes import THREE_CLIENTS

from rayfed_kd.algorithms.fedktl.alignment import AlignmentOptions, aligned, discrepancy, on_sphere
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare

RECIPE = {
    **THREE_CLIENTS,
    "method": {"name": "fedktl", "generator": {"width": 4, "latent": 6, "epochs": 2, "batch_size": 16}},
    "partition": {"name": "iid", "clients": 2, "public": {"fraction": 0.3}},
}


@pytest.fixture
def setting():
    torch.set_num_threads(1)
    return prepare(RECIPE).setting


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([[1.0, 0.0]], [[0.0, 0.0]], 0.2323894585),
        ([[0.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]], 0.8467210135),
        ([[3.0, 1.0]], [[3.0, 1.0]], 0.0),
    ],
)
def test_discrepancy_by_hand(first, second, expected):
    found = discrepancy(*(torch.tensor(rows, dtype=torch.float64) for rows in (first, second)))
    assert found.item() == pytest.approx(expected, abs=1e-9)


def test_latents_are_of_the_classes_that_came_and_come_closer_to_normal_ones(setting):
    sent = torch.nn.functional.normalize(
        torch.randn(12, 10, generator=torch.Generator().manual_seed(1)), dim=1
    )
    labels, found = torch.tensor([2, 5, 7] * 4), []
    for epochs in (0, 40):
        ctx = setting.server_context(1)
        transformer = ctx.model(ctx.initial_vector("transformer"), "transformer")
        latents = aligned(transformer, sent, labels, AlignmentOptions(server_epochs=epochs), ctx)
        assert latents.classes.tolist() == [2, 5, 7]
        means = torch.stack([transformer.predict(sent[labels == c]).mean(0) for c in (2, 5, 7)])
        torch.testing.assert_close(latents.values, means)
        normal = torch.randn(200, 6, generator=torch.Generator().manual_seed(2))
        found.append(float(discrepancy(transformer.predict(sent), normal[:12])))
    assert found[1] < found[0]


def test_one_output_alone_trains_nothing(setting):
    """BatchNorm has no variance of one."""
    ctx = setting.server_context(1)
    transformer = ctx.model(ctx.initial_vector("transformer"), "transformer")
    before = transformer.vector()
    latents = aligned(transformer, torch.ones(1, 10), torch.tensor([3]), AlignmentOptions(), ctx)
    assert torch.equal(transformer.vector(), before)
    assert latents.classes.tolist() == [3]


def test_latents_of_public_images_lie_where_normal_ones_do():
    lengths = on_sphere(torch.randn(4, 9)).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full((4,), 3.0))


def test_generator_trained_at_the_server_learns_the_public_images(setting):
    """Its mean squared error over all epochs is well below that of the first one."""
    options = setting.method.options.generator
    errors = []
    for epochs in (1, 30):
        ctx = setting.server_context(1)
        options.model_copy(update={"epochs": epochs, "lr": 0.01}).trained(ctx)
        total, count = ctx.logged()["generator_mse"]
        errors.append(total / count)
    assert errors[1] < 0.8 * errors[0]


def test_generator_given_as_a_file_is_the_servers(setting, tmp_path):
    ctx = setting.server_context(1)
    vector = ctx.redrawn_vector(7, "generator").cpu()
    state = ctx.model(vector, "generator").module.state_dict()
    path = tmp_path / "generator.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    given = {**RECIPE["method"], "generator": {**RECIPE["method"]["generator"], "file": str(path)}}
    private = {key: value for key, value in RECIPE["partition"].items() if key != "public"}
    with_file = prepare({**RECIPE, "method": given, "partition": private}).setting
    assert with_file.method.public == "none"
    server = with_file.method.init_server(with_file.server_context())
    assert torch.equal(server.generator, vector)
    other = {**given, "generator": {**given["generator"], "width": 6}}
    with pytest.raises(RecipeError, match=r"method\.generator\.file: .* is not of dafl_image"):
        prepare({**RECIPE, "method": other})
    path.write_bytes(b"no tensors")
    with pytest.raises(RecipeError, match="cannot be read as safetensors"):
        prepare({**RECIPE, "method": given})
    path.unlink()
    with pytest.raises(RecipeError, match="cannot be read as safetensors"):
        prepare({**RECIPE, "method": given})
