"""Faults of the embeddings of positions, token types and words."""

from collections.abc import Callable

import numpy as np

from conformance.faults.changes import Altered, kept_share, recast, rewritten, variance_of, with_slack, with_slack_of_parent
from conformance.faults.fault import ALONE, ROWS, Change, Fault, FaultContext, Parameter
from conformance.model.batch import Ids
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.embeddings import Sinusoids, positions

POSITIONS_FIX = "Look up position ids position_offset, position_offset + 1, …, the same for every row."
TYPES_FIX = "Look up token_type_ids as they are given; where they are omitted, use zeros."

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


def _waves(positions: Ids, width: int, base: float = 10000.0) -> Array:
    """Return the sines (even features) and cosines (odd features) of s / base^(2i/H), (…, H)."""
    feature = np.arange(width)
    angles = positions[..., None] / base ** (2 * (feature // 2) / width)
    return np.where(feature % 2 == 0, np.sin(angles), np.cos(angles))


def _rows(step: Step, rows: Ids) -> Array:
    """Return the embeddings (B, S, H) of the positions `rows`, (S,) or (B, S); positions past the end of a table are clipped."""
    if step.site.activation.kind == "sinusoids":
        found = _waves(rows, step.value.shape[-1])
    else:
        table = step.site.parameters["weight"]
        found = table[np.clip(rows, 0, len(table) - 1)]
    return np.broadcast_to(found, step.value.shape)


def _positions(f: Callable[[Step], Ids]) -> Change:
    """Return the change that looks up the positions f(step)."""
    return rewritten(lambda step: _rows(step, f(step)))


def _counted(step: Step) -> Ids:
    """Return the positions 0, 1, 2, …, (S,), regardless of the config's offset."""
    return np.arange(step.site.batch.length)


def _from_offset(f: Callable[[Step], Ids]) -> Change:
    """Return the change that looks up the config's `position_offset` plus f(step)."""
    return _positions(lambda step: step.site.architecture.position_offset + f(step))


def _by_row(step: Step) -> Ids:
    """Return the number of each token's row, (B, S)."""
    batch = step.site.batch
    return np.broadcast_to(np.arange(batch.size)[:, None], (batch.size, batch.length))


def _by_mask(step: Step) -> Ids:
    """Return the number of unmasked tokens before each unmasked one, and up to each masked one, (B, S)."""
    mask = step.site.batch.mask
    return as_array(mask.cumsum(1) - mask)


def _continued(step: Step) -> Ids:
    """Return positions counted over the whole batch, (B, S)."""
    return as_array(_by_row(step) * step.site.batch.length + _counted(step), np.int64)


def _left_padded(step: Step) -> Ids:
    """Return positions counted as if all padding were at the left, (B, S): less the number of masked tokens, at least 0."""
    mask = step.site.batch.mask
    return as_array(np.maximum(_counted(step) - (~mask).sum(1, keepdims=True), 0))


def _restarted(step: Step) -> Ids:
    """Return positions counted from the last change of the token type, (B, S)."""
    types, counted = step.site.batch.types, _counted(step)
    begins = np.diff(types, axis=1, prepend=types[:, :1]) != 0
    return as_array(counted - np.maximum.accumulate(counted * begins, 1))


def _after_norm(table: str) -> Change:
    """Return the change to the norm of the other embeddings, with the embedding of that table added after it."""

    def change(step: Step, _: FaultContext) -> Step | None:
        of_table = [table in n for n in step.site.activation.parents]
        if not any(of_table):
            return None
        others = tuple(np.zeros_like(p) if is_it else p for p, is_it in zip(step.parents, of_table, strict=True))
        embedding = step.parents[of_table.index(True)]
        return Altered(step.replaced(parents=others), lambda inner: inner.value + embedding)

    return change


def _embedded_again(step: Step, _: FaultContext) -> Step | None:
    """Return the norm of its own result plus the embeddings of positions and token types, the result in place of the words.

    The first result may be rounded to storage.
    """
    parents = step.site.activation.parents
    at = next((i for i, name in enumerate(parents) if "word_embeddings" in name), None)
    if at is None or len(parents) == 1:
        return None
    again = step.replaced(parents=tuple(step.value if i == at else p for i, p in enumerate(step.parents)))
    return with_slack_of_parent(again, lambda _, arithmetic: variance_of(step, arithmetic), at)


def _sinusoids(f: Callable[[Ids, int], Array]) -> Change:
    """Return the change that replaces the sinusoids by f of positions and width."""
    return rewritten(lambda step: np.broadcast_to(f(positions(step), step.value.shape[-1]), step.value.shape))


def _tutorial(positions: Ids, width: int) -> Array:
    """Return sin(s / 10000^(2j/H)) at the even features j and cos(s / 10000^(2j/H)) at the odd ones: exponents twice too large."""
    feature = np.arange(width)
    angles = positions[..., None] / 10000.0 ** (2 * feature / width)
    return np.where(feature % 2 == 0, np.sin(angles), np.cos(angles))


def _halves(positions: Ids, width: int) -> Array:
    waves = _waves(positions, width)
    return np.concatenate([waves[..., ::2], waves[..., 1::2]], -1)


def _cosine_first(positions: Ids, width: int) -> Array:
    waves = _waves(positions, width)
    even, shape = width - width % 2, positions.shape
    pairs = waves[..., :even].reshape(*shape, -1, 2)[..., ::-1].reshape(*shape, -1)
    return np.concatenate([pairs, np.cos(np.arcsin(waves[..., even:]))], -1)


def _of_rows(f: Callable[[Step], Ids]) -> Change:
    """Return the change that looks up the rows f(step), clipped to the table."""

    def found(step: Step) -> Array:
        table = step.site.parameters["weight"]
        return table[np.clip(f(step), 0, len(table) - 1)]

    return rewritten(found)


def _words_scaled(step: Step, context: FaultContext) -> Step | None:
    """Return the word embeddings times √H, at the look-up or at the sum; √H and the product may each be rounded to storage."""
    scaled = _times("word_embeddings", float(step.site.architecture.hidden_size**0.5))(step, context)
    if scaled is None or step.site.activation.parents:
        return scaled
    return with_slack(scaled, lambda altered, a: 2.0 * a.storage.rounding_variance(altered.value))


def _first_type_added(step: Step, context: FaultContext) -> Step | None:
    """Return the sum of the embeddings with the embedding of token type 0 added to all tokens."""
    name = "embeddings.token_type_embeddings"
    if name not in step.site.activation.parents:
        return None
    at, row = step.site.activation.parents.index(name), context.network.site(name).parameters["weight"][0]
    return step.replaced(parents=tuple(p + row if i == at else p for i, p in enumerate(step.parents)))


def _copy_scaled(step: Step, factor: float) -> Step:
    """Return the copy multiplied by a factor; the factor and the product may each be rounded to storage."""
    return Altered(step, lambda inner: factor * inner.value, lambda altered, a: 2.0 * a.storage.rounding_variance(altered.value))


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("positions-shifted", POSITIONS, "positions start at 2, the padding id + 1 of RoBERTa",
          _positions(lambda s: _counted(s) + 2)),
    Fault("positions-from-one", POSITIONS, "positions start at 1", _positions(lambda s: _counted(s) + 1)),
    Fault("positions-from-zero", POSITIONS,
          "positions start at 0: position_ids of the batch, or the config's position_offset, is ignored", _positions(_counted)),
    Fault("positions-doubled", POSITIONS | SUMS, "the position embedding is added twice", _times("position_embeddings", 2.0),
          only=(".position_embeddings", *SUMMED)),
    Fault("positions-repeated", POSITIONS, "every position has the embedding of the first position",
          _positions(lambda s: positions(s)[..., :1])),
    Fault("positions-missing", POSITIONS | SUMS, "no position embedding is added", _times("position_embeddings", 0.0),
          only=(".position_embeddings", *SUMMED)),
    Fault("positions-reversed", POSITIONS, "positions are counted from the end", _positions(lambda s: positions(s)[..., ::-1])),
    Fault("positions-counted-by-mask", POSITIONS, "positions count the tokens that are not padding", _from_offset(_by_mask)),
    Fault("positions-restarted", POSITIONS, "positions start again where the token type changes", _from_offset(_restarted)),
    Fault("positions-by-row", POSITIONS, "positions are counted over the batch, not over the sequence", _from_offset(_by_row),
          extent=ROWS),
    Fault("positions-over-batch", POSITIONS, "positions continue from row to row: token s of row b has position b S + s",
          _from_offset(_continued), extent=ROWS, tried=ALONE),
    Fault("positions-left-padded", POSITIONS, "the number of padding tokens is subtracted from every position",
          _from_offset(_left_padded), tried=ALONE),
    Fault("positions-after-norm", frozenset({"norm"}), "the position embedding is added after the norm",
          _after_norm("position_embeddings"), only=("embeddings.LayerNorm",)),
    Fault("token-types-after-norm", frozenset({"norm"}), "the token type embedding is added after the norm",
          _after_norm("token_type_embeddings"), only=("embeddings.LayerNorm",), tried=ALONE),
    Fault("embeddings-again", frozenset({"norm"}),
          "the embeddings' result is embedded again: with positions, token types and the norm for a second time", _embedded_again,
          only=("embeddings.LayerNorm",), tried=ALONE),
    Fault("positions-from-token-types", POSITIONS, "token types are used as positions", _positions(lambda s: s.site.batch.types)),
    Fault("positions-sinusoidal", frozenset({"position_lookup"}), "positions are sinusoidal; the checkpoint's table is not used",
          recast(Sinusoids)),
    Fault("sinusoid-exponent", SINUSOIDS, "the exponents are twice as large as they should be: i already advances by two",
          _sinusoids(_tutorial)),
    Fault("sinusoid-halves", SINUSOIDS, "sines fill the first half of the features, cosines the second", _sinusoids(_halves)),
    Fault("sinusoid-order", SINUSOIDS, "cosines are at even features, sines at odd features", _sinusoids(_cosine_first)),
    Fault("sinusoid-base", SINUSOIDS, "the base of the wavelengths is 1000, not 10000",
          _sinusoids(lambda s, width: _waves(s, width, 1000.0))),
    Fault("token-types-ignored", TYPES, "all token types are taken as zero", _of_rows(lambda s: 0 * s.site.batch.types)),
    Fault("token-types-missing", TYPES | SUMS, "no token-type embedding is added", _times("token_type_embeddings", 0.0),
          only=(".token_type_embeddings", *SUMMED)),
    Fault("token-types-doubled", TYPES | SUMS, "the token-type embedding is added twice", _times("token_type_embeddings", 2.0),
          only=(".token_type_embeddings", *SUMMED)),
    Fault("token-types-shifted", TYPES, "token types are too large by one", _of_rows(lambda s: s.site.batch.types + 1)),
    Fault("token-types-inverted", TYPES, "token types 0 and 1 are exchanged", _of_rows(lambda s: 1 - s.site.batch.types)),
    Fault("token-types-from-mask", TYPES, "the attention mask is used as token types",
          _of_rows(lambda s: s.site.batch.mask.astype(np.int64))),
    Fault("token-types-from-positions", TYPES, "positions are used as token types",
          _of_rows(lambda s: np.broadcast_to(_counted(s), s.site.batch.types.shape))),
    *(
        Fault(f"words-shifted{end}", WORDS, f"each token has the embedding of the {which} id", _of_rows(rows), tried=ALONE)
        for end, which, rows in (
            ("", "next", lambda s: s.site.batch.input_ids + 1),
            ("-back", "previous", lambda s: s.site.batch.input_ids - 1),
        )
    ),
    Fault("word-embeddings-scaled", WORDS | SUMS, "the word embeddings are multiplied by √H, H the hidden size", _words_scaled,
          only=(".word_embeddings", *SUMMED), tried=ALONE),
    Fault("padding-word-zeroed", WORDS, "the word embedding of id 0 is zero",
          rewritten(lambda inner: np.where(inner.site.batch.input_ids[..., None] == 0, 0.0, inner.value))),
    Fault("token-type-zero-zeroed", TYPES, "the embedding of token type 0 is zero",
          rewritten(lambda inner: np.where(inner.site.batch.types[..., None] == 0, 0.0, inner.value)), tried=ALONE),
    Fault("token-type-zero-added", SUMS, "the embedding of token type 0 is added to all tokens, besides their own",
          _first_type_added, only=SUMMED, tried=ALONE),
    Fault("dropout-scaled", frozenset({"copy"}), "the dropout multiplies by {value} at inference",
          parameter=Parameter("factor", lambda _: 1.0, kept_share, _copy_scaled, least=-16.0), only=("embeddings.dropout",),
          tried=ALONE),
)
# fmt: on
