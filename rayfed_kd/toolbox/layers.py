"""A classifier as layers 1 to L: where its forward pass and its vector are cut between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils import skip_init

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Classifier, blank, no_layers
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.whole_modules import head_of
from rayfed_kd.protocol import Context, MethodOptions, ServerContext


def check_features(ctx: ServerContext) -> None:
    """For a method's `check`: refuse clients' models whose features are not known.

    Raises: RecipeError naming the model's class.
    """
    for name in ctx.client_architectures:
        module = ctx.model(ctx.initial_vector(name), name).module
        if not isinstance(module, Classifier):
            head_of(module)  # raises if there is none


def check_equal_features(ctx: ServerContext) -> None:
    """For a method's `check`: refuse models whose features are not known, or not of one length.

    Raises: RecipeError naming the model's class, or the lengths.
    """
    check_features(ctx)
    lengths = {feature_length(ctx.frozen_model(ctx.initial_vector()), ctx)}
    for name in ctx.client_architectures:
        lengths.add(feature_length(ctx.frozen_model(ctx.initial_vector(name), name), ctx))
    if len(lengths) > 1:
        raise RecipeError(
            f"the models' features have lengths {', '.join(map(str, sorted(lengths)))}; this method compares "
            "them, so it expects models (the recipe's `model` and all of client_models) of one length; "
            "client_models.features=N projects all to N",
            path="client_models",
        )


def head_place(model: FlatModule) -> slice:
    """Where in a classifier's vector its last linear layer lies: [C, K_f] weights, then [C] biases.

    Args:
        model: of the architecture; its values are not looked at.
    Raises: RecipeError if it does not end in a linear layer with biases.
    """
    module = model.module
    head = module.stages[-1] if isinstance(module, Classifier) else head_of(module)
    if not isinstance(head, nn.Linear) or head.bias is None:
        raise RecipeError(
            f"a {type(module).__name__} ends in no torch.nn.Linear with biases, which this method exchanges",
            path="model.name",
        )
    places = [(start, stop) for owners, start, stop in model.spans() if owners == (head,)]
    if sum(stop - start for start, stop in places) != head.weight.numel() + head.bias.numel():
        raise RecipeError(
            "its last layer is frozen, or shares its weights with another layer, and this method "
            "exchanges it",
            path="model.name",
        )
    return slice(places[0][0], places[-1][1])


def feature_length(model: FlatModule, ctx: Context) -> int:
    """K_f, of a model in eval mode."""
    with torch.no_grad():
        return int(model.features(blank(ctx.shape, 1, ctx.device)).shape[1])


def drawn_map(source: FlatModule, target: FlatModule, ctx: Context) -> Tensor:
    """Initial weights, [K_target, K_source], of a map between two models' features, from the stream "map"."""
    into, out = feature_length(source, ctx), feature_length(target, ctx)
    # Uniform within 1 / sqrt(inputs), as torch draws linear layers.
    drawn = torch.rand(out, into, generator=ctx.stream("map"), device=ctx.device) * 2 - 1
    return drawn.div(into**0.5)


def linear_map(weights: Tensor) -> FlatModule:
    """A linear layer without biases, to train, that starts from `weights`, [outputs, inputs]."""
    # Without initial values, as layers draw them from torch's global generator.
    layer = skip_init(nn.Linear, weights.shape[1], weights.shape[0], bias=False)  # type: ignore[no-untyped-call]
    flat = FlatModule(layer, weights.device)
    flat.load(weights.flatten())
    return flat.train()


