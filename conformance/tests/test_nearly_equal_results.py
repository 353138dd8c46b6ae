"""Results that are nearly equal have nearly equal errors of rounding to a half format: no filter may take them for a mistake."""

import numpy as np
import pytest

from conformance import Checkpoint, Golden, check, golden_of, load_golden
from conformance.judge.filters import project
from conformance.judge.noise import Noise
from conformance.numerics.formats import FORMATS


def nearly_uniform_attention(seed: int) -> Golden:
    """Return `tiny` with weights so small that all scores are nearly 0, hence all probabilities of a query nearly equal."""
    tiny, random = load_golden("tiny"), np.random.default_rng(seed)
    weights = {
        name: np.ones(w.shape)
        if name.endswith("LayerNorm.weight")
        else np.zeros(w.shape)
        if name.endswith("bias")
        else random.normal(0.0, 0.002, w.shape).astype(np.float32).astype(np.float64)
        for name, w in tiny.checkpoint.weights.items()
    }
    return golden_of("uniform", Checkpoint(tiny.checkpoint.architecture, weights), dict(tiny.batches))


@pytest.mark.parametrize(("dtype", "seed"), [("float16", 1), ("float16", 6), ("float16", 8), ("bfloat16", 4)])
def test_a_correct_candidate_with_nearly_uniform_attention_conforms(dtype: str, seed: int) -> None:
    assert check("making-bert", nearly_uniform_attention(seed), dtype=dtype).outcome == "pass"


@pytest.mark.parametrize(("excess", "detected"), [(0.0, False), (1.0, True)])
def test_a_filter_detects_what_exceeds_the_rounding_of_equal_results(excess: float, detected: bool) -> None:
    float16 = FORMATS["float16"]
    value = np.full(2000, 1.0 / 13.0)
    sigma = np.sqrt(float16.rounding_variance(value))
    storing = float16.round(value) - value
    noise = Noise(sigma, 0.0, np.ones(value.shape, np.bool_), lambda w: (float((w * sigma) @ (w * sigma)), 0.0), lambda: storing)
    found = project(storing + np.sign(storing) * excess * sigma, value, noise)
    independent = project(storing, value, Noise(sigma, 0.0, noise.judged, noise.projected))
    assert found is not None
    assert independent is not None
    assert abs(independent.z) > 20.0  # Errors that are taken as independent add up to a mistake.
    assert (abs(found.z) > 20.0) == detected
