"""Networks with initial weights: nearly equal results have nearly equal rounding errors, and no filter takes them for a mistake."""

import numpy as np
import pytest

from conformance import Checkpoint, Golden, check, golden_of, load_golden
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.judge.filters import project
from conformance.judge.noise import Noise
from conformance.numerics.formats import FORMATS

BERT = 0.02  # The standard deviation of BERT's initial weights.
UNIFORM = 0.002  # All scores are nearly 0, hence all probabilities of a query nearly equal.


def initial(deviation: float, seed: int) -> Golden:
    """Return `tiny` with initial weights: normal ones of a standard deviation, norms that only normalize, and no biases."""
    tiny, random = load_golden("tiny"), np.random.default_rng(seed)
    weights = {
        name: np.ones(w.shape)
        if name.endswith("LayerNorm.weight")
        else np.zeros(w.shape)
        if name.endswith("bias")
        else random.normal(0.0, deviation, w.shape).astype(np.float32).astype(np.float64)
        for name, w in tiny.checkpoint.weights.items()
    }
    return golden_of("initial", Checkpoint(tiny.checkpoint.architecture, weights), dict(tiny.batches))


@pytest.mark.landing({"dtype": "float16", "seed": 201}, dtype="bfloat16", deviation=BERT, seed=201)
@pytest.mark.parametrize("seed", range(201, 204))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("variant", "deviation"),
    [
        ("everything in float32, rounded when shown", BERT),
        ("everything in float32, rounded when shown", UNIFORM),
        ("softmax, every operation rounded", UNIFORM),
        ("softmax with a reciprocal", UNIFORM),
    ],
)
def test_unusual_correct_arithmetic_conforms_on_initial_weights(variant: str, deviation: float, dtype: str, seed: int) -> None:
    assert check(VARIANTS[variant], initial(deviation, seed), dtype=dtype).outcome == "pass"


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


@pytest.mark.parametrize(("dtype", "seed"), [("float16", 1), ("float16", 6), ("float16", 8), ("bfloat16", 4)])
def test_a_correct_candidate_with_nearly_uniform_attention_conforms(dtype: str, seed: int) -> None:
    assert check("making-bert", initial(UNIFORM, seed), dtype=dtype).outcome == "pass"