class Layers:
    """Layers 1 to L of a classifier; buffers belong to their layer. Only its architecture is looked at.

    Args:
        model: any module of that architecture.
    Raises: RecipeError if it is no Classifier, or its vector does not hold the layers in their order.

    Attributes:
        names: as `Classifier.layers` gives them.
    """

    def __init__(self, model: FlatModule) -> None:
        module = model.module
        if not isinstance(module, Classifier):
            raise no_layers(module, "model.name")
        self.names, self._stages = tuple(module.layers), _cuts(model)
        layer_of = {
            id(part): layer
            for layer in range(len(self.names))
            for stage in module.stages[self._stages[layer] : self._stages[layer + 1]]
            for part in stage.modules()
        }
        parameters, buffers = [0] * len(self.names), [0] * len(self.names)
        # Parameters (0) and buffers (1) are two stretches of the vector, each in the order of layers.
        reached = [0, 0]
        self._shared: list[tuple[int, int]] = []
        for owners, start, stop in model.spans():
            # -1, a tensor of no layer, lies below every layer and is refused.
            of = [layer_of.get(id(owner), -1) for owner in owners]
            layer, kind = min(of), int(start >= model.num_parameters)
            self._shared += [(layer, max(of))] if layer < max(of) else []
            if layer < reached[kind]:
                raise RecipeError("its vector does not hold its layers in their order", path="model.name")
            reached[kind] = layer
            (buffers if kind else parameters)[layer] += stop - start
        self._parameters = list(accumulate(parameters, initial=0))
        self._buffers = list(accumulate(buffers, initial=model.num_parameters))

    def __len__(self) -> int:
        return len(self.names)

    def first(self, vector: Tensor, layer: int) -> Tensor:
        """Of `vector`, [P], the part that belongs to layers 1 to `layer`: parameters, then buffers."""
        self.check_cut(layer)
        return torch.cat([vector[place] for place in self.places(0, layer)])

    def rest(self, vector: Tensor, layer: int) -> Tensor:
        """Of `vector`, [P], the part that belongs to layers `layer` + 1 to L."""
        self.check_cut(layer)
        return torch.cat([vector[place] for place in self.places(layer, len(self))])

    def with_first(self, vector: Tensor, layer: int, part: Tensor) -> Tensor:
        """`vector`, [P], with layers 1 to `layer` from `part`."""
        return self._with(vector, part, self.places(0, layer))

    def with_rest(self, vector: Tensor, layer: int, part: Tensor) -> Tensor:
        """`vector`, [P], with layers `layer` + 1 to L from `part`."""
        return self._with(vector, part, self.places(layer, len(self)))

    def parameters(self, first: int, last: int) -> slice:
        """Which of the trainable parameters belong to layers `first` + 1 to `last`."""
        return slice(self._parameters[first], self._parameters[last])

    def train_only(self, first: int, last: int, model: FlatModule) -> None:
        """Layers `first` + 1 to `last` in train mode, the others in eval mode: their statistics stay."""
        assert isinstance(model.module, Classifier)
        for place, stage in enumerate(model.module.stages):
            stage.train(self._stages[first] <= place < self._stages[last])

    def places(self, first: int, last: int) -> tuple[slice, slice]:
        """Where the parameters and the buffers of layers `first` + 1 to `last` lie in the vector."""
        return self.parameters(first, last), slice(self._buffers[first], self._buffers[last])

    def check_cut(self, layer: int) -> None:
        """Refuse a cut behind a layer that shares a tensor with one above it.

        Raises: RecipeError naming both.
        """
        for lower, upper in self._shared:
            if lower < layer <= upper:
                raise RecipeError(
                    f"its layers {self.names[lower]} and {self.names[upper]} share a tensor, and this method "
                    "cuts the model between them",
                    path="model.name",
                )

    def _with(self, vector: Tensor, part: Tensor, places: tuple[slice, slice]) -> Tensor:
        changed = vector.clone()
        count = places[0].stop - places[0].start
        changed[places[0]], changed[places[1]] = part[:count], part[count:]
        return changed


def up_to(layer: int, model: FlatModule, images: Tensor) -> Tensor:
    """The output of a classifier's layers 1 to `layer` on images [batch, ...]."""
    return between(0, layer, model, images)


def from_(layer: int, model: FlatModule, hidden: Tensor) -> Tensor:
    """Logits, [batch, classes], from the output of layers 1 to `layer`."""
    return model.between(_cuts(model)[layer], None, hidden)


def between(first: int, last: int, model: FlatModule, hidden: Tensor) -> Tensor:
    """The output of layer `last` from that of layer `first`."""
    cuts = _cuts(model)
    return model.between(cuts[first], cuts[last], hidden)


def _cuts(model: FlatModule) -> tuple[int, ...]:
    """After how many stages each layer ends; 0 before the first."""
    assert isinstance(model.module, Classifier)
    return (0, *model.module.layers.values())


