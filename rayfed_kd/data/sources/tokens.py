"""Texts as token numbers: by a hash that needs no file, or by a tokenizer's file."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from rayfed_kd.data.dataset import Array, check_size
from rayfed_kd.errors import DataError, RecipeError, shortened
from rayfed_kd.recipe.sample_shapes import TextShape

PADDING = 0
_TOKENS = re.compile(r"\w+|[^\w\s]")


class Tokenizer(Protocol):
    """Makes numbers of texts; 0 is left for padding.

    Attributes:
        vocabulary: number of numbers, padding included.
    """

    vocabulary: int

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's token numbers, from 1 to vocabulary - 1."""
        ...


class HashTokenizer:
    """Words and marks, in lower case, by a hash: no file, no unknown word, and words may share a number.

    Args:
        vocabulary: number of token numbers, padding included; at least 2.
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's token numbers, from 1 to vocabulary - 1."""
        known: dict[str, int] = {}
        rows = []
        for text in texts:
            words = _TOKENS.findall(text.lower())
            for word in words:
                if word not in known:
                    # CRC-32 is the same in every process and on every machine, unlike Python's own hash.
                    known[word] = 1 + zlib.crc32(word.encode()) % (self.vocabulary - 1)
            rows.append([known[word] for word in words])
        return rows


class FileTokenizer:
    """A tokenizer of the package `tokenizers`, as its tokenizer.json has it. Numbers are its own plus 1.

    Args:
        file: the JSON file; nothing is downloaded.
    Raises: RecipeError if the package is missing, DataError if the file is no tokenizer's.
    """

    def __init__(self, file: Path) -> None:
        try:
            from tokenizers import Tokenizer as Loaded
        except ImportError:
            raise RecipeError(
                "a tokenizer's file needs the package tokenizers: pip install -e '.[text]' in the clone "
                "installs it; without tokenizer words are numbered by a hash",
                path="data.tokenizer",
            ) from None
        try:
            self._loaded = Loaded.from_file(str(file))
        except Exception as error:  # the package raises plain Exceptions
            raise DataError(f"{file}: no tokenizer's file ({shortened(str(error), 200)})") from None
        # Both are of whole batches, and texts are cut and padded here.
        self._loaded.no_truncation()
        self._loaded.no_padding()
        self.vocabulary = self._loaded.get_vocab_size(with_added_tokens=True) + 1

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's token numbers, from 1 to vocabulary - 1."""
        return [[number + 1 for number in one.ids] for one in self._loaded.encode_batch(list(texts))]


def tokens_of(texts: Sequence[str], length: int, tokenizer: Tokenizer) -> Array:
    """Texts as token numbers, cut or padded at their end.

    Args:
        texts: n of them.
        length: tokens of every row.
        tokenizer: numbers them.
    Returns: [n, length] int64.
    """
    check_size("tokens of all texts", (len(texts), length), 8)
    tokens = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, numbers in enumerate(tokenizer.numbers(texts)):
        kept = numbers[:length]
        tokens[row, : len(kept)] = kept
    return tokens


def text_shape_of(length: int, tokenizer: Tokenizer) -> TextShape:
    """What `tokens_of` makes of one text."""
    return TextShape(length, tokenizer.vocabulary)
