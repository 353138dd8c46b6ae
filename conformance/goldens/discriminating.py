"""Weights that are made to show mistakes.

Random initialisation hides bugs: zero biases, unit gammas, large norm inputs. Here every parameter is non-degenerate and unlike
its neighbours, and the deviation of each result is chosen: queries and keys so that softmax is neither flat nor saturated, the
input of GELU near 1.4, where tanh and erf part, and hidden states small enough (2^-6 unless a golden says otherwise) that norm
inputs have a variance near 10^-4, where an epsilon of 1e-5 shows even in bfloat16.
"""

import math
from collections.abc import Mapping

from conformance.goldens.philox import Stream
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.numerics.formats import FORMATS, Array

HIDDEN = 2.0**-6

_STRONG, _MEDIUM = 1.4, 0.7  # deviations of a result that should reach into a curve, and of one that is averaged afterwards
_MIXED, _ACTIVATED, _POOLED = 0.35, 0.9, 0.5  # deviations found after attention's average, after GELU and after tanh


def weights(seed: int, architecture: Architecture, hidden: float = HIDDEN) -> Mapping[str, Array]:
    """Parameters from `seed`, each exact in eight significant bits; `hidden` is the deviation of a hidden state."""
    classified = hidden if "token_classification" in architecture.heads else _POOLED
    deviations = {**_products(hidden), "classifier.weight": (classified, _STRONG)}
    return {
        name: _parameter(seed, name, shape, _deviation(name, shape, deviations, _vectors(hidden)))
        for name, shape in parameter_shapes(architecture).items()
    }


def _parameter(seed: int, name: str, shape: tuple[int, ...], deviation: float) -> Array:
    normal = Stream(seed, name).normals(shape)
    if name.endswith("LayerNorm.weight"):
        normal = FORMATS["bfloat16"].round(1.0 + normal / 4.0)
    return normal * 2.0 ** _exponent(deviation)


def _exponent(deviation: float) -> int:
    return round(math.log2(deviation))


def _deviation(
    name: str, shape: tuple[int, ...], products: Mapping[str, tuple[float, float]], vectors: Mapping[str, float]
) -> float:
    """Of a product with inputs of deviation s, over n of them, w gives w s √n; of a vector or a table it is that of its result."""
    for end, (before, after) in products.items():
        if name.endswith(end):
            return after / (before * math.sqrt(shape[-1]))
    return next(value for end, value in vectors.items() if name.endswith(end))


def _products(hidden: float) -> dict[str, tuple[float, float]]:
    """Deviation of inputs and of results, by the end of the weight's name; first match wins."""
    return {
        "crossattention.self.key.weight": (1.0, _STRONG),
        "crossattention.self.value.weight": (1.0, _MEDIUM),
        "self.query.weight": (hidden, _STRONG),
        "self.key.weight": (hidden, _STRONG),
        "self.value.weight": (hidden, _MEDIUM),
        "attention.output.dense.weight": (_MIXED, hidden / 2),
        "intermediate.dense.weight": (hidden, _STRONG),
        "transform.dense.weight": (hidden, _STRONG),
        "output.dense.weight": (_ACTIVATED, hidden),
        "pooler.dense.weight": (hidden, _MEDIUM),
        "seq_relationship.weight": (_POOLED, _STRONG),
        "predictions.decoder.weight": (hidden, _STRONG),
        "qa_outputs.weight": (hidden, _STRONG),
        "dense.0.linear.weight": (hidden, _STRONG),
        "linear.weight": (_POOLED, _STRONG),
    }


def _vectors(hidden: float) -> dict[str, float]:
    """Deviation of tables and biases, mean of gammas; first match wins. What the heads' norm hands to the tied decoder is large."""
    return {
        "_embeddings.weight": hidden,
        "distance_embedding.weight": _MEDIUM,
        "output.dense.bias": hidden / 4,
        "transform.LayerNorm.weight": 1 / (4 * hidden),
        "transform.LayerNorm.bias": 1 / (16 * hidden),
        "LayerNorm.weight": hidden,
        "LayerNorm.bias": hidden / 4,
        "bias": 0.5,
    }
