"""Classifiers of texts: averaged embeddings, fastText, a small transformer. Token 0 is padding."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Classifier, text_shape
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape

Width = Annotated[int, Field(ge=1, description="length of the embeddings, and of the features")]
# Odd numbers near 2^32 over the golden ratio and over e, so that a pair and its reverse hash differently.
FIRST, SECOND = 2654435761, 1580030169
HIDDEN = -1e9  # a score that softmax makes 0, and no NaN where a text has padding alone


class MeanEmbedding(nn.Module):
    """[batch, length] tokens -> [batch, width], the mean embedding of those that are no padding."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, width]; zeros for a text of padding alone."""
        return masked_mean(self.words(tokens), tokens != 0)


class MeanOfPairs(nn.Module):
    """[batch, length] tokens -> [batch, width], the mean embedding of tokens and of hashed neighbours."""

    def __init__(self, vocabulary: int, buckets: int, width: int) -> None:
        super().__init__()
        self.words, self.pairs, self.buckets = (
            nn.Embedding(vocabulary, width),
            nn.Embedding(buckets, width),
            buckets,
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, width]."""
        first, second = tokens[:, :-1], tokens[:, 1:]
        hashed = (first * FIRST + second * SECOND) % self.buckets
        values = torch.cat([self.words(tokens), self.pairs(hashed)], dim=1)
        # Padding comes last: a pair counts if its second token does.
        return masked_mean(values, torch.cat([tokens != 0, second != 0], dim=1))


class Encoder(nn.Module):
    """[batch, length] tokens -> [batch, width]: positions, attention blocks, the mean over the text."""

    def __init__(self, length: int, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, width]."""
        there = tokens != 0
        hidden = self.words(tokens) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden, there)
        return masked_mean(self.norm(hidden), there)


class AttentionBlock(nn.Module):
    """Self-attention, then a perceptron four times as wide; each normalises first and adds to its input.

    Vaswani et al. 2017, arXiv 1706.03762; the norms where Xiong et al. 2020, arXiv 2002.04745, have them.
    Attention is written out: every step then has a rule for training clients as one program.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.answered = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor, there: Tensor) -> Tensor:
        """[batch, length, width]; `there`, [batch, length], says which places are no padding."""
        batch, length, width = hidden.shape
        parts = self.asked(self.norm1(hidden)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        weights = torch.where(there[:, None, None], scores, HIDDEN).softmax(dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + self.answered(mixed)
        narrow: Tensor = self.narrow(F.gelu(self.wide(self.norm2(hidden))))
        return hidden + narrow


def masked_mean(values: Tensor, there: Tensor) -> Tensor:
    """The mean over places that are there.

    Args:
        values: [batch, places, width].
        there: [batch, places] bool.
    Returns: [batch, width]; zeros where no place is there.
    """
    weights = there.to(values.dtype)[:, :, None]
    return (values * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


@model_builder
def word_bag(
    shape: Shape,
    classes: int,
    *,
    width: Width = 32,
    hidden: Annotated[
        list[Annotated[int, Field(ge=1)]], Field(description="units of hidden layers behind the mean")
    ] = [],  # noqa: B006 - never changed
) -> Classifier:
    """The mean of the words' embeddings, hidden layers with ReLU, fully connected classes.

    Width 32, a vocabulary of 512 and 4 classes: 16,516 parameters.
    """
    body: list[nn.Module] = [MeanEmbedding(text_shape(shape, "word_bag").vocabulary, width)]
    into = width
    for out in hidden:
        body += [nn.Linear(into, out), nn.ReLU()]
        into = out
    return Classifier(nn.Sequential(*body), nn.Linear(into, classes), into)


@model_builder
def fast_text(
    shape: Shape,
    classes: int,
    *,
    width: Width = 16,
    buckets: Annotated[int, Field(ge=1, description="embeddings that pairs of words are hashed to")] = 4096,
) -> Classifier:
    """fastText: the mean embedding of words and of pairs of neighbours, hashed; fully connected classes.

    Joulin et al. 2017, arXiv 1607.01759; its embeddings are 10 long, its buckets ten million. Width 16, a
    vocabulary of 512 and 4 classes: 73,796 parameters.
    """
    body = MeanOfPairs(text_shape(shape, "fast_text").vocabulary, buckets, width)
    return Classifier(nn.Sequential(body), nn.Linear(width, classes), width)


@model_builder
def text_transformer(
    shape: Shape,
    classes: int,
    *,
    width: Width = 64,
    heads: Annotated[int, Field(ge=1, description="attention heads; a divisor of width")] = 4,
    layers: Annotated[int, Field(ge=1, description="attention blocks")] = 2,
) -> Classifier:
    """A small transformer encoder: learned positions, attention blocks, the mean over the text; no dropout.

    Width 64, 2 layers, 16 tokens, a vocabulary of 512 and 4 classes: 134,148 parameters.
    """
    text = text_shape(shape, "text_transformer")
    if width % heads:
        raise RecipeError(f"{heads} is no divisor of width = {width}", path="model.heads")
    encoder = Encoder(text[0], text.vocabulary, width, heads, layers)
    return Classifier(nn.Sequential(encoder), nn.Linear(width, classes), width)
