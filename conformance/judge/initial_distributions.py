"""Distributions of initial parameters: those that BERT permits, and those of common mistakes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from conformance.numerics.formats import Array

CUT = 2.0  # standard deviations at which TensorFlow's truncated_normal_initializer truncates
# Standard deviation of N(0, 1) truncated at ± c, √(1 − 2 c φ(c) / (2 Φ(c) − 1)), by which jax.nn.initializers divides.
KEPT = math.sqrt(1.0 - 2.0 * CUT * math.exp(-(CUT**2) / 2.0) / math.sqrt(2.0 * math.pi) / math.erf(CUT / math.sqrt(2.0)))
USUAL_RANGE = 0.02  # default of transformers.BertConfig.initializer_range, often hard-coded in place of the config's value


@dataclass(frozen=True)
class Distribution:
    """A continuous distribution: its description, and its cumulative distribution function P(x ≤ t).

    Example:
        >>> normal(0.02).words, normal(0.02, cut=2.0).words, uniform(0.1).words
        ('N(0, 0.02²)', 'N(0, 0.02²) truncated at ± 0.04', 'U(−0.1, 0.1)')
        >>> normal(0.02).cdf(np.array([0.0, 0.02])).round(3).tolist()
        [0.5, 0.841]
    """

    words: str
    cdf: Callable[[Array], Array]


Mistakes = Iterator[tuple[Distribution, str]]


def normal(deviation: float, cut: float = math.inf) -> Distribution:
    """Return N(0, deviation²), truncated at ± `cut` times `deviation`."""
    low = float(ndtr(-cut))
    words = f"N(0, {deviation:.3g}²)" + (f" truncated at ± {cut * deviation:.3g}" if cut < math.inf else "")
    return Distribution(words, lambda x: np.clip((ndtr(x / deviation) - low) / (1.0 - 2.0 * low), 0.0, 1.0))


def uniform(bound: float) -> Distribution:
    """Return U(−bound, bound)."""
    return Distribution(f"U(−{bound:.3g}, {bound:.3g})", lambda x: np.clip(0.5 + x / (2.0 * bound), 0.0, 1.0))


def legal(deviation: float) -> tuple[Distribution, ...]:
    """Return the legal distributions: N(0, deviation²), the same truncated, and one with that deviation after truncation."""
    return normal(deviation), normal(deviation, CUT), normal(deviation / KEPT, CUT)


def usual_draws(ins: int, deviation: float) -> Mistakes:
    """Yield the distributions of biases and LayerNorm weights that are wrongly drawn; `ins` is the number of inputs summed."""
    yield uniform(1.0 / math.sqrt(ins)), "torch's default of nn.Linear"
    yield normal(deviation), "as if it were a matrix"


def usual_mistakes(shape: tuple[int, ...], deviation: float, layers: int) -> Mistakes:
    """Yield the distributions of a wrongly initialized matrix or table, each with its cause in words."""
    ins, outs = shape[-1], shape[0]
    for distribution in legal(USUAL_RANGE):
        yield distribution, "the config's initializer_range is ignored"
    yield uniform(math.sqrt(3.0) * deviation), "of that standard deviation, but uniform"
    yield uniform(1.0 / math.sqrt(ins)), "torch's default of nn.Linear"
    yield normal(1.0), "torch's default of nn.Embedding"
    yield uniform(math.sqrt(6.0 / (ins + outs))), "Glorot's, uniform: the default of Keras"
    yield uniform(math.sqrt(6.0 / (4 * ins))), "Glorot's of query, key and value in one: the default of nn.MultiheadAttention"
    yield normal(math.sqrt(2.0 / (ins + outs))), "Glorot's, normal"
    yield normal(math.sqrt(1.0 / ins) / KEPT, CUT), "LeCun's, truncated: the default of flax.linen.Dense"
    yield normal(math.sqrt(1.0 / ins)), "LeCun's, normal"
    yield uniform(math.sqrt(6.0 / ins)), "He's, uniform"
    yield normal(math.sqrt(2.0 / ins)), "He's, normal"
    yield normal(deviation / math.sqrt(2.0 * max(layers, 1))), "scaled by 1/√(2 layers), as in GPT-2"
    yield normal(math.sqrt(deviation)), "initializer_range is taken for the variance"
    yield normal(deviation**2), "initializer_range is squared"