def lowest_layer(names: tuple[str, ...], left_out: list[str], path: str) -> int:
    """How many layers are left when the last ones, `left_out`, go.

    Args:
        names: of layers 1 to L.
        left_out: some of the last, in their order.
        path: where in the recipe they stand.
    Raises: RecipeError if there is no such layer, or they are not the last in their order.
    """
    unknown = [name for name in left_out if name not in names]
    if unknown:
        raise RecipeError(
            f"the model has no layer {', '.join(unknown)}; it has {', '.join(names)}", path=path
        )
    lowest = len(names) - len(left_out)
    if tuple(left_out) != names[lowest:]:
        raise RecipeError(
            f"{', '.join(left_out)} are not the model's last layers in their order; "
            f"expected as many as wanted of the end of {', '.join(names)}",
            path=path,
        )
    return lowest


def all_own(options: MethodOptions, key: str, layers: Layers) -> str | None:
    """A note for `Method.check` if clients keep all layers for themselves.

    Args:
        options, key: which of the method's options names the clients' layers.
    Raises: RecipeError if it is the option's default that names all of them.
    """
    if len(getattr(options, key)) < len(layers):
        return None
    named = f"all layers of the model, {', '.join(layers.names)}"
    if key in options.model_fields_set:
        return f"method.{key} names {named}: nothing stays shared, as with the method standalone"
    cure = f"expected fewer of the last layers, as method.{key}=[{layers.names[-1]}]"
    raise RecipeError(f"its default names {named}, and nothing would stay shared; {cure}", f"method.{key}")


def mean_of_shared(
    layers: Layers, before: Tensor, shared: Sequence[int], parts: Sequence[Tensor], weights: Sequence[float]
) -> Tensor:
    """Layer by layer the weighted mean over those that sent the layer; one that nobody sent stays.

    Args:
        layers: L layers.
        before: [P], what they were.
        shared: how many layers each sent.
        parts: `Layers.first` of each one's vector; may be a lazy sequence, only one is held at a time.
        weights: one each, above 0.
    Returns: [P] float32; added in the given order in float64.
    """
    total = torch.zeros(before.shape, dtype=torch.float64, device=before.device)
    sums = [0.0] * len(layers)
    for index, (count, weight) in enumerate(zip(shared, weights, strict=True)):
        # Layers that a client did not send add 0, and `sums` leaves the client out of their divisor.
        part = layers.with_first(torch.zeros_like(before), count, parts[index])
        total.add_(part.to(torch.float64), alpha=float(weight))
        for layer in range(count):
            sums[layer] += weight
    mean = before.clone()
    for layer, weight in enumerate(sums):
        if weight:
            for place in layers.places(layer, layer + 1):
                mean[place] = total[place].div(weight).to(torch.float32)
    return mean


PATH = "method.dropping"


def shared_layers(participation: int, layers: int, lowest: int, duration: int | None) -> int:
    """l = max(l_min, L - floor((Z - 1) / Z0)): layers 1 to l take part, those above are the client's own.

    Args:
        participation: Z, which of the client's participations this is, from 1.
        layers: L.
        lowest: l_min.
        duration: Z0, participations until the next layer is dropped; None: never.
    """
    if duration is None:
        return layers
    return max(lowest, layers - (participation - 1) // duration)


class DroppingOptions(MethodOptions):
    """Options of every method that drops layers; the defaults are FedD2S' for alpha 0.1."""

    dropping: list[str] = Field(
        ["F1", "F2", "F3"], description="the layers that are dropped, the last first; others stay shared"
    )
    z0: int | None = Field(
        3, ge=1, description="participations until the next layer is dropped, Z0; null: none is ever dropped"
    )
    at_once: bool = Field(False, description="drop them all from the start (FedD2S*, Fig. 5)")

    def shared(self, participation: int, layers: Layers) -> int:
        """l at a client's participation number `participation`, from 1.

        Raises: RecipeError at `method.dropping` if those are not the last of these layers.
        """
        lowest = lowest_layer(layers.names, self.dropping, PATH)
        for border in range(lowest, len(layers)):
            layers.check_cut(border)
        return lowest if self.at_once else shared_layers(participation, len(layers), lowest, self.z0)
