"""Faults of the embeddings of positions, token types and words, and of positions in the scores: rotary and relative ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.faults.attention import SCORES
from conformance.faults.changes import Altered, with_slack
from conformance.faults.edits import kept_share, reads, recast, rewritten, with_computed, with_operand
from conformance.faults.fault import ALONE, Change, Fault, FaultContext, Parameter
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.bilinear import merge_heads, split_heads
from conformance.oracle.embeddings import Sinusoids, positions

POSITIONS = frozenset({"position_lookup", "sinusoids"})
SINUSOIDS, TYPES, WORDS = frozenset({"sinusoids"}), frozenset({"token_type_lookup"}), frozenset({"word_lookup"})
SUMS, SUMMED = frozenset({"norm", "sum"}), ("embeddings.LayerNorm", "embeddings.sum")


def _times(table: str, factor: float) -> Change:
    """Return the change that multiplies the embeddings from a table by a factor, at the look-up or at the sum of the embeddings."""

    def change(step: Step, _: FaultContext) -> Step:
        parents = step.site.activation.parents
        if not parents:
            return Altered(step, lambda inner: factor * inner.value)
        return step.replaced(parents=tuple(factor * x if table in n else x for n, x in zip(parents, step.parents, strict=True)))

    return change


def _waves(positions: Ids, exponents: Array, base: float = 10000.0) -> Array:
    """Return the sines (even features) and cosines (odd features) of s / base^e for the exponent e of each feature, (…, H)."""
    angles = positions[..., None] / base**exponents
    return np.where(np.arange(len(exponents)) % 2 == 0, np.sin(angles), np.cos(angles))


def _exponents(width: int) -> Array:
    """Return 2i/H for both features of the pair i, (H,)."""
    return as_array(2 * (np.arange(width) // 2) / width)


def _looked_up(f: Callable[[Step], Ids]) -> Change:
    """Return the change that looks up the rows f(step), clipped to the table, or has the sinusoids of the positions f(step)."""

    def rows(step: Step) -> Array:
        table, chosen = step.site.parameters.get("weight"), f(step)
        width = step.value.shape[-1]
        result = _waves(chosen, _exponents(width)) if table is None else table[np.clip(chosen, 0, len(table) - 1)]
        return np.broadcast_to(result, step.value.shape)

    return rewritten(rows)


def _counted(step: Step) -> Ids:
    """Return the positions 0, 1, 2, …, (S,), regardless of the config's offset."""
    return np.arange(step.site.batch.length)


def _by_mask(step: Step) -> Ids:
    """Return the positions that count the unmasked tokens before each unmasked one, and up to each masked one, (B, S)."""
    mask = step.site.batch.mask
    return as_array(step.site.architecture.position_offset + mask.cumsum(1) - mask)


def _after_norm(table: str) -> Change:
    """Return the change to the norm of the other embeddings, with the embedding of that table added after it."""

    def change(step: Step, _: FaultContext) -> Step | None:
        at = next((i for i, name in enumerate(step.site.activation.parents) if table in name), None)
        if at is None:
            return None
        embedding = step.parents[at]
        return Altered(with_operand(step, 0.0 * embedding, at), lambda inner: inner.value + embedding)

    return change


def _embedded_again(step: Step, _: FaultContext) -> Step | None:
    """Return the norm of its own result plus the embeddings of positions and token types, the result in place of the words."""
    parents = step.site.activation.parents
    at = next((i for i, name in enumerate(parents) if "word_embeddings" in name), None)
    return None if at is None or len(parents) == 1 else with_computed(step, step, at)


def _sinusoids(f: Callable[[Ids, int], Array]) -> Change:
    """Return the change that replaces the sinusoids by f of positions and width."""
    return rewritten(lambda step: np.broadcast_to(f(positions(step), step.value.shape[-1]), step.value.shape))


def _halves(positions: Ids, width: int) -> Array:
    waves = _waves(positions, _exponents(width))
    return np.concatenate([waves[..., ::2], waves[..., 1::2]], -1)


def _cosine_first(positions: Ids, width: int) -> Array:
    angles = positions[..., None] / 10000.0 ** _exponents(width)
    return np.where(np.arange(width) % 2 == 0, np.cos(angles), np.sin(angles))


def _words_scaled(step: Step, context: FaultContext) -> Step | None:
    """Return the word embeddings times √H, at the look-up or at the sum; √H and the product may each be rounded to storage."""
    scaled = _times("word_embeddings", float(step.site.architecture.hidden_size**0.5))(step, context)
    if scaled is None or step.site.activation.parents:
        return scaled
    return with_slack(scaled, lambda altered, a: 2.0 * a.storage.rounding_variance(altered.value))


