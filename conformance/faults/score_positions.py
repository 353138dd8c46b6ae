"""Faults in which scores depend on positions, unlike those of a BERT with absolute positions: rotary embeddings and ALiBi.

Faults of relative positions: wrong look-ups of distances, and missing or misplaced terms of the scores.
"""

from collections.abc import Callable

import numpy as np

from conformance.faults.attention import SCORES
from conformance.faults.changes import Altered, rewritten, with_parent, with_slack
from conformance.faults.fault import ALONE, FAILED, Change, Fault, FaultContext
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.bilinear import merge_heads, split_heads

_BASE = 10000.0  # The base of the wavelengths (Su et al. 2021, section 3.2.2).


def _pairs(x: Array, *, neighbours: bool) -> tuple[Array, Array]:
    """Return the two features of each rotated pair: neighbours, or features half a head apart."""
    half = x.shape[-1] // 2
    return (x[..., ::2], x[..., 1::2]) if neighbours else (x[..., :half], x[..., half:])


def _angles(length: int, width: int) -> Array:
    """Return the angles s / 10000^(2i/d), (S, d/2), for the head size d = `width`."""
    return as_array(np.arange(length)[:, None] / _BASE ** (2.0 * np.arange(width // 2) / width))


def _joined(a: Array, b: Array, *, neighbours: bool) -> Array:
    """Return the pairs rejoined in the order of the features, with the heads concatenated."""
    joined = np.stack([a, b], -1).reshape(*a.shape[:-1], -1) if neighbours else np.concatenate([a, b], -1)
    return merge_heads(joined)


def _rotated(x: Array, width: int, *, neighbours: bool) -> Array:
    """Return x, (B, S, H), with the features of each head rotated by the angles of the position."""
    (a, b), t = _pairs(split_heads(x, width), neighbours=neighbours), _angles(x.shape[1], width)
    return _joined(a * np.cos(t) - b * np.sin(t), b * np.cos(t) + a * np.sin(t), neighbours=neighbours)


def _rotation_variance(x: Array, width: int, arithmetic: Arithmetic, *, neighbours: bool) -> Array:
    """Return the variance of the rounding errors of a rotation, (B, S, H).

    Sine, cosine, both products and their sum are each rounded to storage, with magnitudes of at most the length r of the pair. An
    angle t has an error of at most 2u t, from 10000^(-2i/d) and from a product; the error moves the pair by r times as much.
    """
    (a, b), t = _pairs(split_heads(x, width), neighbours=neighbours), _angles(x.shape[1], width)
    length = np.hypot(a, b)
    variance = (
        5.0 * arithmetic.storage.rounding_variance(length) + (2.0 * arithmetic.accumulate.unit_roundoff * t * length) ** 2 / 3.0
    )
    return _joined(variance, variance, neighbours=neighbours)


def _rotary(*, neighbours: bool) -> Change:
    def change(step: Step, _: FaultContext) -> Step | None:
        width = step.site.architecture.head_size
        if width % 2 or "key" not in step.site.activation.axes:
            return None
        given = step.parents
        turned = tuple(_rotated(x, width, neighbours=neighbours) for x in given)

        def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
            turning = (_rotation_variance(x, width, arithmetic, neighbours=neighbours) for x in given)
            return as_array(sum(j.variance(v) for j, v in zip(altered.inner.jacobians(), turning, strict=True)))

        return with_slack(step.replaced(parents=turned), slack)

    return change


def slopes(heads: int) -> Array:
    """Return the slopes of ALiBi, (h,): 2^(-8i/h) for i = 1 … h if h is a power of two.

    Otherwise, they are the slopes for the next lower power of two, followed by every other slope for twice that number.
    """
    lower = 2 ** int(np.log2(heads))
    own = 2.0 ** (-8.0 * np.arange(1, lower + 1) / lower)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * (heads - lower), 2) / lower)
    return np.concatenate([own, between])


def _falling(step: Step, _: FaultContext) -> Step | None:
    if "key" not in step.site.activation.axes:
        return None
    heads, length = step.value.shape[1], step.value.shape[-1]
    distance = np.abs(np.arange(length)[:, None] - np.arange(length))
    bias = slopes(heads)[:, None, None] * distance

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        stored = arithmetic.storage.rounding_variance
        return as_array(stored(altered.inner.value) + stored(np.broadcast_to(bias, altered.value.shape)))

    return Altered(step, lambda inner: inner.value - bias, slack)


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("scores-rotary", SCORES, "query and key are rotated by their positions (rotary embeddings)", _rotary(neighbours=False),
          tried=ALONE),
    Fault("scores-rotary-neighbours", SCORES, "query and key are rotated by their positions (rotary embeddings of GPT-J)",
          _rotary(neighbours=True), tried=ALONE),
    Fault("scores-linear-bias", SCORES, "scores decrease with the distance of query and key (ALiBi)", _falling, tried=FAILED),
)
# fmt: on


