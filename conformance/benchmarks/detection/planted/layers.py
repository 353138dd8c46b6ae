"""Mistakes in the selection of the layers that are run, and in the parameters of whole layers."""

import copy
from collections.abc import Callable, Mapping
from typing import Unpack

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import Options, Plant, after, in_layer, kept, many_layers, override, parameter
from conformance.model.architecture import Architecture

OUTPUT = "output.LayerNorm"
PROJECTIONS = tuple(f"attention.self.{n}" for n in ("query", "key", "value"))
# All steps of a layer that have parameters.
PARAMETRISED = (
    *PROJECTIONS, "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", OUTPUT,
)  # fmt: skip


def _skipped(model: Bert, layer: int) -> None:
    """Return the layer's input unchanged."""
    override(model.layer(layer), "forward", lambda hidden, mask: hidden)


def _readers(a: Architecture, layer: int) -> frozenset[str]:
    """Return the steps that read a layer's output: those of the next layer or, after the last, of the pooler and the heads."""
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
    """Apply the layer to its own output; only the output of the second pass is exposed."""
    first = model.layer(layer)
    right, second = first.forward, copy.deepcopy(first)
    # The copy's steps are not in the model's module tree, so only its last step, which is shared, has hooks.
    second.output.LayerNorm = first.output.LayerNorm
    override(first, "forward", lambda hidden, mask: second(right(hidden, mask), mask))


def _load(model: Bert, taken_from: Mapping[int, int]) -> None:
    """Give layers the parameters of others; `taken_from` maps each layer to the origin of its parameters."""
    found = {to: copy.deepcopy(model.layer(origin).state_dict()) for to, origin in taken_from.items()}
    for to, state in found.items():
        model.layer(to).load_state_dict(state)


def _exchanged(name: str, description: str, taken_from: Callable[[int], Mapping[int, int]]) -> Plant:
    """Return a mistake in which layers have the parameters of others, given the number of layers."""

    def origins(a: Architecture, _: int) -> frozenset[str]:
        changed = [to for to, origin in taken_from(a.num_hidden_layers).items() if to != origin]
        return frozenset(f"encoder.layer.{to}.{step}" for to in changed for step in PARAMETRISED)

    def install(model: Bert, _: int) -> None:
        _load(model, taken_from(model.architecture.num_hidden_layers))

    return Plant(name, description, install, False, origins, many_layers)


def _neighbour(model: Bert, layer: int) -> None:
    """Give the layer the parameters of the layer before it, and the first layer those of the second."""
    _load(model, {layer: layer - 1 if layer else 1})


def _default(model: Bert, layer: int) -> None:
    """Set γ = 1 and β = 0 in the norm of attention."""
    norm = model.layer(layer).attention.output.LayerNorm
    norm.weight, norm.bias = parameter(torch.ones_like(norm.weight)), parameter(torch.zeros_like(norm.bias))


def _other(model: Bert, layer: int) -> None:
    """Add random numbers of a tenth of their deviation to the weights of the intermediate dense layer."""
    dense = model.layer(layer).intermediate.dense
    drawn = torch.randn(dense.weight.shape, generator=torch.Generator().manual_seed(layer)).to(dense.weight)
    dense.weight = parameter(dense.weight + drawn * dense.weight.std() / 10)


def _without_first(hidden: Tensor) -> Tensor:
    """Set the first token to zero."""
    return torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, 1:]], 1)


def _keys_before(model: Bert) -> None:
    """Let the last layer use the keys of the layer before it."""
    last = model.architecture.num_hidden_layers - 1
    keys = kept(model.layer(last - 1).attention.self.key)
    override(model.layer(last).attention.self.key, "forward", lambda _: keys.pop())


def _read_before(model: Bert) -> None:
    """Let pooler and heads read the input of the last layer, which is run but not used."""
    encoder = model.encoder

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        for layer in encoder.layer:
            before, hidden = hidden, layer(hidden, mask)
        return before

    override(encoder, "forward", forward)


def _clipped(hidden: Tensor) -> Tensor:
    """Clip to ±1 standard deviation of all elements."""
    deviation = float(hidden.float().std())
    return hidden.clamp(-deviation, deviation)


def _changed_output(name: str, description: str, change: Callable[[Tensor], Tensor], **options: Unpack[Options]) -> Plant:
    return in_layer(name, description, lambda model, layer: after(model.layer(layer).output.LayerNorm, change), OUTPUT, **options)


def _last_keys(a: Architecture, _: int) -> frozenset[str]:
    return frozenset([f"encoder.layer.{a.num_hidden_layers - 1}.attention.self.key"])


def _read_by_heads(a: Architecture, _: int) -> frozenset[str]:
    return _readers(a, a.num_hidden_layers - 1)


PLANTS = (
    Plant("layer-skipped", "a layer is not run", _skipped, True, _readers),
    in_layer("layer-repeated", "a layer is run twice", _repeated, OUTPUT),
    _exchanged("layers-reversed", "layer i has the parameters of layer L − 1 − i",
               lambda count: {i: count - 1 - i for i in range(count)}),
    _exchanged("layers-shared", "every layer has the parameters of layer 0", lambda count: dict.fromkeys(range(count), 0)),
    in_layer("layer-neighbour", "a layer has the parameters of the layer before it (the first: after it)",
             _neighbour, *PARAMETRISED, suits=many_layers),
    in_layer("parameters-default", "an attention output norm keeps γ = 1 and β = 0",
             _default, "attention.output.LayerNorm", reported_as="norm-affine-missing"),
    in_layer("parameters-other", "an intermediate dense was trained further: each of its weights differs",
             _other, "intermediate.dense"),
    _changed_output("first-token-zeroed", "the hidden state of the first token is zero behind a layer",
                    _without_first, reported_as="tokens-zero"),
    Plant("layer-before-kept", "the keys are those of the layer before",
          lambda model, _: _keys_before(model), False, _last_keys, many_layers),
    Plant("heads-read-layer-before", "pooler and masked-LM head read the output of the last layer but one",
          lambda model, _: _read_before(model), False, _read_by_heads),
    _changed_output("hidden-clipped", "a layer's output is clipped to ± one deviation of itself", _clipped),
)  # fmt: skip