def _first_type_added(step: Step, context: FaultContext) -> Step | None:
    """Return the sum of the embeddings with the embedding of token type 0 added to all tokens."""
    name, parents = "embeddings.token_type_embeddings", step.site.activation.parents
    if name not in parents:
        return None
    row, at = context.network.site(name).parameters["weight"][0], parents.index(name)
    return with_operand(step, step.parents[at] + row, at)


def _copy_scaled(step: Step, factor: float) -> Step:
    """Return the copy multiplied by a factor; the factor and the product may each be rounded to storage."""
    return Altered(step, lambda inner: factor * inner.value, lambda altered, a: 2.0 * a.storage.rounding_variance(altered.value))


_BASE = 10000.0  # The base of the wavelengths (Su et al. 2021, section 3.2.2).


def _rotary(*, neighbours: bool) -> Change:
    """Return the change that rotates query and key: each pair of features by the angle s / 10000^(2i/d) at position s.

    Pairs are neighbours, or features half a head apart, as complex numbers z. Sine, cosine, both products and their sum are each
    rounded to storage, with magnitudes of at most |z|. An angle t has an error of at most 2u t, from 10000^(-2i/d) and from a
    product; the error moves the pair by |z| times as much.
    """

    def pairs(x: Array, width: int) -> npt.NDArray[np.complexfloating[Any, Any]]:
        heads = split_heads(x, width)
        a, b = (heads[..., ::2], heads[..., 1::2]) if neighbours else np.split(heads, 2, -1)
        return np.asarray(a + 1j * b)

    def joined(a: Array, b: Array) -> Array:
        """Return the pairs in the order of the features, with the heads concatenated."""
        return merge_heads(np.stack([a, b], -1).reshape(*a.shape[:-1], -1) if neighbours else np.concatenate([a, b], -1))

    def change(step: Step, _: FaultContext) -> Step | None:
        width = step.site.architecture.head_size
        if width % 2 or "key" not in step.site.activation.axes:
            return None
        t = np.arange(step.site.batch.length)[:, None] / _BASE ** (2.0 * np.arange(width // 2) / width)
        given = [pairs(x, width) for x in step.parents]
        turned = [z * np.exp(1j * t) for z in given]

        def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
            of_angle = (2.0 * arithmetic.accumulate.unit_roundoff * t) ** 2 / 3.0
            sizes = (np.abs(z) for z in given)
            variances = [5.0 * arithmetic.storage.rounding_variance(size) + of_angle * size**2 for size in sizes]
            return as_array(sum(j.variance(joined(v, v)) for j, v in zip(altered.inner.jacobians(), variances, strict=True)))

        return with_slack(step.replaced(parents=tuple(joined(z.real, z.imag) for z in turned)), slack)

    return change


LOOKUP, OF_QUERIES, OF_KEYS = (frozenset({kind}) for kind in ("distance_lookup", "query_distance_scores", "key_distance_scores"))

SHAW = 16  # The clipping distance k in the experiments of Shaw et al. 2018.


def _other_distances(f: Callable[[Ids, int], Ids]) -> Change:
    """Return the change that looks up the row of distance f(i − j, P) for distance i − j, of a table of 2 P − 1 rows."""

    def rows(step: Step) -> Ids:
        size, tokens = len(step.site.parameters["weight"]) // 2 + 1, np.arange(step.site.batch.length)
        return as_array(f(tokens[:, None] - tokens, size) + size - 1, np.int64)

    return _looked_up(rows)


_ABSENT = rewritten(lambda step: np.zeros_like(step.value))
_TRANSPOSED = rewritten(lambda step: step.value.swapaxes(-1, -2))


def _of_the_other(other: str) -> Change:
    """Return the change that multiplies the distances by the key in place of the query, or by the query in place of the key."""
    return reads(lambda step: f"{step.site.activation.parents[0].rpartition('.')[0]}.{other}")


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("positions-shifted", POSITIONS, "positions start at 2, the padding id + 1 of RoBERTa",
          _looked_up(lambda s: _counted(s) + 2)),
    Fault("positions-from-one", POSITIONS, "positions start at 1", _looked_up(lambda s: _counted(s) + 1)),
    Fault("positions-from-zero", POSITIONS,
          "positions start at 0: position_ids of the batch, or the config's position_offset, is ignored", _looked_up(_counted)),
    Fault("positions-doubled", POSITIONS | SUMS, "the position embedding is added twice", _times("position_embeddings", 2.0),
          only=(".position_embeddings", *SUMMED)),
    Fault("positions-missing", POSITIONS | SUMS, "no position embedding is added", _times("position_embeddings", 0.0),
          only=(".position_embeddings", *SUMMED)),
    Fault("positions-counted-by-mask", POSITIONS, "positions count the tokens that are not padding", _looked_up(_by_mask)),
    Fault("positions-after-norm", frozenset({"norm"}), "the position embedding is added after the norm",
          _after_norm("position_embeddings"), only=("embeddings.LayerNorm",)),
    Fault("token-types-after-norm", frozenset({"norm"}), "the token type embedding is added after the norm",
          _after_norm("token_type_embeddings"), only=("embeddings.LayerNorm",), tried=ALONE),
    Fault("embeddings-again", frozenset({"norm"}),
          "the embeddings' result is embedded again: with positions, token types and the norm for a second time", _embedded_again,
          only=("embeddings.LayerNorm",), tried=ALONE),
    Fault("positions-from-token-types", POSITIONS, "token types are used as positions", _looked_up(lambda s: s.site.batch.types)),
    Fault("positions-sinusoidal", frozenset({"position_lookup"}), "positions are sinusoidal; the checkpoint's table is not used",
          recast(Sinusoids)),
    Fault("sinusoid-exponent", SINUSOIDS, "the exponents are twice as large as they should be: i already advances by two",

          _sinusoids(lambda s, width: _waves(s, 2.0 * np.arange(width) / width))),
    Fault("sinusoid-halves", SINUSOIDS, "sines fill the first half of the features, cosines the second", _sinusoids(_halves)),
    Fault("sinusoid-order", SINUSOIDS, "cosines are at even features, sines at odd features", _sinusoids(_cosine_first)),
    Fault("sinusoid-base", SINUSOIDS, "the base of the wavelengths is 1000, not 10000",
          _sinusoids(lambda s, width: _waves(s, _exponents(width), 1000.0))),
    Fault("token-types-ignored", TYPES, "all token types are taken as zero", _looked_up(lambda s: 0 * s.site.batch.types)),
    Fault("token-types-missing", TYPES | SUMS, "no token-type embedding is added", _times("token_type_embeddings", 0.0),
          only=(".token_type_embeddings", *SUMMED)),
    Fault("token-types-doubled", TYPES | SUMS, "the token-type embedding is added twice", _times("token_type_embeddings", 2.0),
          only=(".token_type_embeddings", *SUMMED)),
    Fault("token-types-from-mask", TYPES, "the attention mask is used as token types",
          _looked_up(lambda s: s.site.batch.mask.astype(np.int64))),
    Fault("word-embeddings-scaled", WORDS | SUMS, "the word embeddings are multiplied by √H, H the hidden size", _words_scaled,
          only=(".word_embeddings", *SUMMED), tried=ALONE),
    Fault("token-type-zero-added", SUMS, "the embedding of token type 0 is added to all tokens, besides their own",
          _first_type_added, only=SUMMED, tried=ALONE),
    Fault("dropout-scaled", frozenset({"copy"}), "the dropout multiplies by {value} at inference",
          parameter=Parameter("factor", lambda _: 1.0, kept_share, _copy_scaled, least=-16.0), only=("embeddings.dropout",),
          tried=ALONE),
)
# fmt: on

# fmt: off
SCORES_BY_POSITION: tuple[Fault, ...] = (
    Fault("scores-rotary", SCORES, "query and key are rotated by their positions (rotary embeddings)", _rotary(neighbours=False),
          tried=ALONE),
    Fault("scores-rotary-neighbours", SCORES, "query and key are rotated by their positions (rotary embeddings of GPT-J)",
          _rotary(neighbours=True), tried=ALONE),
)
# fmt: on

# fmt: off
DISTANCES: tuple[Fault, ...] = (
    Fault("distance-sign", LOOKUP, "distances have the opposite sign: key position − query position",
          _other_distances(lambda distances, _: -distances)),
    Fault("distance-absolute", LOOKUP, "distances lose their sign", _other_distances(lambda distances, _: np.abs(distances))),
    Fault("distance-clipped", LOOKUP, f"distances are clipped to ±{SHAW}",
          _other_distances(lambda distances, _: np.clip(distances, -SHAW, SHAW))),
    Fault("distance-offset", LOOKUP, "distances are looked up one row too far",
          _other_distances(lambda distances, _: distances + 1)),
    Fault("distance-from-zero", LOOKUP, "distances are looked up from row 0 on, negative ones from the end",
          _other_distances(lambda distances, size: distances % (2 * size - 1) - size + 1)),
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