LOOKUP, OF_QUERIES, OF_KEYS = (frozenset({kind}) for kind in ("distance_lookup", "query_distance_scores", "key_distance_scores"))

SHAW = 16  # The clipping distance k in the experiments of Shaw et al. 2018.


def _other_rows(f: Callable[[Ids, int], Ids]) -> Change:
    """Return the change that looks up the row of distance f(i − j, P) for distance i − j, clipped to the ends of the table."""

    def change(step: Step, _: FaultContext) -> Step:
        table = step.site.parameters["weight"]
        size = len(table) // 2 + 1  # P, of 2 P − 1 rows
        distances = np.arange(step.site.batch.length)
        distances = distances[:, None] - distances[None, :]
        rows = np.clip(f(distances, size) + size - 1, 0, len(table) - 1)
        return Altered(step, lambda inner: np.broadcast_to(table[rows], inner.value.shape))

    return change


_ABSENT = rewritten(lambda step: np.zeros_like(step.value))
_TRANSPOSED = rewritten(lambda step: step.value.swapaxes(-1, -2))


def _of_the_other(other: str) -> Change:
    """Return the change that multiplies the distances by the key in place of the query, or by the query in place of the key."""
    return lambda step, context: with_parent(step, context, step.site.activation.parents[0].rpartition(".")[0] + f".{other}")


# fmt: off
DISTANCE_FAULTS: tuple[Fault, ...] = (
    Fault("distance-sign", LOOKUP, "distances have the opposite sign: key position − query position",
          _other_rows(lambda distances, _: -distances)),
    Fault("distance-absolute", LOOKUP, "distances lose their sign", _other_rows(lambda distances, _: np.abs(distances))),
    Fault("distance-clipped", LOOKUP, f"distances are clipped to ±{SHAW}",
          _other_rows(lambda distances, _: np.clip(distances, -SHAW, SHAW))),
    Fault("distance-offset", LOOKUP, "distances are looked up one row too far", _other_rows(lambda distances, _: distances + 1)),
    Fault("distance-from-zero", LOOKUP, "distances are looked up from row 0 on, negative ones from the end",
          _other_rows(lambda distances, size: distances % (2 * size - 1) - size + 1)),
    Fault("distance-query-missing", OF_QUERIES, "the scores lack q_i · D_ij", _ABSENT),
    Fault("distance-key-missing", OF_KEYS, "the scores lack k_j · D_ij", _ABSENT),
    Fault("distance-query-transposed", OF_QUERIES, "the scores have q_j · D_ji in place of q_i · D_ij", _TRANSPOSED),
    Fault("distance-key-transposed", OF_KEYS, "the scores have k_i · D_ji in place of k_j · D_ij", _TRANSPOSED),
    Fault("distance-of-keys", OF_QUERIES, "the distances are multiplied by the key, not the query, at position i",
          _of_the_other("key")),
    Fault("distance-of-queries", OF_KEYS, "the distances are multiplied by the query, not the key, at position j",
          _of_the_other("query")),
    Fault("distance-unscaled", OF_QUERIES | OF_KEYS, "the term of the distances is not divided by √d",
          rewritten(lambda step: step.value * step.site.architecture.head_size**0.5)),
)
# fmt: on
