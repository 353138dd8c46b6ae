"""The names that are right for each mistake of the sixth set, by the rule in its `hoped`; decided before the results were seen.

`EXACT` are the names that say what the mistake is. `GENERAL` are true and say less, but lead to the mistake, such as
`parameters-other` for a mistake that changes parameters alone. Names that are true and do not lead to the mistake are not right.
"""

from collections.abc import Mapping

_OTHER = ("parameters-other",)
_MODULE = ("parameters-of-module", *_OTHER)
_NONE: tuple[str, ...] = ()

EXACT: Mapping[str, tuple[str, ...]] = {
    "ids one too high": ("words-shifted",),
    "both vocabulary shards answer": ("words-added",),
    "positions after a stale cache": _NONE,
    "positions counted from one": _NONE,
    "positions run through the packed batch": _NONE,
    "first row's token types": ("rows-first",),
    "token types hard-coded to zero": ("token-types-ignored",),
    "token type added after the norm": _NONE,
    "position table interpolated": ("positions-scaled",),
    "rotary on top of learned positions": ("scores-rotary",),
    "distance bias left on": ("scores-linear-bias",),
    "scores capped": ("scores-capped",),
    "scale of the padded head": ("scale-missing",),
    "scores transposed": ("scores-transposed",),
    "softmax over heads": ("softmax-heads",),
    "running maximum without rescaling": ("softmax-not-rescaled",),
    "rest of the keys dropped": ("keys-last-unread",),
    "heads not transposed back": ("head-order",),
    "values one slot late": ("tokens-shifted",),
    "keys and values of the layer before": ("layer-before-kept",),
    "first row's values": ("rows-first",),
    "a head masked": ("head-zero",),
    "dropout with a fixed seed": ("dropout-active",),
    "mask reduced to a length": ("mask-as-lengths",),
    "one row's mask for all": _NONE,
    "mask of ones added": ("mask-added-raw",),
    "masked after the softmax": ("mask-after-softmax",),
    "mask inverted": ("mask-inverted", "mask-inverted-lowest"),
    "causal by chunks": _NONE,
    "window left on": ("mask-window",),
    "segments do not attend to each other": ("mask-by-segment",),
    "Keras's epsilon": ("epsilon",),
    "approximate root": _NONE,
    "residual weighted by depth": ("residual-scaled",),
    "second residual from the layer's input": ("residual-from-layer-input",),
    "residual on both ranks": ("residual-doubled",),
    "residual's buffer not updated": _NONE,
    "GELU from a table of halves": _NONE,
    "bias added again before GELU": ("bias-twice",),
    "half of the sum": ("inputs-last-unread",),
    "bias of each rank": ("bias-twice",),
    "fused weights read by head": ("qkv-interleaved",),
    "biases of query and key exchanged": _NONE,
    "weights permuted for rotary, biases not": ("rotary-rows",),
    "shards gathered in the wrong order": ("features-reordered",),
    "weights of the next layer": ("layer-neighbour",),
    "norms of a layer exchanged": ("norm-shared",),
    "adapter merged a second time": _NONE,
    "scale folded into the query's weight alone": ("scale-without-bias", "scale-missing"),
    "feed-forward network in four bits": ("precision-int4-block",),
    "scales along the wrong axis": ("precision-int8-scales-of-inputs",),
    "smoothing without its counterpart": _NONE,
    "zero point forgotten": _NONE,
    "softmax in bfloat16": _NONE,
    "pooler of the mean": ("pooler-mean-with-padding",),
    "next-sentence head without the pooler": ("head-without-pooler",),
    "classes of the next-sentence head exchanged": ("next-sentence-order",),
    "decoder left at its initial values": _NONE,
    "log-probabilities for logits": ("logits-log-softmax",),
    "rows padded on the right again": ("tokens-packed-left",),
}
"""The names that say what the mistake is; empty where there is none."""

GENERAL: Mapping[str, tuple[str, ...]] = {
    "ids one too high": ("words-other",),
    "positions after a stale cache": ("positions-other",),
    "positions counted from one": ("positions-counted-by-mask", "positions-other"),
    "positions run through the packed batch": ("positions-other",),
    "first row's token types": ("token-types-other",),
    "position table interpolated": _OTHER,
    "distance bias left on": ("scores-bias-by-distance",),
    "scale of the padded head": ("result-scaled",),
    "one row's mask for all": ("mask-other",),
    "mask of ones added": ("mask-constant",),
    "causal by chunks": ("mask-by-query",),
    "approximate root": ("norm-statistics-other",),
    "residual weighted by depth": ("sublayer-scaled",),  # The same, but for epsilon.
    "GELU from a table of halves": ("gelu-variant", "precision-float16", "result-float16"),
    "bias of each rank": ("bias-other",),
    "fused weights read by head": _OTHER,
    "biases of query and key exchanged": ("bias-other", *_OTHER),
    "weights permuted for rotary, biases not": _OTHER,
    "shards gathered in the wrong order": _OTHER,
    "weights of the next layer": _MODULE,
    "norms of a layer exchanged": _MODULE,
    "adapter merged a second time": _OTHER,
    "scale folded into the query's weight alone": ("product-scaled", *_OTHER),
    "feed-forward network in four bits": _OTHER,
    "scales along the wrong axis": _OTHER,
    "smoothing without its counterpart": _OTHER,
    "softmax in bfloat16": ("precision-bfloat16", "result-bfloat16"),
    "classes of the next-sentence head exchanged": ("weight-reversed", "features-reordered", *_OTHER),
    "decoder left at its initial values": _OTHER,
}
"""The names that say less and lead to the mistake."""

ADDED: Mapping[str, str] = {
    "positions after a stale cache": "positions-offset",
    "token type added after the norm": "token-types-after-norm",
    "rest of the keys dropped": "keys-last-hidden",
    "adapter merged a second time": "adapter",
    "smoothing without its counterpart": "inputs-scaled",
    "zero point forgotten": "zero-point-missing-inputs",
    "residual's buffer not updated": "residual-of-layer-before",
    "bias added again before GELU": "bias-again-before-activation",
}
"""Names that the catalogue was given after the first results, because these mistakes had none, or one that misled."""

RIGHT: Mapping[str, tuple[str, ...]] = {
    name: (*names, *GENERAL.get(name, ()), *((ADDED[name],) if name in ADDED else ())) for name, names in EXACT.items()
}
"""All accepted names."""
