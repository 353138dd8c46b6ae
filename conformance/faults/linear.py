"""Faults of linear layers: the parameters or inputs of another layer, another layout of the weight, no bias or a wrong factor."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np
from scipy.special import log_softmax

from conformance.faults.changes import Altered, with_slack_of_parent
from conformance.faults.edits import (
    capped,
    few_roundings,
    first_parent,
    has_parameters_of,
    in_layer,
    last_hidden_state,
    other_weight,
    parameter,
    reads,
    reversed_features,
    rewritten,
    with_computed,
)
from conformance.faults.fault import (
    ALONE,
    LINEARS,
    SIBLINGS,
    Change,
    Fault,
    FaultContext,
    Parameter,
    parameters_of,
    with_parameters,
)
from conformance.model.activations import layer_input
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.norm import Norm

LINEAR, POOLED = frozenset({"linear"}), frozenset({"first_token_linear"})
SELF = (".query", ".key", ".value")
_SENTENCE = ("seq_relationship", "classifier")
_BOTTOM, _TOP = ("pooler.dense", "transform.dense"), ("predictions.decoder", *_SENTENCE)  # of the heads


def _exchanged(**whose: str) -> Change:
    """Return the change that gives projections the parameters of others: `query="key"` gives the query those of the key."""

    def where(step: Step) -> str | None:
        path, _, name = step.site.activation.name.rpartition(".")
        return f"{path}.{whose[name]}" if name in whose else None

    return has_parameters_of(where)


def _fused(reading: Callable[[Array, int], Array]) -> Change:
    """Return the change that reorders the rows of a fused query-key-value weight or bias.

    Args:
        reading: function from the rows (3, O, …) in correct order and the head size to the rows as they are read.
    """

    def change(step: Step, context: FaultContext) -> Step | None:
        path, _, name = step.site.activation.name.rpartition(".")
        names = [end[1:] for end in SELF]
        parts = [parameters_of(context, f"{path}.{each}", step) for each in names]
        if None in parts or step.value.shape[-1] == step.site.architecture.head_size:
            return None
        own, width = names.index(name), step.site.architecture.head_size
        rows = {kind: np.stack([parameters[kind] for parameters in parts if parameters]) for kind in step.site.parameters}
        return with_parameters(step, **{kind: reading(x, width)[own] for kind, x in rows.items()})

    return change


def _alternating(rows: Array, width: int) -> Array:
    """Return rows, stored as row i of query, of key and of value in turn, as if stored as all of query, then key, then value."""
    return rows.swapaxes(0, 1).reshape(rows.shape)


def _by_head(rows: Array, width: int) -> Array:
    """Return rows, stored as all of query, then key, then value, as if stored head by head with query, key and value of each."""
    return rows.reshape(-1, 3, width, *rows.shape[2:]).swapaxes(0, 1).reshape(rows.shape)


def _by_part(rows: Array, width: int) -> Array:
    """Return rows, stored head by head with query, key and value of each, as if stored as all of query, then key, then value."""
    return rows.reshape(3, -1, width, *rows.shape[2:]).swapaxes(0, 1).reshape(rows.shape)


def _pre_norm(step: Step, context: FaultContext) -> Step | None:
    """Return the layer with a normalized input, with the parameters of the norm that follows its sub-layer.

    None is returned for keys and values of encoder states, which that norm does not receive.
    """
    own = step.site.activation
    if own.layer is None or "state" in own.axes:
        return None
    attention, is_attention, _ = own.name.partition("self.")
    norm = (attention if is_attention else own.name.removesuffix("intermediate.dense")) + "output.LayerNorm"
    site = replace(step.site, parameters=context.network.site(norm).parameters)
    return step.replaced(parents=(Norm(site, step.parents[0]).value,))


def _reading_mean(step: Step, context: FaultContext) -> Step | None:
    """Return the step of a head that reads the mean of the outputs of the last two layers."""
    layers = step.site.architecture.num_hidden_layers
    states = [context.values.get(layer_input(layer)) for layer in (layers, layers - 1)] if layers > 1 else []
    known = [x for x in states if x is not None and x.shape == step.parents[0].shape]
    if len(known) < 2:
        return None
    mean = (known[0] + known[1]) / 2.0
    read = step.replaced(parents=(mean,))
    return with_slack_of_parent(read, lambda _, arithmetic: 2.0 * arithmetic.storage.rounding_variance(mean))


def _reading_norm(own: bool) -> Change:
    """Return the change by which a head reads a norm of the last hidden state, with the last norm's parameters or without any."""

    def change(step: Step, context: FaultContext) -> Step | None:
        name = layer_input(step.site.architecture.num_hidden_layers)
        if step.site.activation.parents[0] != name or context.network.table[name].kind != "norm":
            return None
        site = context.network.site(name)
        parameters = {"weight": np.ones_like(site.parameters["weight"]), "bias": np.zeros_like(site.parameters["bias"])}
        norm = Norm(site if own else replace(site, parameters=parameters), step.parents[0])
        return with_computed(step, norm)

    return change


def _log_softmax(step: Step, _: FaultContext) -> Step | None:
    return Altered(step, lambda inner: as_array(log_softmax(inner.value, -1)), few_roundings) if step.value.shape[-1] > 1 else None


