"""What is said of a residual: where it is, how large it is, and which edit of the result, or function, it is."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest

from conformance.faults.fitted import FITTED, FitData
from conformance.goldens.shipped_goldens import RECIPES
from conformance.judge.judged_elements import judged_elements, sums_of_independent_rows
from conformance.judge.noise import of_segment
from conformance.judge.residual_description import Residual, describe_residual
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.formats import FORMATS, Array
from conformance.numerics.thresholds import ErrorLimits, max_threshold, projection_threshold, rms_threshold
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


def residual_of(name: str, change: Change, dtype: str = "float32") -> Residual:
    """Return the residual of an activation computed by `change` and rounded to storage."""
    network, observed = _observed(dtype)
    segment = Segment(network, name, {n: v for n, v in observed.items() if n != name})
    step, row = segment.steps[name], network.table[name]
    made = FORMATS[dtype].round(np.array(change(step), np.float64))
    judged = judged_elements(row, network.batch, made.shape)
    noise = of_segment(segment, hypotheses(dtype)[0], judged)
    rows = sums_of_independent_rows(row, judged, coupled=False)
    limits = ErrorLimits(rms_threshold(rows, ALPHA), max_threshold(int(judged.sum()), ALPHA))
    return Residual(step, made, noise.sigma, noise.bound, judged, limits)


def said_of(name: str, change: Change) -> str:
    return "; ".join(describe_residual(residual_of(name, change)))


def fitted_to(name: str, change: Change, dtype: str) -> set[str]:
    """Return the edits of the result that the array is, each but for noise, as they are reported."""
    residual = residual_of(name, change, dtype)
    step, allowed = residual.step, np.hypot(residual.sigma, residual.bound)
    data = FitData(residual.actual, residual.judged, allowed, projection_threshold(ALPHA))
    kind, found = step.site.activation.kind, set()
    for fault in FITTED:
        fit = fault.fit(step, data) if fault.of_result and fault.is_possible_at(kind, name) else None
        for each in (*fit.simpler, fit) if fit else ():
            own = each.step.roundings(hypotheses(dtype)[0].arithmetic)
            room = data.largest * np.hypot(np.sqrt(own.variance()), own.bound)
            if (np.abs(residual.actual - each.step.value) <= room)[residual.judged].all():
                found.add(f"{each.parameter} {each.value:.4g}")
    return found


def drawn(*shape: int) -> Array:
    return np.random.default_rng(1).normal(size=shape)


def bias(step: Step) -> Array:
    return step.site.parameters["bias"]


def features(width: int = 32) -> Array:
    return np.arange(width)


# By name: the activation, the beginning of what is said of it, and the change.
EDITS: dict[str, tuple[str, str, Change]] = {
    "zeros": (QUERY, "result[:] = 0", lambda s: 0.0 * s.value),
    "a constant": (QUERY, "result[:] = 3", lambda s: 0.0 * s.value + 3.0),
    "half": (CONTEXT, "result[:] *= 0.5", lambda s: s.value / 2.0),
    "sign": (QUERY, "result[:] *= -1", lambda s: -s.value),
    "two heads": (QUERY, "result by head[1::2] *= 2", lambda s: s.value * np.where(features() // 8 % 2, 2.0, 1.0)),
    "five positions": (QUERY, "result by position[0:5] *= 2", lambda s: s.value * np.where(np.arange(16) < 5, 2.0, 1.0)[:, None]),
    "a row": (GELU, "result by batch[2] *= 2", lambda s: s.value * np.where(np.arange(6) == 2, 2.0, 1.0)[:, None, None]),
    "parent handed on": (GELU, f"{LAYER}intermediate.dense times 1", lambda s: s.parents[0]),
    "bias twice": (INNER, "the right one plus the bias times ", lambda s: s.value + bias(s)),
    "bias missing": (INNER, "the right one plus the bias times -", lambda s: s.value - bias(s)),
    "added number": (INNER, "the right one plus 1 times 0.0", lambda s: s.value + 0.01),
    "heads reordered": (CONTEXT, "by head: 4 are others, such as expected 0, estimated 2",
                        lambda s: merge_heads(split_heads(s.value, 8)[:, [2, 0, 3, 1]])),
    "heads of scores": (SCORES, "by head: expected 0 to 3, estimated 3 to 0", lambda s: s.value[:, ::-1]),
    "transposed": (PROBS, "exchanged axes query and key", lambda s: s.value.swapaxes(2, 3)),
    "x sigmoid(x)": (GELU, "such as", lambda s: s.parents[0] / (1.0 + np.exp(-s.parents[0]))),
    "the tanh form": (GELU, "such as", lambda s: gelu_tanh(s.parents[0])),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_edit_of_the_result_is_described(dtype: str) -> None:
    for case, (place, words, change) in EDITS.items():
        found = fitted_to(place, change, dtype)
        assert any(text.startswith(words) for text in found), (case, found)


# Changes that nearly are an edit.
NEARLY: dict[str, tuple[str, Change]] = {
    "nearly the parent": (GELU, lambda s: s.parents[0] * (1.0 + 1e-3 * np.sin(9.0 * np.arange(16))[:, None])),
    "scaled at random": (SCORES, lambda s: s.value * (2.0 + 1e-4 * drawn(*s.value.shape))),
    "sign of most": (QUERY, lambda s: s.value * np.where(drawn(*s.value.shape) > 1.5, 1.0, -1.0)),
    "a constant a row": (INNER, lambda s: s.value + drawn(6, 16, 1)),
    "a gain by key and head": (SCORES, lambda s: s.value * (1.0 + 0.1 * drawn(4, 1, 16))),
    "transposed and bent": (PROBS, lambda s: s.value.swapaxes(2, 3) * (1.0 + 1e-3 * drawn(16, 16))),
    "noise, not a function": (GELU, lambda s: s.value * (1.0 + 1e-5 * drawn(*s.value.shape))),
}  # fmt: skip


def test_a_near_match_is_not_described_as_an_edit() -> None:
    for case, (place, change) in NEARLY.items():
        assert not fitted_to(place, change, "float32"), case


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
    "everywhere": (QUERY, "not confined to a part of any axis", lambda s: 2.0 * s.value),
    "nowhere": (QUERY, "the error is spread over them", lambda s: s.value),
    "not finite": (QUERY, "feature 3", lambda s: np.where(features() == 3, np.nan, s.value)),
    "NaN": (QUERY, "are not finite (", lambda s: np.where(features() == 3, np.nan, s.value)),
    "an element": (QUERY, "only 1 element is wrong: (0, 2, 13)",
                   lambda s: s.value + 0.1 * (np.arange(s.value.size) == 77).reshape(s.value.shape)),
    "noise": (QUERY, "as large as rounding to 1", lambda s: s.value * (1.0 + 2e-4 * drawn(*s.value.shape))),
    "a scalar": ("cls.predictions.loss", "0.5 times", lambda s: s.value / 2.0),
}  # fmt: skip


def test_the_place_and_the_size_of_the_error_are_reported() -> None:
    for case, (place, words, change) in EXTENTS.items():
        assert words in said_of(place, change), (case, said_of(place, change))
