"""Faults of sentence embeddings: another pooling of the tokens, or another or no normalization.

The fault of a dense layer after the pooling of a sentence embedding.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.changes import first_parent, function, recast
from conformance.faults.fault import Change, Fault, FaultContext
from conformance.model.architecture import DENSE_ACTIVATIONS, POOLINGS
from conformance.model.heads import POOLING
from conformance.oracle import Step
from conformance.oracle.pooling import Maximum, Weighted

_UNIT = frozenset({"unit"})
_FIX = "Read the pooling from 1_Pooling/config.json."


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
def faults() -> Iterator[Fault]:
    """Yield the faults of pooling and normalization."""
    made = "constructed"
    yield Fault("pooling-with-padding", _kinds("mean"), "the mean is taken over all tokens, including padding", made,
                _weighted("mean-with-padding"), "hidden.mean(1), without the attention mask",
                equation="e = Σ_s x_s / S", fix="Sum x · mask over the tokens, and divide by the sum of the mask.")
    yield Fault("pooling-without-special", _kinds("mean"), "the mean leaves out the first and the last token", made,
                _weighted("mean-without-special"), "[CLS] and [SEP] masked like padding",
                equation="e = mean over the tokens between [CLS] and [SEP]",
                fix="Take the mean over all tokens that are not padding.")
    yield Fault("pooling-first-token", _other_than("cls"), "the embedding is the first token", made,
                _weighted("cls"), "last_hidden_state[:, 0], as for a classifier", equation="e = x₀", fix=_FIX)
    yield Fault("pooling-mean", _other_than("mean"), "the embedding is the mean over the tokens", made,
                _weighted("mean"), "sentence-transformers' default where it finds no 1_Pooling",
                equation="e = Σ_s m_s x_s / Σ_s m_s", fix=_FIX)
    yield Fault("pooling-max", _other_than("max"), "the embedding is the largest value of each feature over the tokens", made,
                recast(Maximum), equation="e_h = max_s x_sh", fix=_FIX)
    yield Fault("pooling-not-normalised", _UNIT, "the embedding is not normalised", made, first_parent,
                "2_Normalize left out; dot products used in place of cosines", equation="y = x",
                fix="Divide each embedding by its length.")
    yield Fault("pooling-normalised-by-largest", _UNIT, "the embedding is divided by its largest feature, not by its length", made,
                function(lambda x: x / np.abs(x).max(-1, keepdims=True)), "normalize(x, p=inf)",
                equation="y = x / max_h |x_h|", fix="Divide each embedding by its length.")
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
def dense_faults() -> Iterator[Fault]:
    """Yield the fault of dense layers."""
    yield Fault("dense-missing", frozenset({"linear", *filter(None, DENSE_ACTIVATIONS)}),
                "the dense layer after the pooling returns its input unchanged", "constructed", _handed_on,
                "2_Dense, or its linear layer, left out", _ENDS, equation="y = x",
                fix="Apply the modules that modules.json lists, each with the parameters in its own folder.")
# fmt: on
