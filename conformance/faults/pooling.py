"""Faults of what follows the layers: of sentence embeddings, of the pooler and of the transform of the masked-LM head.

Other tokens that the pooler reads are faults of linear layers, and other functions of it those of activation functions.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.faults.changes import Altered, errors_of, run, with_rounded_parent, with_slack_of_parent
from conformance.faults.edits import first_parent, function, in_place_of, reads, recast, with_computed, with_operand
from conformance.faults.fault import ALONE, FUNCTIONS, Change, Fault, FaultContext
from conformance.faults.norms import NORMS
from conformance.model.architecture import DENSE_ACTIVATIONS, POOLINGS
from conformance.model.heads import POOLING
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.pooling import WEIGHTS, Maximum, Weighted

_UNIT, _POOLED = frozenset({"unit"}), frozenset({"first_token_linear"})


def _kinds(*names: str) -> frozenset[str]:
    return frozenset(f"{POOLING}{name}" for name in names)


def _other_than(name: str) -> frozenset[str]:
    return _kinds(*POOLINGS) - _kinds("", name)


def _weighted(name: str) -> Change:
    """Return the change to the pooling `name`."""

    def change(step: Step, _: FaultContext) -> Step:
        site = replace(step.site, activation=replace(step.site.activation, kind=f"{POOLING}{name}"))
        return step.recast(Weighted).replaced(site=site)

    return change


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("pooling-with-padding", _kinds("mean"), "the mean is taken over all tokens, including padding",
          _weighted("mean-with-padding")),
    Fault("pooling-without-special", _kinds("mean"), "the mean leaves out the first and the last token",
          _weighted("mean-without-special")),
    Fault("pooling-first-token", _other_than("cls"), "the embedding is the first token", _weighted("cls")),
    Fault("pooling-mean", _other_than("mean"), "the embedding is the mean over the tokens", _weighted("mean")),
    Fault("pooling-max", _other_than("max"), "the embedding is the largest value of each feature over the tokens", recast(Maximum)),
    Fault("pooling-not-normalised", _UNIT, "the embedding is not normalised", first_parent),
    Fault("pooling-normalised-by-largest", _UNIT, "the embedding is divided by its largest feature, not by its length",
          function(lambda x: x / np.abs(x).max(-1, keepdims=True))),
)
# fmt: on


_ENDS = (".linear", ".activation_function", "sentence_embedding")


def _handed_on(step: Step, context: FaultContext) -> Step | None:
    """Return the step with the layer's input in place of its linear product or of its result, if both have the same width."""
    row = step.site.activation
    if row.kind == "linear":
        return Altered(step, lambda inner: inner.parents[0]) if step.parents[0].shape == step.value.shape else None
    (inputs,) = context.network.table[row.parents[0]].parents
    entry = context.values.get(inputs)
    return None if entry is None or entry.shape != step.value.shape else Altered(step, lambda _: entry)


# fmt: off
DENSE_FAULTS: tuple[Fault, ...] = (
    Fault("dense-missing", frozenset({"linear", *filter(None, DENSE_ACTIVATIONS)}),
          "the dense layer after the pooling returns its input unchanged", _handed_on, only=_ENDS),
)
# fmt: on


def _reading(weights: Callable[[Mask], Array]) -> Change:
    """Return the change by which the pooler reads the sum of the tokens with weights, (B, S), of the mask, not the first token.

    A sum of several tokens may be rounded; its partial sums are no larger than the sum of the magnitudes.
    """

    def change(step: Step, _: FaultContext) -> Step | None:
        hidden = step.parents[0]
        if hidden.ndim != 3:
            return None
        each = weights(step.site.batch.mask)[..., None]

        def read(x: Array) -> Array:
            return as_array((x * each).sum(1))

        def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
            rounded = np.zeros_like(hidden)
            rounded[:, 0] = arithmetic.storage.rounding_variance(read(np.abs(hidden)))
            return rounded

        changed = step.replaced(parents=(np.concatenate([read(hidden)[:, None], hidden[:, 1:]], 1),))
        return changed if (np.count_nonzero(each, 1) <= 1).all() else with_slack_of_parent(changed, slack)

    return change


def _at(index: Callable[[Mask], Any]) -> Change:
    """Return the change by which the pooler reads the token `index(mask)` of each row, or of all rows."""
    return _reading(lambda mask: as_array(np.arange(mask.shape[1]) == np.reshape(index(mask), (-1, 1)), np.float64))


def _of_length_one(step: Step, _: FaultContext) -> Step:
    """Return the pooler's tanh divided by its length; the quotient is rounded once more."""

    def value(inner: Step) -> Array:
        return as_array(inner.value / np.linalg.norm(inner.value, axis=-1, keepdims=True))

    return Altered(step, value, lambda altered, arithmetic: arithmetic.storage.rounding_variance(altered.value))


