"""Models of text and of rows: what they compute, what they refuse, and that they train in groups."""

import copy
import pickle

import pytest
import torch

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.mlp import mlp, row_mlp
from rayfed_kd.models.text import FIRST, SECOND, fast_text, text_transformer, word_bag
from rayfed_kd.recipe.sample_shapes import RowShape, TextShape, shape_details, shape_of

TEXT = TextShape(6, 20)
ROW = RowShape(2, [3, 4])
TOKENS = torch.tensor([[5, 7, 5, 0, 0, 0], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]])
BUILDERS = {"word_bag": word_bag, "fast_text": fast_text, "text_transformer": text_transformer}


@pytest.mark.parametrize("shape", [TEXT, ROW])
def test_shapes_are_tuples_that_keep_what_they_know(shape):
    for again in (
        copy.deepcopy(shape),
        pickle.loads(pickle.dumps(shape)),
        shape_of(tuple(shape), shape_details(shape)),
    ):
        assert (type(again), again, vars(again)) == (type(shape), tuple(shape), vars(shape))
    assert shape_details((1, 8, 8)) == {}


@pytest.mark.parametrize(
    ("build", "parameters"), [("word_bag", 16_516), ("fast_text", 73_796), ("text_transformer", 134_148)]
)
def test_parameters_are_those_of_the_docstring(build, parameters):
    with torch.device("meta"):
        model = BUILDERS[build](TextShape(16, 512), 4)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert f"{parameters:,} parameters" in BUILDERS[build].__doc__


@pytest.mark.parametrize("build", BUILDERS)
def test_padding_changes_nothing_and_an_empty_text_is_no_nan(build):
    torch.manual_seed(0)
    model = BUILDERS[build](TEXT, 3).eval()
    features = model.features(TOKENS)
    assert torch.isfinite(model(TOKENS)).all()
    assert torch.allclose(model.classify(features), model(TOKENS))
    # Others in the batch do not matter, nor does what lies in the embedding of padding.
    with torch.no_grad():
        model.body[0].words.weight[0] += 9
    assert torch.allclose(model.features(TOKENS[:2]), features[:2], atol=1e-6)


def test_a_bag_is_the_mean_of_its_words():
    model = word_bag(TEXT, 3)
    words = model.body[0].words.weight
    expected = (2 * words[5] + words[7]) / 3
    assert torch.allclose(model.features(TOKENS)[0], expected, atol=1e-6)


def test_pairs_of_neighbours_have_embeddings_by_a_hash():
    model = fast_text(TEXT, 3, buckets=11)
    words, pairs = model.body[0].words.weight, model.body[0].pairs.weight
    hashed = [pairs[(a * FIRST + b * SECOND) % 11] for a, b in [(5, 7), (7, 5)]]
    expected = (2 * words[5] + words[7] + sum(hashed)) / 5
    assert torch.allclose(model.features(TOKENS)[0], expected, atol=1e-6)


def test_order_matters_to_the_transformer_and_not_to_the_bag():
    turned = TOKENS[1:2].flip(1)
    torch.manual_seed(0)
    for build, same in ((word_bag, True), (text_transformer, False)):
        model = build(TEXT, 3).eval()
        assert torch.allclose(model(TOKENS[1:2]), model(turned), atol=1e-5) is same


def test_a_row_is_its_numbers_and_an_embedding_for_each_category():
    model = row_mlp(ROW, 2, width=3, units=[5])
    embedded = model.body[0](torch.tensor([[0.5, -1.0, 2.0, 3.0]]))
    first, second = (one.weight for one in model.body[0].embeddings)
    assert torch.equal(embedded[0], torch.cat([torch.tensor([0.5, -1.0]), first[2], second[3]]))


@pytest.mark.parametrize(
    ("build", "shape", "message"),
    [
        (word_bag, (1, 8, 8), r"word_bag takes text, this data has images \(1, 8, 8\)"),
        (mlp, TEXT, "mlp takes images or numbers, this data has text"),
        (mlp, ROW, "this data has categories as codes; data.categories=one_hot"),
        (
            row_mlp,
            (4,),
            r"row_mlp takes rows of a table with data.categories=codes, this data has numbers \(4,\)",
        ),
    ],
)
def test_other_samples_are_refused(build, shape, message):
    with pytest.raises(RecipeError, match=message):
        build(shape, 2)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(RecipeError, match=r"model\.heads: 3 is no divisor of width = 64"):
        text_transformer(TEXT, 2, heads=3)
