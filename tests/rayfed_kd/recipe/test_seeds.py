"""Named random streams."""

import torch

from rayfed_kd.recipe.seeds import derive, numpy_stream, torch_stream


def test_streams_differ_in_every_step_of_their_path():
    paths = [("a", 1), ("a", 2), ("b", 1), ("a", "1"), ("a", 1, 0), (1, "a")]
    assert len({derive(7, *path) for path in paths} | {derive(8, "a", 1)}) == 7


def test_same_path_gives_the_same_draws():
    assert numpy_stream(1, "x", 2).random() == numpy_stream(1, "x", 2).random()
    first, second = torch_stream(1, "x"), torch_stream(1, "x")
    assert torch.equal(torch.rand(3, generator=first), torch.rand(3, generator=second))


def test_seed_is_not_what_python_hashes():
    """blake2b, so it is the same in every process and on every machine."""
    import hashlib

    digest = hashlib.blake2b(b"int:1\x1fstr:x", digest_size=8).digest()
    assert derive(1, "x") == int.from_bytes(digest, "big") >> 1
