"""The description of a residual: every finding is made for an example that is broken in that way, and none for an example broken
otherwise."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from conformance.faults.fault import with_parameters
from conformance.goldens.shipped_goldens import RECIPES
from conformance.judge.judged_elements import judged_elements, sums_of_independent_rows
from conformance.judge.noise import of_segment
from conformance.judge.residual_description import ResidualDescription, describe_residual, sentences
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS, Array
from conformance.numerics.thresholds import ErrorLimits, max_threshold, rms_threshold
from conformance.oracle import Network, Step
from conformance.oracle.bilinear import merge_heads, split_heads
from conformance.oracle.pointwise import gelu_tanh

Change = Callable[[Step], Array]

LAYER = "encoder.layer.0."
ATTENTION = f"{LAYER}attention.self."
QUERY, SCORES, PROBS, CONTEXT = (f"{ATTENTION}{n}" for n in ("query", "scores", "probs", "context"))
DENSE, INNER, GELU, NORM = (
    f"{LAYER}{n}" for n in ("attention.output.dense", "intermediate.dense", "intermediate.intermediate_act_fn", "output.LayerNorm")
)
ALPHA = 1e-8


@lru_cache
def _observed(dtype: str) -> tuple[Network, dict[str, Array]]:
    """Return a correct candidate's activations, each computed from its rounded parents."""
    storage, checkpoint = FORMATS[dtype], RECIPES["tiny"].checkpoint()
    weights = {name: storage.round(value) for name, value in checkpoint.weights.items()}
    network, found = Network(checkpoint.architecture, weights, RECIPES["tiny"].batches()["padded"]), {}
    for name, row in network.table.items():
        found[name] = storage.round(np.asarray(network.step(name, *(found[p] for p in row.parents)).value))
    return network, found


def looked_at(name: str, change: Change, dtype: str = "float32") -> ResidualDescription:
    """Return the description of an activation computed by `change` and rounded to storage."""
    network, observed = _observed(dtype)
    segment = Segment(network, name, {n: v for n, v in observed.items() if n != name})
    step, row = segment.steps[name], network.table[name]
    made = FORMATS[dtype].round(np.array(change(step), np.float64))
    judged = judged_elements(row, network.batch, made.shape)
    noise = of_segment(segment, hypotheses(dtype)[0], judged)
    rows = sums_of_independent_rows(row, judged, coupled=False)
    limits = ErrorLimits(rms_threshold(rows, ALPHA), max_threshold(int(judged.sum()), ALPHA))
    return describe_residual(step, made, noise.sigma, noise.bound, judged, limits)


def explained(found: ResidualDescription) -> set[str]:
    return {f.kind for f in found.residual_findings if f.explained}


def rendered(found: ResidualDescription) -> str:
    return "; ".join(sentences(found))


def drawn(*shape: int) -> Array:
    return np.random.default_rng(1).normal(size=shape)


def with_parents(step: Step, *parents: Array) -> Array:
    return type(step)(step.site, *parents).value


def parameters_of(step: Step, **changed: Array) -> Array:
    return with_parameters(step, **changed).value


def weight(step: Step) -> Array:
    return step.site.parameters["weight"]


def bias(step: Step) -> Array:
    return step.site.parameters["bias"]


def uniform(step: Step) -> Array:
    mask = step.site.batch.mask
    return np.broadcast_to((mask / mask.sum(1, keepdims=True))[:, None, None, :], (*mask.shape[:1], 4, *mask.shape[1:] * 2))


def features(width: int = 32) -> Array:
    return np.arange(width)


