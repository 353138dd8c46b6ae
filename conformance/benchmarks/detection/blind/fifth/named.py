"""The names that are right for each mistake of the fifth set, by the rule in its `hoped`; decided before the results were seen.

`parameters-other` is right for a mistake that changes parameters alone. Where no name in the catalogue is true of a mistake and
says more than where it is, none is right, and the report should give none.
"""

from collections.abc import Mapping

_OTHER = ("parameters-other",)
_NONE: tuple[str, ...] = ()

AT_FIRST: Mapping[str, tuple[str, ...]] = {
    "positions as in left padding": _NONE,
    "positions begin anew in each chunk": _NONE,
    "positions begin anew in each segment": ("positions-restarted",),
    "boundary word in both shards": ("words-added", *_OTHER),
    "first type is padding": ("tokens-zero",),
    "types of the first row": ("rows-first",),
    "bfloat16 read as float16": _OTHER,
    "word table of Q8_0": ("precision-int8-block", *_OTHER),
    "fourth root on the query alone": ("scale-missing", "result-scaled"),
    "scale of the padded head": ("scale-missing", "result-scaled"),
    "scale by the logarithm of the length": ("scale-missing", "result-scaled"),
    "keys in a cache of bytes": ("precision-int8-inputs",),
    "rotary order without rotary": _OTHER,
    "log2(e) and exp": ("softmax-temperature",),
    "zero key appended": ("softmax-plus-one", "softmax-unnormalised"),
    "idle lanes in the softmax": ("softmax-denominator-epsilon", "softmax-unnormalised"),
    "exp of I-BERT": _NONE,
    "values read as stored transposed": _NONE,
    "tokens written back to the left": _NONE,
    "mask of the queries": ("mask-on-queries",),
    "mask made from the ids": ("mask-ignored", "mask-other"),
    "keys to the last token": ("mask-as-lengths",),
    "mask of sorted lengths": ("mask-other",),
    "mask added as zeros and ones": ("mask-added-raw", "mask-constant"),
    "mask not passed on": ("mask-ignored",),
    "mask of sequence to sequence": ("mask-by-query",),
    "bias before weight": ("bias-other", *_OTHER),
    "weight plus one": ("norm-weight-plus-one", *_OTHER),
    "gamma and beta exchanged": ("norm-affine-exchanged", *_OTHER),
    "variance within halves": ("norm-statistics-other",),
    "each half normed by itself": _NONE,
    "norm across tokens": ("norm-over-positions",),
    "second moment for the variance": ("norm-statistics-other",),
    "second residual before the norm": _NONE,
    "residual's buffer overwritten": ("residual-missing",),
    "norm folded into the feed-forward network": ("norm-affine-missing", *_OTHER),
    "product averaged over ranks": ("product-scaled",),
    "bias on each of four ranks": ("bias-other",),
    "cut to bfloat16": ("result-bfloat16",),
    "GELU by a table of halves": ("gelu-variant", "precision-float16", "result-float16"),
    "GELU of I-BERT": _NONE,
    "bias after the activation": ("bias-after-activation",),
    "GELU in unsigned bytes": _NONE,
    "columns of both halves exchanged": ("features-reordered", *_OTHER),
    "columns read as rows": ("weight-reshaped", *_OTHER),
    "weight read with an offset": _OTHER,
    "bias found by its suffix": ("bias-other", *_OTHER),
    "norm found by its suffix": ("norm-shared", *_OTHER),
    "+128 wraps around": _OTHER,
    "scales along the wrong side": _OTHER,
    "projections in NF4": ("precision-nf4-block", *_OTHER),
    "order of columns ignored": ("features-reordered", *_OTHER),
    "sums of pairs saturate": ("precision-int8-dynamic", "precision-int8-inputs", "precision-int8-channel"),
    "pooler of the first attended token": _NONE,
    "pooler of the last token": ("pooler-last-unmasked",),
    "pooler with the transform's parameters": _OTHER,
    "next sentence before the tanh": ("head-without-tanh",),
    "decoder's bias twice": ("bias-twice",),
    "log-probabilities for logits": ("logits-log-softmax",),
    "shards of the vocabulary interleaved": ("features-reordered",),
}
"""The accepted names of the catalogue as it was; empty where none was right."""

ADDED: Mapping[str, str] = {
    "positions as in left padding": "positions-left-padded",
    "positions begin anew in each chunk": "positions-wrapped",
    "first type is padding": "token-type-zero-zeroed",
    "bfloat16 read as float16": "weights-bfloat16-as-float16",
    "keys in a cache of bytes": "precision-int8-cache",
    "rotary order without rotary": "rotary-rows",
    "values read as stored transposed": "tokens-as-channels",
    "tokens written back to the left": "tokens-packed-left",
    "keys to the last token": "mask-to-last",
    "bias before weight": "norm-bias-first",
    "each half normed by itself": "norm-by-halves",
    "second moment for the variance": "norm-second-moment",
    "second residual before the norm": "residual-before-norm",
    "norm folded into the feed-forward network": "norm-affine-again",
    "cut to bfloat16": "result-bfloat16-truncated",
    "bias after the activation": "bias-moved-after-activation",
    "GELU in unsigned bytes": "result-unsigned-bytes",
    "columns of both halves exchanged": "weight-inputs-rotated",
    "weight read with an offset": "weight-offset",
    "+128 wraps around": "precision-int8-wrapped",
    "scales along the wrong side": "precision-int8-scales-of-inputs",
    "sums of pairs saturate": "precision-int8-saturated",
    "pooler of the last token": "pooler-last-by-length",
    "pooler with the transform's parameters": "parameters-of-module",
}
"""Names that the catalogue was given after the first results, because these mistakes had none, or only a more general one."""

RIGHT: Mapping[str, tuple[str, ...]] = {
    name: (*names, *((ADDED[name],) if name in ADDED else ())) for name, names in AT_FIRST.items()
}
"""The accepted names, with those that were added."""
