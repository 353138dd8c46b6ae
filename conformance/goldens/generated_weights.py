"""Weights for which mistakes are visible.

Random initialization hides bugs because biases are zero, gammas are one, and norm inputs are large. Here every parameter is
non-degenerate and differs from its neighbours, and the standard deviation of each result is chosen: for queries and keys, such that
softmax is neither flat nor saturated; for the input of GELU, near 1.4, where the tanh and erf forms differ; for hidden states,
small enough (2^-6 unless a golden sets another value) that norm inputs have a variance near 10^-4, so that an epsilon of 1e-5 is
visible even in bfloat16.
"""

import math
from collections.abc import Mapping

from conformance.goldens.batches import Stream
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.numerics.formats import FORMATS, Array

HIDDEN = 2.0**-6

_STRONG, _MEDIUM = 1.4, 0.7  # deviations of the input of a nonlinear function, and of a result that is averaged afterwards
_MIXED, _ACTIVATED, _POOLED = 0.35, 0.9, 0.5  # deviations observed after attention's average, after GELU and after tanh


def weights(seed: int, architecture: Architecture, hidden: float = HIDDEN) -> Mapping[str, Array]:
    """Return parameters generated from `seed`, each representable with eight significant bits.

    Args:
        seed: seed of the random integers.
        architecture: the architecture.
        hidden: standard deviation of a hidden state.
    """
    rules = _rules(hidden, hidden if "token_classification" in architecture.heads else _POOLED)
    return {
        name: _parameter(seed, name, shape, _deviation(name, shape, rules))
        for name, shape in parameter_shapes(architecture).items()
    }


def _parameter(seed: int, name: str, shape: tuple[int, ...], deviation: float) -> Array:
    normal = Stream(seed, name).normals(shape)
    if name.endswith("LayerNorm.weight"):
        normal = FORMATS["bfloat16"].round(1.0 + normal / 4.0)
    return normal * 2.0 ** round(math.log2(deviation))


def _deviation(name: str, shape: tuple[int, ...], rules: Mapping[str, tuple[float, float] | float]) -> float:
    """Return the standard deviation of a parameter.

    For the weight of a linear layer with n inputs of deviation s, it is the deviation of the result divided by s √n; for a vector
    or a table, it is the deviation of the result.
    """
    rule = next(rule for end, rule in rules.items() if name.endswith(end))
    return rule if isinstance(rule, float) else rule[1] / (rule[0] * math.sqrt(shape[-1]))


def _rules(hidden: float, classified: float) -> dict[str, tuple[float, float] | float]:
    """Return, by the suffix of a parameter's name, of which the first match applies, what determines its deviation.

    For the weight of a linear layer, these are the deviations of its inputs and of its results; for a table, a bias or a gamma, the
    deviation of the result, or the mean. The masked-LM head's norm has large parameters, because its result is multiplied by the
    small embeddings of the tied decoder.
    """
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
        "classifier.weight": (classified, _STRONG),
        "_embeddings.weight": hidden,
        "distance_embedding.weight": _MEDIUM,
        "output.dense.bias": hidden / 4,
        "transform.LayerNorm.weight": 1 / (4 * hidden),
        "transform.LayerNorm.bias": 1 / (16 * hidden),
        "LayerNorm.weight": hidden,
        "LayerNorm.bias": hidden / 4,
        "bias": 0.5,
    }