# By name: the activation, the expected kind of finding, words of its sentence, and the change.
RECOGNISED: dict[str, tuple[str, str, str, Change]] = {
    "zeros": (QUERY, "zeros", "zero everywhere", lambda s: 0.0 * s.value),
    "nearly zeros": (QUERY, "nearly zero", "no value of the result exceeds 5e-30", lambda s: 1e-30 * s.value),
    "constant": (QUERY, "constant", "the result is 3 everywhere", lambda s: 0.0 * s.value + 3.0),
    "same position": (QUERY, "same along an axis", "every position", lambda s: np.broadcast_to(s.value[:, :1], s.value.shape)),
    "parent handed on": (GELU, "copied", f"the input {LAYER}intermediate.dense", lambda s: s.parents[0]),
    "no norm": (NORM, "copied", "the sum before normalisation", lambda s: s.parents[0] + s.parents[1]),
    "no affine": (NORM, "copied", "the result is the normalised value",
                  lambda s: parameters_of(s, weight=np.ones(32), bias=np.zeros(32))),
    "no bias": (INNER, "copied", "x Wᵀ alone", lambda s: s.value - bias(s)),
    "q qᵀ": (SCORES, "copied", "q qᵀ / √d", lambda s: with_parents(s, s.parents[0], s.parents[0])),
    "mean of values": (CONTEXT, "copied", "mean of the unmasked values", lambda s: with_parents(s, uniform(s), s.parents[1])),
    "scale √d": (SCORES, "scale", "√(the head size)", lambda s: s.value * 8.0**0.5),
    "scale 1/2": (CONTEXT, "scale", "0.500000", lambda s: s.value / 2.0),
    "sign": (QUERY, "sign", "the sign is wrong", lambda s: -s.value),
    "multiple of another": (GELU, "multiple", "(1/2) times the input", lambda s: s.parents[0] / 2.0),
    "bias twice": (INNER, "shift", "times the bias (added once too often)", lambda s: s.value + bias(s)),
    "β subtracted": (NORM, "shift", "times β (with the wrong sign)", lambda s: s.value - 2.0 * bias(s)),
    "a constant": (INNER, "shift", "0.010000 ± ", lambda s: s.value + 0.01),
    "another bias": (INNER, "shift of features", "a constant of its own", lambda s: s.value + drawn(64)),
    "other γ, β": (NORM, "gain of features", "other γ and β", lambda s: parameters_of(s, weight=drawn(32), bias=drawn(2, 32)[1])),
    "gain by head": (SCORES, "gain", "each head has a gain", lambda s: s.value * np.array([2.0, 3.0, 0.5, -1.0])[:, None, None]),
    "other epsilon": (NORM, "gain", "less its bias", lambda s: type(s)(
        replace(s.site, architecture=s.site.architecture.with_(layer_norm_eps=1e-5)), *s.parents).value),
    "γ left out": (NORM, "term", "γ times the normalised value (left out)", lambda s: parameters_of(s, weight=np.ones(32))),
    "skip after the norm": (NORM, "term", "(it is missing from", lambda s: with_parents(s, s.parents[0]) + s.parents[1]),
    "a x + b f(x) + c": (GELU, "term", "0.100000", lambda s: 0.5 * s.value + 0.25 * s.parents[0] + 0.1),
    "half uniform": (PROBS, "term", "(1/2) times a uniform attention", lambda s: 0.5 * s.value + 0.5 * uniform(s)),
    "weight subtracted": (DENSE, "term", "x Wᵀ (with the wrong sign)", lambda s: parameters_of(s, weight=-weight(s))),
    "features reversed": (QUERY, "permutation", "features are in another order: expected 0 to 31, estimated 31 to 0",
                    lambda s: s.value[..., ::-1]),
    "positions shifted": (QUERY, "permutation", "expected 0 to 1, estimated 14 to 15; expected 2 to 15, estimated 0 to 13",
                          lambda s: np.roll(s.value, 2, 1)),
    "sentences exchanged": (QUERY, "permutation", "rows are in another order: expected 1, estimated 3; expected 3, estimated 1",
                    lambda s: s.value[[0, 3, 2, 1, 4, 5]]),
    "heads reordered": (CONTEXT, "permutation", "heads are in another order: 4 are others, such as expected 0, estimated 2",
                        lambda s: merge_heads(split_heads(s.value, 8)[:, [2, 0, 3, 1]])),
    "heads of scores": (SCORES, "permutation", "heads are in another order: expected 0 to 3, estimated 3 to 0",
                    lambda s: s.value[:, ::-1]),
    "interleaved": (CONTEXT, "permutation", "features are in another order: 30 are others, such as expected 1, estimated 8",
                    lambda s: s.value.reshape(6, 16, 4, 8).swapaxes(2, 3).reshape(6, 16, 32)),
    "next position": (QUERY, "gather", "positions are taken from other places: expected 0 to 14, estimated 1 to 15",
                    lambda s: s.value[:, np.minimum(np.arange(16) + 1, 15)]),
    "outputs reordered": (DENSE, "permutation", "in another order before the bias is added: expected 0 to 31, estimated 31 to 0",
                          lambda s: parameters_of(s, weight=weight(s)[::-1])),
    "merged too early": (CONTEXT, "rearranged", "heads merged before", lambda s: split_heads(s.value, 8).reshape(6, 16, 32)),
    "transposed": (PROBS, "transpose", "query and key exchanged", lambda s: s.value.swapaxes(2, 3)),
    "weight transposed": (DENSE, "term", "times x W, the weight not transposed", lambda s: parameters_of(s, weight=weight(s).T)),
    "x sigmoid(x)": (GELU, "other function", "another function", lambda s: s.parents[0] / (1.0 + np.exp(-s.parents[0]))),
    "the tanh form": (GELU, "other function", "another function", lambda s: gelu_tanh(s.parents[0])),
    "bfloat16": (QUERY, "fewer bits", "8 significant bits, those of bfloat16", lambda s: FORMATS["bfloat16"].round(s.value)),
    "dropout": (DENSE, "zeroed", "1.111111", lambda s: s.value * (np.random.default_rng(2).random(s.value.shape) > 0.1) / 0.9),
    "noise": (QUERY, "noise", "no pattern that was looked for: everywhere its RMS is 0.00019",
              lambda s: s.value + 2e-4 * drawn(*s.value.shape)),
    "relative noise": (QUERY, "noise", "of the expected value; that is 0.02 % of the values' RMS, as large as rounding to 1",
                       lambda s: s.value * (1.0 + 2e-4 * drawn(*s.value.shape))),
    "an element": (QUERY, "few elements", "only 1 element is wrong: (0, 2, 13)",
                   lambda s: s.value + 0.1 * (np.arange(s.value.size) == 77).reshape(s.value.shape)),
}  # fmt: skip


