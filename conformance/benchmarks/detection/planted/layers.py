"""Mistakes in which layers are run, and with which parameters."""

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.initial import initial
from conformance.benchmarks.detection.planted.plant import Plant, after, in_layer, kept, many_layers, override, parameter
from conformance.model.architecture import Architecture

OUTPUT = "output.LayerNorm"
PROJECTIONS = tuple(f"attention.self.{n}" for n in ("query", "key", "value"))
# Every step of a layer that has parameters.
PARAMETRISED = (
    *PROJECTIONS, "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", OUTPUT,
)  # fmt: skip


def _skipped(model: Bert, layer: int) -> None:
    """A layer hands on what it is given."""
    override(model.layer(layer), "forward", lambda hidden, mask: hidden)


def _readers(a: Architecture, layer: int) -> frozenset[str]:
    """What reads the output of a layer: of the next one, or, after the last, of the pooler and the heads."""
    if layer < a.num_hidden_layers - 1:
        return frozenset(f"encoder.layer.{layer + 1}.{step}" for step in (*PROJECTIONS, "attention.output.LayerNorm"))
    heads = {
        "masked_lm": "cls.predictions.transform.dense",
        "plain_masked_lm": "cls.predictions.decoder",
        "plain_next_sentence": "cls.seq_relationship",
    }
    found = [name for head, name in heads.items() if head in a.heads]
    return frozenset([*found, "pooler.dense"] if a.pooler else found)


def _repeated(model: Bert, layer: int) -> None:
    """The layer on its own output; of the second pass only that output is seen."""
    first = model.layer(layer)
    right, second = first.forward, copy.deepcopy(first)
    # The copy's steps are in nobody's module tree, so nobody listens to them, except to the last.
    second.output.LayerNorm = first.output.LayerNorm
    override(first, "forward", lambda hidden, mask: second(right(hidden, mask), mask))


def _load(model: Bert, taken_from: Mapping[int, int]) -> None:
    """Give layers the parameters of others."""
    found = {to: copy.deepcopy(model.layer(origin).state_dict()) for to, origin in taken_from.items()}
    for to, state in found.items():
        model.layer(to).load_state_dict(state)


def _exchanged(name: str, taken_from: Callable[[int], Mapping[int, int]]) -> Plant:
    """Layers have the parameters of others, which depend on how many there are."""

    def origins(a: Architecture, _: int) -> frozenset[str]:
        changed = [to for to, origin in taken_from(a.num_hidden_layers).items() if to != origin]
        return frozenset(f"encoder.layer.{to}.{step}" for to in changed for step in PARAMETRISED)

    return Plant(name, lambda model, _: _load(model, taken_from(model.architecture.num_hidden_layers)), False, origins, many_layers)


def _neighbour(model: Bert, layer: int) -> None:
    """The parameters of the layer before it; the first has those of the one after it."""
    _load(model, {layer: layer - 1 if layer else 1})


def _default(model: Bert, layer: int) -> None:
    """γ = 1 and β = 0 in attention's norm."""
    norm = model.layer(layer).attention.output.LayerNorm
    norm.weight, norm.bias = parameter(torch.ones_like(norm.weight)), parameter(torch.zeros_like(norm.bias))


def _other(model: Bert, layer: int) -> None:
    """The intermediate dense as torch initialises it."""
    dense = model.layer(layer).intermediate.dense
    dense.weight, dense.bias = initial(dense.weight, seed=layer)


def _without_first(hidden: Tensor) -> Tensor:
    """Zeros for the first token."""
    return torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, 1:]], 1)


def _keys_before(model: Bert) -> None:
    """The last layer attends by the keys of the layer before."""
    last = model.architecture.num_hidden_layers - 1
    keys = kept(model.layer(last - 1).attention.self.key)
    override(model.layer(last).attention.self.key, "forward", lambda _: keys.pop())


def _read_before(model: Bert) -> None:
    """Pooler and heads read what goes into the last layer, which is run, and not used."""
    encoder = model.encoder

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        for layer in encoder.layer:
            before, hidden = hidden, layer(hidden, mask)
        return before

    override(encoder, "forward", forward)


def _clipped(hidden: Tensor) -> Tensor:
    """Within one deviation of all its elements."""
    deviation = float(hidden.float().std())
    return hidden.clamp(-deviation, deviation)


def _changed_output(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    return in_layer(name, lambda model, layer: after(model.layer(layer).output.LayerNorm, change), OUTPUT)


def _last_keys(a: Architecture, _: int) -> frozenset[str]:
    return frozenset([f"encoder.layer.{a.num_hidden_layers - 1}.attention.self.key"])


def _read_by_heads(a: Architecture, _: int) -> frozenset[str]:
    return _readers(a, a.num_hidden_layers - 1)


PLANTS = (
    Plant("layer-skipped", _skipped, True, _readers),
    in_layer("layer-repeated", _repeated, OUTPUT),
    _exchanged("layers-reversed", lambda count: {i: count - 1 - i for i in range(count)}),
    _exchanged("layers-shared", lambda count: dict.fromkeys(range(count), 0)),
    in_layer("layer-neighbour", _neighbour, *PARAMETRISED, suits=many_layers),
    in_layer("parameters-default", _default, "attention.output.LayerNorm"),
    in_layer("parameters-other", _other, "intermediate.dense"),
    _changed_output("first-token-zeroed", _without_first),
    Plant("layer-before-kept", lambda model, _: _keys_before(model), False, _last_keys, many_layers),
    Plant("heads-read-layer-before", lambda model, _: _read_before(model), False, _read_by_heads),
    _changed_output("hidden-clipped", _clipped),
)
