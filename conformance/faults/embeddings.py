"""Faults of the embeddings of positions, token types and words."""

from collections.abc import Callable, Iterator

import numpy as np

from conformance.faults.changes import Altered, kept_share, recast, rewritten, variance_of, with_slack, with_slack_of_parent
from conformance.faults.fault import Change, Fault, FaultContext, Parameter
from conformance.model.batch import Ids
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.embeddings import Sinusoids, positions

POSITIONS_FIX = "Look up position ids position_offset, position_offset + 1, …, the same for every row."
_SINUSOIDS = "Feature 2i is sin(s / 10000^(2i/H)), feature 2i + 1 is cos(s / 10000^(2i/H))."
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
def faults() -> Iterator[Fault]:
    """Yield the faults of embeddings."""
    yield Fault("positions-shifted", POSITIONS, "positions start at 2, the padding id + 1 of RoBERTa",
                "ANEForge#257, sentence-transformers#3879", _positions(lambda s: _counted(s) + 2), "another model's convention",
                fix=POSITIONS_FIX)
    yield Fault("positions-from-one", POSITIONS, "positions start at 1", "constructed", _positions(lambda s: _counted(s) + 1),
                "row 0 reserved for padding",
                fix=POSITIONS_FIX)
    yield Fault("positions-from-zero", POSITIONS,
                "positions start at 0: position_ids of the batch, or the config's position_offset, is ignored", "constructed",
                _positions(_counted), "BERT's convention, where the config has RoBERTa's; position_ids that are not passed on",
                fix=POSITIONS_FIX)
    yield Fault("positions-doubled", POSITIONS | SUMS, "the position embedding is added twice", "constructed",
                _times("position_embeddings", 2.0), "", (".position_embeddings", *SUMMED),
                equation="word + token type + 2 position",
                fix="Add the position embedding once.")
    yield Fault("positions-repeated", POSITIONS, "every position has the embedding of the first position", "constructed",
                _positions(lambda s: positions(s)[..., :1]), "a constant baked into an export",
                fix=POSITIONS_FIX)
    yield Fault("positions-missing", POSITIONS | SUMS, "no position embedding is added", "constructed",
                _times("position_embeddings", 0.0), "", (".position_embeddings", *SUMMED),
                equation="word + token type",
                fix="Add the position embedding.")
    yield Fault("positions-reversed", POSITIONS, "positions are counted from the end", "constructed",
                _positions(lambda s: positions(s)[..., ::-1]),
                fix=POSITIONS_FIX)
    yield Fault("positions-counted-by-mask", POSITIONS, "positions count the tokens that are not padding", "constructed",
                _from_offset(_by_mask), "position ids made by cumsum of the mask",
                fix=POSITIONS_FIX)
    yield Fault("positions-restarted", POSITIONS, "positions start again where the token type changes", "constructed",
                _from_offset(_restarted), "the two texts of a pair counted separately",
                fix=POSITIONS_FIX)
    yield Fault("positions-by-row", POSITIONS, "positions are counted over the batch, not over the sequence", "constructed",
                _from_offset(_by_row), "a layout (S, B, H) read as (B, S, H)",
                fix=POSITIONS_FIX, couples_rows=True)
    yield Fault("positions-over-batch", POSITIONS, "positions continue from row to row: token s of row b has position b S + s",
                "constructed", _from_offset(_continued), "the tokens of a batch flattened to one axis before they are counted",
                fix=POSITIONS_FIX, couples_rows=True, after_failure=True)
    yield Fault("positions-left-padded", POSITIONS, "the number of padding tokens is subtracted from every position",
                "constructed", _from_offset(_left_padded), "a server made for padding at the left, given padding elsewhere",
                equation="position max(0, s − (S − n)), n the number of unmasked tokens",
                fix=POSITIONS_FIX, after_failure=True)
    yield Fault("positions-after-norm", frozenset({"norm"}), "the position embedding is added after the norm", "constructed",
                _after_norm("position_embeddings"), "", ("embeddings.LayerNorm",),
                equation="y = LayerNorm(word + token type) + position",
                fix="Add the position embedding before the norm.")
    yield Fault("token-types-after-norm", frozenset({"norm"}), "the token type embedding is added after the norm", "constructed",
                _after_norm("token_type_embeddings"), "token types added to a module that had none", ("embeddings.LayerNorm",),
                after_failure=True,
                equation="y = LayerNorm(word + position) + token type",
                fix="Add the token type embedding before the norm.")
    yield Fault("embeddings-again", frozenset({"norm"}),
                "the embeddings' result is embedded again: with positions, token types and the norm for a second time",
                "p-lambda/swords#2", _embedded_again, "hidden_states[0] given as inputs_embeds, which are word embeddings",
                ("embeddings.LayerNorm",), after_failure=True,
                equation="y = LayerNorm(LayerNorm(word + token type + position) + token type + position)",
                fix="Give the rows of the word table as inputs_embeds, before positions, token types and the norm.")
    yield Fault("positions-from-token-types", POSITIONS, "token types are used as positions", "MGCA#13",
                _positions(lambda s: s.site.batch.types), "arguments passed by position in another order",
                fix="Pass token_type_ids and position_ids by keyword.")
    yield Fault("positions-sinusoidal", frozenset({"position_lookup"}),
                "positions are sinusoidal; the checkpoint's table is not used",
                "rust-bert#228, rust-bert#230", recast(Sinusoids), "the Transformer's positions in place of BERT's",
                equation="sin(s / 10000^(2i/H)), cos(s / 10000^(2i/H))",
                fix="Load the checkpoint's position_embeddings.")
    yield Fault("sinusoid-exponent", SINUSOIDS, "the exponents are twice as large as they should be: i already advances by two",
                "`demystified`'s tutorial",
                _sinusoids(_tutorial), "(2i)/d with i = 0, 2, 4, …",
                fix=_SINUSOIDS)
    yield Fault("sinusoid-halves", SINUSOIDS, "sines fill the first half of the features, cosines the second", "constructed",
                _sinusoids(_halves), "concatenated, not interleaved (as in tensor2tensor)",
                fix=_SINUSOIDS)
    yield Fault("sinusoid-order", SINUSOIDS, "cosines are at even features, sines at odd features", "constructed",
                _sinusoids(_cosine_first),
                fix=_SINUSOIDS)
    yield Fault("sinusoid-base", SINUSOIDS, "the base of the wavelengths is 1000, not 10000", "constructed",
                _sinusoids(lambda s, width: _waves(s, width, 1000.0)),
                fix=_SINUSOIDS)
    yield Fault("token-types-ignored", TYPES, "all token types are taken as zero", "optimum#2062, optimum#2081",
                _of_rows(lambda s: 0 * s.site.batch.types), "the input is left out of an export or not passed on",
                fix=TYPES_FIX)
    yield Fault("token-types-missing", TYPES | SUMS, "no token-type embedding is added", "constructed",
                _times("token_type_embeddings", 0.0), "", (".token_type_embeddings", *SUMMED),
                equation="word + position",
                fix="Add the token-type embedding.")
    yield Fault("token-types-doubled", TYPES | SUMS, "the token-type embedding is added twice", "constructed",
                _times("token_type_embeddings", 2.0), "", (".token_type_embeddings", *SUMMED),
                equation="word + 2 token type + position",
                fix="Add the token-type embedding once.")
    yield Fault("token-types-shifted", TYPES, "token types are too large by one", "constructed",
                _of_rows(lambda s: s.site.batch.types + 1),
                "segments counted from one",
                fix=TYPES_FIX)
    yield Fault("token-types-inverted", TYPES, "token types 0 and 1 are exchanged", "constructed",
                _of_rows(lambda s: 1 - s.site.batch.types),
                fix=TYPES_FIX)
    yield Fault("token-types-from-mask", TYPES, "the attention mask is used as token types", "pytorch#52667, transformers#1788",
                _of_rows(lambda s: s.site.batch.mask.astype(np.int64)), "arguments passed by position in another order",
                fix="Pass token_type_ids, attention_mask and position_ids by keyword.")
    yield Fault("token-types-from-positions", TYPES, "positions are used as token types", "constructed",
                _of_rows(lambda s: np.broadcast_to(_counted(s), s.site.batch.types.shape)),
                "arguments passed by position in another order",
                fix="Pass token_type_ids, attention_mask and position_ids by keyword.")
    after, before = (_of_rows(lambda s: s.site.batch.input_ids + 1), _of_rows(lambda s: s.site.batch.input_ids - 1))
    for end, change, which, cause in (
        ("", after, "next", "a vocabulary counted from one, or with one special token more"),
        ("-back", before, "previous", "a vocabulary counted from one, or with one special token less"),
    ):
        yield Fault(f"words-shifted{end}", WORDS, f"each token has the embedding of the {which} id", "constructed", change,
                    cause, after_failure=True, fix="Look up input_ids as they are given, and use the checkpoint's own vocabulary.")
    yield Fault("word-embeddings-scaled", WORDS | SUMS, "the word embeddings are multiplied by √H, H the hidden size",
                "constructed", _words_scaled, "the scaling of the original Transformer (2017), or of engines written for it",
                (".word_embeddings", *SUMMED), after_failure=True,
                equation="√H word + token type + position",
                fix="Add the word embeddings without a factor.")
    yield Fault("padding-word-zeroed", WORDS, "the word embedding of id 0 is zero", "constructed",
                rewritten(lambda inner: np.where(inner.site.batch.input_ids[..., None] == 0, 0.0, inner.value)),
                "padding_idx=0, with the row overwritten",
                fix="Keep the checkpoint's row of the padding token; padding_idx stops its gradient only.")
    yield Fault("token-type-zero-zeroed", TYPES, "the embedding of token type 0 is zero",
                "constructed, after BERT-pytorch's SegmentEmbedding",
                rewritten(lambda inner: np.where(inner.site.batch.types[..., None] == 0, 0.0, inner.value)),
                "padding_idx=0, where segments are numbered from 1", after_failure=True,
                fix="Keep the checkpoint's row of token type 0; padding_idx stops its gradient only.")
    yield Fault("token-type-zero-added", SUMS, "the embedding of token type 0 is added to all tokens, besides their own",
                "constructed", _first_type_added, "token type 0 folded into the table of positions", SUMMED, after_failure=True,
                equation="word + token type + position + token type 0",
                fix="Add each token's own token-type embedding once; fold it into the positions only if it is not added again.")
    yield Fault(
        "dropout-scaled", frozenset({"copy"}), "the dropout multiplies by {value} at inference",
        "constructed, after Srivastava et al. 2014",
        cause="multiplication by the keep probability, 1 − p, at inference, or by 1 / (1 − p)", after_failure=True,
        parameter=Parameter("factor", lambda _: 1.0, kept_share,
                            _copy_scaled, least=-16.0), only=("embeddings.dropout",),
        equation="y = c x",
        fix="Return the input unchanged at inference, as nn.Dropout does after eval().",
    )
# fmt: on