IN_BFLOAT16 = (
    "scale √d", "sign", "bias twice", "γ left out", "features reversed", "heads reordered",
    "outputs reordered", "transposed", "weight transposed", "x sigmoid(x)", "dropout", "half uniform",
)  # fmt: skip


@pytest.mark.parametrize("case", RECOGNISED)
def test_the_change_is_recognised_and_nothing_else_is_claimed(case: str) -> None:
    place, kind, words, change = RECOGNISED[case]
    found = looked_at(place, change)
    assert explained(found) == {kind}, sentences(found)
    assert words in rendered(found)
    if case in IN_BFLOAT16:
        assert explained(looked_at(place, change, "bfloat16")) == {kind}


# Changes that nearly match a finding, and must not be reported as it.
NEARLY: dict[str, tuple[str, str, Change]] = {
    "nearly zero": (QUERY, "zeros", lambda s: 1e-30 * s.value),
    "nearly constant": (QUERY, "constant", lambda s: 3.0 + 1e-5 * s.value),
    "positions nearly the same": (QUERY, "same along an axis", lambda s: s.value[:, :1] + 1e-5 * s.value),
    "positions the same in every row": ("embeddings.position_embeddings", "same along an axis", lambda s: 2.0 * s.value),
    "nearly the parent": (GELU, "copied", lambda s: s.parents[0] * (1.0 + 1e-5 * np.tanh(s.parents[0]))),
    "scaled at random": (SCORES, "scale", lambda s: s.value * (2.0 + 1e-4 * drawn(*s.value.shape))),
    "sign of most": (QUERY, "sign", lambda s: s.value * np.where(drawn(*s.value.shape) > 1.5, 1.0, -1.0)),
    "bias of another": (INNER, "shift", lambda s: s.value + bias(s)[::-1]),
    "a constant a row": (INNER, "shift of features", lambda s: s.value + drawn(6, 16, 1)),
    "a gain at random": (NORM, "gain of features", lambda s: s.value * (1.0 + 0.1 * drawn(*s.value.shape))),
    "a gain by key and head": (SCORES, "gain", lambda s: s.value * (1.0 + 0.1 * drawn(4, 1, 16))),
    "a product of terms": (GELU, "term", lambda s: s.value + 0.1 * s.value * s.parents[0] ** 2),
    "reversed and bent": (QUERY, "permutation", lambda s: s.value[..., ::-1] * (1.0 + 1e-4 * np.sin(s.value))),
    "transposed and bent": (PROBS, "transpose", lambda s: s.value.swapaxes(2, 3) * (1.0 + 1e-4 * drawn(16, 16))),
    "merged and bent": (CONTEXT, "rearranged", lambda s: split_heads(s.value, 8).reshape(6, 16, 32) + 1e-4 * s.value),
    "weight nearly transposed": (DENSE, "term",
                                 lambda s: parameters_of(s, weight=weight(s).T * (1 + 1e-3 * drawn(32, 32)))),
    "a function of place too": (GELU, "other function", lambda s: np.tanh(s.parents[0]) * (1.0 + 1e-3 * np.arange(16)[:, None])),
    "noise, not a function": (GELU, "other function", lambda s: s.value + 1e-6 * drawn(*s.value.shape)),
    "twelve bits, scaled": (QUERY, "fewer bits", lambda s: FORMATS["float16"].round(s.value) * 1.1),
    "dropped, not scaled alike": (DENSE, "zeroed", lambda s: s.value * np.maximum(drawn(*s.value.shape) + 1.0, 0.0)),
    "noise of a feature": (QUERY, "noise", lambda s: s.value + 2e-4 * drawn(*s.value.shape) * (1.0 + 9.0 * (features() == 5))),
    "noise with a mean": (QUERY, "noise", lambda s: s.value + 2e-4 * (drawn(*s.value.shape) + 1.5)),
    "more elements": (QUERY, "few elements",
                      lambda s: s.value + 0.1 * (np.arange(s.value.size) % 300 == 77).reshape(s.value.shape)),
}  # fmt: skip


