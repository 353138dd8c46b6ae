"""The names that are right for each mistake of the seventh set, by the rule in its `hoped`; decided before the results were seen.

`EXACT` are the names that say what the mistake is. `GENERAL` are true and say less, but lead to the mistake, such as
`parameters-other` for a mistake that changes parameters alone. Names that are true and do not lead to the mistake are not right.
"""

from collections.abc import Mapping

_OTHER = ("parameters-other",)
_NONE: tuple[str, ...] = ()

EXACT: Mapping[str, tuple[str, ...]] = {
    "training noise in the embeddings": _NONE,
    "second segment one token late": ("tokens-shifted",),  # The types ascend in both batches, so it is a shift there.
    "token types of the first row": ("rows-first",),
    "positions run on across packed rows": _NONE,
    "position table interpolated": ("positions-scaled",),
    "positions local to a rank": ("positions-wrapped",),
    "position of the first occurrence": _NONE,
    "vocabulary resized twice": _NONE,
    "sliding window": ("mask-window",),
    "length up to the last token": ("mask-to-last", "mask-as-lengths"),
    "mask in sorted order": _NONE,
    "first key always attended to": _NONE,
    "mask saturates": _NONE,
    "rest of the tile not masked": ("softmax-unnormalised",),
    "segments do not see each other": ("mask-by-segment",),
    "fused projection cut head by head": ("qkv-interleaved",),
    "keys and values of pairs of heads averaged": ("heads-share-keys",),
    "scores capped": ("scores-capped",),
    "scale folded into the weight alone": ("scale-without-bias",),
    "softmax over the heads": ("softmax-heads",),
    "heads interleaved": ("heads-interleaved", "head-split-interleaved"),
    "online softmax without rescaling": ("softmax-not-rescaled",),
    "ranks averaged": _NONE,
    "rows and heads mixed": _NONE,
    "four greatest probabilities": _NONE,
    "one added to the norms' weights": ("norm-weight-plus-one",),
    "statistics of a rank's features": ("norm-by-halves",),
    "lanes beyond the width in the variance": _NONE,
    "final norm of the encoder": ("heads-read-norm",),
    "residual after the norm": ("residual-after-norm",),
    "second residual before its norm": ("residual-before-norm",),
    "erf with three terms": _NONE,
    "GELU of I-BERT": _NONE,
    "bias of the first rank": _NONE,
    "chunks in one buffer": _NONE,
    "no sum over the ranks": ("inputs-last-unread",),
    "inner features permuted on one side": ("features-reordered",),
    "pooler reads a weighted mean": _NONE,
    "rational tanh": _NONE,
    "pooled output of unit length": _NONE,
    "pooled twice": _NONE,
    "special tokens suppressed": ("logits-suppressed",),
    "decoder's rows of unit length": _NONE,
    "output kernel's axes in another order": ("features-reordered", "head-merge-interleaved"),
    "adapter merged": ("adapter", "adapter"),  # One fault, which is renamed to the latter.
    "frozen layer decayed": ("result-scaled",),
    "zero point not subtracted": ("zero-point-missing",),
    "scales of the other axis": ("precision-int8-scales-of-inputs",),
    "norm smoothed, residual not corrected": ("inputs-scaled",),
    "keys and values in float8": _NONE,
    "two of four weights": ("weight-two-of-four",),
    "probabilities in 256 steps": ("probabilities-rounded",),
    "half the rank": _NONE,
    "weights by their last names": ("parameters-of-module",),
    "cache of the layer before": ("layer-before-kept",),
    "prefix of the first row": _NONE,
    "block of another row": _NONE,
    "keys in zigzag order": _NONE,
    "real tokens moved to the start": ("tokens-packed-left",),
    "last slice of the batch clamped": ("rows-other",),
}
"""The names that say what the mistake is; empty where there is none."""

GENERAL: Mapping[str, tuple[str, ...]] = {
    "second segment one token late": ("token-types-other",),
    "token types of the first row": ("token-types-other",),
    "positions run on across packed rows": ("positions-other",),
    "position table interpolated": _OTHER,
    "positions local to a rank": ("positions-other",),
    "position of the first occurrence": ("positions-other",),
    "vocabulary resized twice": _OTHER,
    "sliding window": ("mask-by-query",),
    "mask in sorted order": ("mask-other",),
    "first key always attended to": ("mask-other",),
    "mask saturates": ("mask-constant",),
    "rest of the tile not masked": ("softmax-denominator-epsilon",),
    "segments do not see each other": ("mask-by-query",),
    "fused projection cut head by head": _OTHER,
    "keys and values of pairs of heads averaged": _OTHER,
    "scale folded into the weight alone": ("bias-other", *_OTHER),
    "heads interleaved": ("head-merge-interleaved",),
    "ranks averaged": ("softmax-by-blocks",),
    "rows and heads mixed": ("rows-other",),
    "four greatest probabilities": ("softmax-unnormalised",),
    "one added to the norms' weights": _OTHER,
    "statistics of a rank's features": ("norm-statistics-other",),
    "lanes beyond the width in the variance": ("norm-statistics-other",),
    "bias of the first rank": ("bias-other", *_OTHER),
    "inner features permuted on one side": _OTHER,
    "pooler reads a weighted mean": ("pooler-mean", "pooler-mean-with-padding"),
    "decoder's rows of unit length": _OTHER,
    "output kernel's axes in another order": _OTHER,
    "adapter merged": _OTHER,
    "frozen layer decayed": _OTHER,
    "zero point not subtracted": _OTHER,
    "scales of the other axis": ("inputs-scaled", *_OTHER),
    "norm smoothed, residual not corrected": _OTHER,
    "two of four weights": ("weight-pruned", *_OTHER),
    "half the rank": _OTHER,
    "weights by their last names": _OTHER,
}
"""The names that say less and lead to the mistake."""

ADDED: Mapping[str, str] = {
    "chunks in one buffer": "tokens-other",
    "mask saturates": "mask-filled",
    "keys and values of pairs of heads averaged": "heads-averaged",
    "rows and heads mixed": "heads-rows-exchanged",
    "output kernel's axes in another order": "weight-inputs-by-feature",
    "decoder's rows of unit length": "decoder-normalised",
    "pooler reads a weighted mean": "pooler-weighted-mean-with-padding",
    "pooled output of unit length": "pooler-normalised",
    "pooled twice": "pooler-twice",
    "prefix of the first row": "tokens-other",
    "block of another row": "tokens-other",
    "lanes beyond the width in the variance": "norm-idle-lanes",
    "keys and values in float8": "result-float8",
    "four greatest probabilities": "softmax-top-k",
    "online softmax without rescaling": "softmax-not-rescaled",
}
"""Names that the catalogue was given after the first results, because these mistakes had none, or one that misled."""

RIGHT: Mapping[str, tuple[str, ...]] = {
    name: (*names, *GENERAL.get(name, ()), *((ADDED[name],) if name in ADDED else ())) for name, names in EXACT.items()
}
"""All accepted names; at first there was none for eight mistakes."""
