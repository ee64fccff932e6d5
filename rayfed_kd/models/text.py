"""Classifiers of texts: averaged embeddings, fastText, a small transformer. Token 0 is padding."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from rayfed_kd.models.attention import AttentionBlock, check_heads
from rayfed_kd.models.base import Classifier, Counts, fully_connected
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape, text_shape

Width = Annotated[int, Field(ge=1, description="length of the embeddings, and of the features")]
# Odd numbers near 2^32 over the golden ratio and over e, so that a pair and its reverse hash differently.
FIRST, SECOND = 2654435761, 1580030169


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
        self.words, self.pairs = nn.Embedding(vocabulary, width), nn.Embedding(buckets, width)
        self.buckets = buckets

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
        mask = tokens != 0
        hidden = self.words(tokens) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden, mask)
        return masked_mean(self.norm(hidden), mask)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over the places that count.

    Args:
        values: [batch, places, width].
        mask: [batch, places] bool; True for places that count.
    Returns: [batch, width]; zeros where no place counts.
    """
    weights = mask.to(values.dtype)[:, :, None]
    return (values * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


@model_builder
def word_bag(
    shape: Shape,
    classes: int,
    *,
    width: Width = 32,
    hidden: Annotated[Counts, Field(description="units of hidden layers behind the mean")] = [],  # noqa: B006 - never changed
) -> Classifier:
    """The mean of the words' embeddings, hidden layers with ReLU, fully connected classes.

    Width 32, a vocabulary of 512 and 4 classes: 16,516 parameters.
    """
    words = MeanEmbedding(text_shape(shape, "word_bag").vocabulary, width)
    body = nn.Sequential(words, *fully_connected(width, hidden))
    into = [width, *hidden][-1]
    return Classifier(body, nn.Linear(into, classes), into)


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
    check_heads(width, heads)
    encoder = Encoder(text[0], text.vocabulary, width, heads, layers)
    return Classifier(nn.Sequential(encoder), nn.Linear(width, classes), width)