@pytest.mark.parametrize("case", NEARLY)
def test_a_near_match_is_not_reported_as_the_finding(case: str) -> None:
    place, kind, change = NEARLY[case]
    found = looked_at(place, change)
    assert kind not in explained(found), sentences(found)


@pytest.mark.parametrize("name", [QUERY, SCORES, PROBS, CONTEXT, DENSE, INNER, GELU, NORM])
def test_an_unstructured_error_has_no_explanation(name: str) -> None:
    found = looked_at(name, lambda s: s.value * 1.3 + np.abs(s.value) * drawn(*s.value.shape))
    assert not explained(found), sentences(found)
    assert "no pattern that was looked for: everywhere" not in rendered(found)
    assert "100 % of the squared error" not in rendered(found)


EXTENTS: dict[str, tuple[str, str, Change]] = {
    "heads": (QUERY, "heads 1 and 3", lambda s: s.value * np.where(features() // 8 % 2, 2.0, 1.0)),
    "positions": (QUERY, "positions 0 to 4", lambda s: s.value * np.where(np.arange(16) < 5, 2.0, 1.0)[:, None]),
    "within heads": (QUERY, "the last feature of each head", lambda s: s.value + 0.1 * (features() % 8 == 7)),
    "a feature": (QUERY, "at feature 13", lambda s: s.value + 0.1 * (features() == 13)),
    "sentences": (GELU, "batch row 2", lambda s: s.value * np.where(np.arange(6) == 2, 2.0, 1.0)[:, None, None]),
    "a head of scores": (SCORES, "head 2", lambda s: s.value * np.where(np.arange(4) == 2, 2.0, 1.0)[:, None, None]),
    "later keys": (PROBS, "keys after the query", lambda s: np.where(np.tri(16) > 0, s.value, 0.0)),
    "one's own key": (SCORES, "each query's own key", lambda s: s.value + np.eye(16)),
    "every other feature": (INNER, "every other feature from 1", lambda s: s.value + 0.1 * (np.arange(64) % 2)),
}  # fmt: skip


@pytest.mark.parametrize("case", EXTENTS)
def test_the_extent_of_the_error_is_reported(case: str) -> None:
    place, words, change = EXTENTS[case]
    assert words in rendered(looked_at(place, change))


def test_a_fault_of_one_head_is_explained_there() -> None:
    found = looked_at(QUERY, lambda s: s.value * np.where(features() // 8 == 1, 2.0, 1.0))
    assert explained(found) == {"scale"}
    (number,) = found.residual_findings[0].numbers
    assert abs(number.value - 2.0) < 6.0 * number.deviation < 1e-5


def test_values_that_are_not_finite_are_the_only_finding_and_padded_rows_are_none() -> None:
    found = looked_at(QUERY, lambda s: np.where(features() == 3, np.nan, s.value))
    assert [f.kind for f in found.residual_findings] == ["not finite"]
    assert "feature 3" in rendered(found)
    assert explained(looked_at(QUERY, lambda s: np.where(s.site.batch.mask[:, :, None], -s.value, np.nan))) == {"sign"}


def test_an_error_with_two_causes_is_reported_with_the_share_that_one_explains() -> None:
    found = looked_at(INNER, lambda s: s.value + bias(s) + 0.01 * np.tanh(s.value))
    assert not explained(found)
    assert found.residual_findings[0].share > 0.9
    assert "of the squared error, not for all" in rendered(found)


def test_a_scalar_is_described_by_its_ratio_and_a_correct_step_as_noise_at_most() -> None:
    assert "0.5 times" in rendered(looked_at("cls.predictions.loss", lambda s: s.value / 2.0))
    found = looked_at(QUERY, lambda s: s.value)
    assert explained(found) <= {"noise"}
    assert found.localization.beyond == 0
    everywhere = looked_at(QUERY, lambda s: 2.0 * s.value).localization
    assert (everywhere.share, everywhere.places) == (1.0, ())


def test_every_step_of_the_network_can_be_described() -> None:
    for name in _observed("float32")[0].table:
        assert sentences(looked_at(name, lambda s: 1.01 * s.value + 0.01))
