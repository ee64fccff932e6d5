"""The codecs that a recipe names, as chains by direction and kind, and whether they fit the method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import numpy as np

from rayfed_kd.errors import RecipeError, nearest, shown
from rayfed_kd.features.codecs.chain import Chain, Stage
from rayfed_kd.features.codecs.coded_wire import Chains, CodedWire
from rayfed_kd.models.vectors import Layout, Role
from rayfed_kd.protocol import KINDS, Array, Codec, Declaration, Exact, Method, Unaligned
from rayfed_kd.protocol.declaration import kinds
from rayfed_kd.protocol.message_codec import INEXACT, VECTORS, Direction
from rayfed_kd.protocol.wire import Sending, Wire
from rayfed_kd.recipe.registry import Registry, blaming, in_modules
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.on_the_way import StageRecipe

CODECS = Registry(
    in_modules(
        "rayfed_kd.features.codecs",
        plain="cast:Cast difference:Difference zstd:Zstd",
        quantisers="uniform:Uniform qsgd:Qsgd sign:Sign",
        sparse="top_k:TopK random_k:RandomK",
        low_rank="powersgd:PowerSgd svd:Svd",
    ),
    "rayfed_kd.protocol:Codec",
)
Codecs = Mapping[Direction, Chains]
Wires = Mapping[str, Wire]


def make_codecs(recipe: Recipe) -> Codecs:
    """The recipe's codecs with their options: direction -> kind -> chain.

    Raises: RecipeError if there is no such kind, a name is unknown, it is no codec, an option is bad, or a
        codec is not for parts of that kind or direction.
    """
    return {
        direction: {
            kind: _make_chain(stages, direction, kind, f"codec.{direction}.{kind}")
            for kind, stages in getattr(recipe.codec, direction).items()
        }
        for direction in get_args(Direction)
    }


def _make_chain(stages: Iterable[StageRecipe], direction: Direction, kind: str, path: str) -> Chain:
    if kind not in KINDS:
        raise RecipeError(
            f"{path}: {shown(kind)} is no kind of part; there are {', '.join(KINDS)}.",
            hint=nearest(kind, KINDS),
        )
    pipe = tuple(_make_stage(stage, direction, kind, f"{path}.{place}") for place, stage in enumerate(stages))
    for place, stage in enumerate(pipe):
        if place and stage.codec.differs:
            raise RecipeError(
                f"{path}.{place}: {stage.name} behind {pipe[place - 1].name}; expected it first, as it holds "
                "the part against the one that was received, and codecs before it change the part"
            )
        if stage.feedback and not all(before.codec.differs for before in pipe[:place]):
            raise RecipeError(
                f"{path}.{place}: feedback behind {pipe[place - 1].name}, which changes places or has a loss "
                "that it would count again; expected feedback at the first codec alone"
            )
    return Chain(pipe)


def _make_stage(named: StageRecipe, direction: Direction, kind: Any, path: str) -> Stage:
    bound = CODECS.bound(named, path, ["feedback"])
    with blaming(f"{path}.name: {named.name}"):
        codec: Codec = bound.found(**bound.arguments)
    why = codec.refuses(kind)
    if why is None and named.feedback:
        why = _feedback_fault(codec, kind)
    if why is None and direction == "down" and (codec.remembers or codec.differs or named.feedback):
        why = "it needs what one client got or sent, and a message is for all clients; use it under codec.up"
    if why is not None:
        raise RecipeError(f"{path}: {named.name} does not fit here: {why}")
    return Stage(named.name, codec, named.feedback)


def _feedback_fault(codec: Codec, kind: str) -> str | None:
    if codec.lossless or codec.unbiased:
        return "error feedback makes up for a bias, and it has none"
    if kind in VECTORS:
        return None
    return f"error feedback adds up over rounds, and {kind} are of other samples each time"


def make_wires(
    method: Method[Any, Any], recipe: Recipe, codecs: Codecs, layouts: Callable[[], Mapping[int, Layout]]
) -> Wires:
    """How a method's parts travel: down and up.

    Args:
        layouts: gives the tensors of vectors by their length; called only if a codec is for vectors.
    """
    exact: tuple[Role, ...] = ("buffer",) if recipe.codec.buffers == "exact" else ()
    # Modules are built only where a codec is for vectors and asks how they are made up.
    tensors = layouts() if any(kind in VECTORS for chains in codecs.values() for kind in chains) else {}
    declared: Mapping[Direction, Declaration] = {"down": method.down, "up": method.up}
    return {
        direction: CodedWire(kinds(parts), direction, codecs[direction], tensors, exact, recipe.seed)
        if codecs.get(direction)
        else Wire()
        for direction, parts in declared.items()
    }


def check_codecs(method: Method[Any, Any], name: str, wires: Iterable[Wire]) -> None:
    """Refuse chains that the method has no part for, that harm one, or that do not give an array again.

    Args:
        name: of the method, as the recipe has it.
        wires: down and up.
    Raises: RecipeError
    """
    for wire in wires:
        if not isinstance(wire, CodedWire):
            continue
        for kind, chain in wire.chains.items():
            path = f"codec.{wire.direction}.{kind}"
            parts = [part for part, of in wire.kinds.items() if of == kind]
            if not parts:
                names = ", ".join(sorted({*wire.kinds.values()})) or "nothing"
                raise RecipeError(f"{path}: {name} sends no {kind} {wire.direction}; it sends {names}")
            for part in parts:
                if chain.differs and kinds(method.down).get(part) != kind:
                    raise RecipeError(
                        f"{path}: {name} sends no {part} down, so its {part} differs from nothing; "
                        "expected no difference"
                    )
                if chain.remembers and isinstance(method.up[part], Unaligned) and part not in method.down:
                    raise RecipeError(
                        f"{path}: {name} sends its {part} once, or of another meaning each time, so that "
                        "nothing adds up over rounds; expected no feedback"
                    )
                if isinstance(getattr(method, wire.direction)[part], Exact) and not chain.lossless:
                    raise RecipeError(
                        f"{path}: {name}'s clients and server add {part} to copies that must stay equal; "
                        "expected codecs without a loss"
                    )
            _try_chain(wire, parts[0], kind, path)


def _try_chain(wire: CodedWire, part: str, kind: str, path: str) -> None:
    """Encode and decode an array such as the method may send."""
    array = _example(wire, kind)

    def received(name: str) -> Array:
        return array / 2

    with blaming(path):
        encoded, again = (wire.encoded({part: array}, Sending(("trial",), received)) for _ in range(2))
        if encoded.refused:
            raise RecipeError(f"{path}: tried on an array, {encoded.refused[0]}")
        decoded = wire.decoded(encoded.wire, received)[part]
    if (decoded.shape, decoded.dtype) != (array.shape, array.dtype):
        raise RecipeError(
            f"{path}: decode gave {decoded.dtype} {list(decoded.shape)}; expected what encode got, "
            f"{array.dtype} {list(array.shape)}"
        )
    first, second = ([array.tobytes() for array in sent.wire.values()] for sent in (encoded, again))
    if first != second:
        raise RecipeError(
            f"{path}: encode gave other numbers the second time; expected draws from part.random() "
            "alone, and a codec that holds nothing but its options"
        )


def _example(wire: CodedWire, kind: str) -> Array:
    """A vector of the recipe's model, six samples' numbers, or whole numbers where they must stay."""
    if kind not in INEXACT:
        return np.arange(6)
    shape = (next(iter(wire.layouts)),) if kind in VECTORS else (6, 10)
    return np.random.default_rng(0).standard_normal(shape, np.float32)
