"""Texts as token numbers, by a hash that needs no file."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

from rayfed_kd.data.dataset import Array, check_size

PADDING = 0
_TOKENS = re.compile(r"\w+|[^\w\s]")


def tokens_of(texts: Sequence[str], length: int, vocabulary: int) -> Array:
    """Words and marks, in lower case, as numbers from 1: by a hash, so that some share a number.

    Args:
        texts: n of them.
        length: tokens of every row; longer texts are cut, shorter ones padded, at their end.
        vocabulary: number of token numbers, padding included; at least 2.
    Returns: [n, length] int64.
    """
    check_size("tokens of all texts", (len(texts), length), 8)
    tokens = np.full((len(texts), length), PADDING, dtype=np.int64)
    known: dict[str, int] = {}
    for row, text in enumerate(texts):
        for place, word in enumerate(_TOKENS.findall(text.lower())[:length]):
            if word not in known:
                # CRC-32 is the same in every process and on every machine, unlike Python's own hash.
                known[word] = 1 + zlib.crc32(word.encode()) % (vocabulary - 1)
            tokens[row, place] = known[word]
    return tokens