def _clipped(step: Step, limit: float) -> Step:
    """Return the layer with inputs limited to ± `limit`, which may be rounded to storage."""
    x = step.parents[0]
    beyond = np.abs(x) > limit
    limited = step.replaced(parents=(np.clip(x, -limit, limit),))
    return with_slack_of_parent(limited, lambda _, a: np.where(beyond, a.storage.rounding_variance(as_array(limit)), 0.0))


def _largest_input(step: Step) -> float:
    return float(np.abs(step.parents[0]).max(initial=0.0))


# fmt: off
FAULTS: tuple[Fault, ...] = (
    *(
        Fault(f"{a}-{b}-swapped", LINEAR, f"{a} and {b} have each other's parameters", _exchanged(**{a: b, b: a}),
              only=(f".{a}", f".{b}"), extent=SIBLINGS)
        for a, b in (("query", "key"), ("query", "value"), ("key", "value"))
    ),
    Fault("qkv-rotated", LINEAR, "query has key's parameters, key value's and value query's",
          _exchanged(query="key", key="value", value="query"), only=SELF, extent=SIBLINGS),
    *(
        Fault(f"{a}-from-{b}", LINEAR, f"{a} has {b}'s parameters", _exchanged(**{a: b}), only=(f".{a}",), tried=ALONE)
        for a, b in permutations(("query", "key", "value"), 2)
    ),
    *(
        Fault(f"qkv-interleaved{end}", LINEAR, f"the rows of a fused matrix, stored {file}, are read {read}", _fused(reading),
              only=SELF, extent=SIBLINGS, tried=ALONE)
        for end, reading, file, read in (
            ("", _by_head, "part by part (query, key, value)", "head by head"),
            ("-file", _by_part, "head by head", "part by part (query, key, value)"),
            ("-rows", _alternating, "row by row in turn", "part by part (query, key, value)"),
        )
    ),
    Fault("next-sentence-order", LINEARS, "the two logits are exchanged", reversed_features, only=("seq_relationship",)),
    Fault("class-labels-reversed", LINEAR, "the class logits are in reverse order", reversed_features, only=("classifier",)),
    Fault("span-ends-exchanged", LINEAR, "the start logits and the end logits are exchanged", reversed_features,
          only=("qa_outputs",)),
    Fault("weight-transposed", LINEARS, "the weight is transposed", other_weight(np.transpose)),
    Fault("bias-missing", LINEARS, "the bias is not added", parameter("bias", lambda b, _: 0.0 * b)),
    Fault("bias-twice", LINEARS, "the bias is added twice", parameter("bias", lambda b, _: 2.0 * b)),
    Fault("feed-forward-parallel", LINEAR, "the feed-forward network reads the layer's input, not the attention's output",
          reads(in_layer("")), only=(".intermediate.dense",), tried=ALONE),
    Fault("activation-bypassed", LINEAR, "it reads intermediate.dense, bypassing the activation function",
          reads(in_layer("intermediate.dense")), only=(".output.dense",), tried=ALONE),
    Fault("attention-bypassed", LINEAR, "it reads the values, bypassing the attention's probabilities",
          reads(in_layer("attention.self.value")), only=(".attention.output.dense",), tried=ALONE),
    Fault("pre-norm", LINEAR, "the input is normalised first (pre-LN)", _pre_norm, only=(*SELF, ".intermediate.dense")),
    Fault("projection-missing", LINEAR, "the layer is left out: its input is returned unchanged", first_parent,
          only=(*SELF, ".attention.output.dense", "transform.dense"), tried=ALONE),
    Fault("pooler-missing", POOLED, "the first token is returned unchanged", rewritten(lambda step: step.parents[0][:, 0]),
          only=("pooler.dense",)),
    Fault("head-without-pooler", LINEAR, "the head reads the first token's hidden state, bypassing the pooler",
          reads(last_hidden_state, read=lambda x: x[:, 0]), only=_SENTENCE),
    Fault("head-without-tanh", LINEAR, "the head reads the pooler's product, before its tanh", reads(lambda _: "pooler.dense"),
          only=_SENTENCE),
    Fault("decoder-without-transform", LINEAR, "the decoder reads the hidden state, bypassing the head's transform",
          reads(last_hidden_state), only=("predictions.decoder",)),
    Fault("heads-read-mean", LINEARS, "it reads the mean of the last two layers, not the last one", _reading_mean, only=_BOTTOM,
          tried=ALONE),
    *(
        Fault(f"heads-read-norm{end}", LINEARS, f"it reads a norm of the last hidden state, {which}", _reading_norm(bool(end)),
              only=_BOTTOM, tried=ALONE)
        for end, which in (("", "without parameters"), ("-twice", "with the last norm's parameters"))
    ),
    Fault("logits-capped", LINEAR, "the logits z are capped by a tanh: tanh(k z) / k with k² = {value}",
          parameter=Parameter("k²", lambda _: 0.0, lambda _: 1.0 / 900.0, capped,
                              quantity="square of the factor in a tanh that caps the logits"), only=_TOP),
    Fault("inputs-clipped", LINEARS, "its inputs are limited to ±{value}",
          parameter=Parameter("limit", _largest_input, lambda step: _largest_input(step) / 2.0, _clipped), tried=ALONE),
    Fault("logits-log-softmax", LINEAR, "the result is the log-softmax of the logits", _log_softmax, only=_TOP, tried=ALONE),
)
# fmt: on