def _again(step: Step, context: FaultContext) -> Step | None:
    """Return the head of the pooler's result for the pooler's output, with the rounding errors of both of its steps."""
    network, names = context.network, ("pooler.dense", "pooler.activation")
    if names[0] not in network.table:
        return None
    (hidden,) = network.table[names[0]].parents
    steps = run(network, names, {hidden: step.parents[0][:, None]})
    if steps is None:
        return None
    return with_slack_of_parent(with_operand(step, steps[names[1]].value), errors_of(network, steps))


# fmt: off
POOLER_FAULTS: tuple[Fault, ...] = (
    Fault("pooler-token", _POOLED, "the last token is read, not the first", _at(lambda mask: mask.shape[1] - 1)),
    Fault("pooler-last-unmasked", _POOLED, "the last token that is not padding is read, not the first one",
          _reading(WEIGHTS["last"])),
    Fault("pooler-last-by-length", _POOLED, "the token is read whose index is the number of unmasked tokens less one",
          _at(lambda mask: np.maximum(mask.sum(1) - 1, 0)), tried=ALONE),
    Fault("pooler-second-token", _POOLED, "the second token is read, not the first", _at(lambda mask: min(1, mask.shape[1] - 1))),
    Fault("pooler-mean", _POOLED, "the mean over all tokens is read, not the first token", _reading(WEIGHTS["mean"])),
    Fault("pooler-weighted-mean", _POOLED,
          "the mean over all tokens, weighted by their positions, is read, not the first token", _reading(WEIGHTS["weighted-mean"]),
          tried=ALONE),
    Fault("pooler-mean-with-padding", _POOLED, "the mean over all tokens, including padding, is read, not the first token",
          _reading(WEIGHTS["mean-with-padding"])),
    Fault("pooler-weighted-mean-with-padding", _POOLED,
          "the mean over all tokens, including padding, weighted by their positions, is read, not the first token",
          _reading(lambda mask: WEIGHTS["weighted-mean"](np.ones_like(mask))), tried=ALONE),
    Fault("pooler-normalised", frozenset({"tanh"}), "the pooler's output is divided by its length", _of_length_one,
          only=("pooler.activation",), tried=ALONE),
    Fault("pooler-twice", frozenset({"linear"}), "the head reads the pooler's output after the pooler once more", _again,
          only=("seq_relationship", "classifier"), tried=ALONE),
)
# fmt: on


_PATH = "cls.predictions.transform."
_DENSE, _ACT, _NORM = (f"{_PATH}{name}" for name in ("dense", "transform_act_fn", "LayerNorm"))
_TRANSFORM = (_ACT, _NORM)


def _with_hidden_state(step: Step, context: FaultContext) -> Step | None:
    """Return the norm of the sum with the transform's input; the sum may be rounded to storage."""
    (hidden,) = context.network.table[_DENSE].parents
    hidden_state = context.values.get(hidden)
    if hidden_state is None or hidden_state.shape != step.value.shape:
        return None
    return with_rounded_parent(step.replaced(parents=(step.parents[0] + hidden_state,)), 0)


def _other_order(step: Step, context: FaultContext) -> Step:
    """Return the steps in the other order, where the activation exposed first is the norm and the second is the function of it."""
    other = _ACT if step.site.activation.name == _NORM else _NORM
    return in_place_of(step, lambda inner: context.network.step(other, inner.parents[0]))


def _norm_first(step: Step, context: FaultContext) -> Step | None:
    """Return the steps in the other order, each exposed under its own name: the norm of the product, the function of the norm."""
    if step.site.activation.name == _ACT:
        norm = context.network.step(_NORM, step.parents[0])
        return with_computed(step, norm)
    return reads(lambda _: _DENSE)(step, context)


# fmt: off
TRANSFORM_FAULTS: tuple[Fault, ...] = (
    Fault("transform-order", FUNCTIONS | NORMS, "the head's norm comes before its activation function", _other_order,
          only=_TRANSFORM, tried=ALONE),
    Fault("transform-norm-first", FUNCTIONS | NORMS,
          "the head's norm reads the product, and its activation function reads the norm", _norm_first, only=_TRANSFORM,
          tried=ALONE),
    Fault("decoder-without-norm", frozenset({"linear"}),
          "the decoder reads the transform's activation function, bypassing its norm", reads(lambda _: _ACT),
          only=("predictions.decoder",), tried=ALONE),
    Fault("transform-residual", NORMS, "the hidden state is added before the head's norm", _with_hidden_state, only=(_NORM,),
          tried=ALONE),
)
# fmt: on
