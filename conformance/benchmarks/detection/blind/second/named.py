"""What the suite is to call each mistake of the second set, by the rule in its `hoped`: decided once the results were seen.

A mistake in parameters that has no name of its own is rightly called by what it is, `parameters-other`.
"""

from collections.abc import Mapping

_OTHER = ("parameters-other",)
_NONE: tuple[str, ...] = ()
_HALF = ("precision-bfloat16", "result-bfloat16")

RIGHT: Mapping[str, tuple[str, ...]] = {
    "projections without bias": ("bias-missing",),
    "output kernel not transposed": ("weight-transposed",),
    "fused rows by head": ("qkv-interleaved-file", *_OTHER),
    "first layer everywhere": ("layers-shared", "layer-neighbour"),
    "first and last layer exchanged": ("layers-reversed", "layer-neighbour"),
    "four-bit blocks": ("precision-int4-block", *_OTHER),
    "adapter left merged": (*_OTHER, "adapter"),  # The second name was added when it became known.
    "pooler is fresh": _OTHER,
    "dynamic int8": ("precision-int8", "precision-int8-dynamic"),
    "products of ten bits": ("precision-tf32",),
    "ids one too high": ("words-shifted", "words-other"),
    "positions from one": ("positions-from-one",),
    "position table stretched": ("positions-scaled", "positions-other", *_OTHER),
    "sinusoids for the table": ("positions-sinusoidal",),
    "types one token late": ("token-types-other",),
    "types not added": ("token-types-missing",),
    "words times root of width": ("word-embeddings-scaled",),
    "positions after the norm": ("positions-after-norm",),
    "epsilon of the framework": ("epsilon",),
    "root mean square for variance": ("norm-without-mean",),
    "the Annotated Transformer's norm": ("norm-unbiased-deviation", "norm-variance"),
    "norm over positions too": ("norm-over-sequence",),
    "norm's bias not loaded": ("norm-bias-missing",),
    "gain plus one": ("norm-weight-plus-one",),
    "gain and bias exchanged": ("norm-affine-exchanged", *_OTHER),
    "norms in half": _HALF,
    "fast inverse root": ("norm-statistics-other",),
    "tanh form everywhere": ("gelu-variant",),
    "ReLU in every layer": ("activation-relu",),
    "quick GELU": ("activation-quick-gelu",),
    "GELU twice": ("activation-twice",),
    "GELU by a polynomial": _NONE,
    "bias twice": ("bias-twice",),
    "last chunk lost": ("tokens-zero",),
    "static scale saturates": (),
    "feed-forward beside attention": ("feed-forward-parallel",),
    "residual of the layer's input": ("residual-from-layer-input",),
    "residual after the norm": ("residual-after-norm",),
    "norm first": ("norm-missing", "pre-norm"),
    "training mode": ("dropout-active",),
    "kept share at inference": ("sublayer-scaled",),
    "scaled twice": ("scale-missing",),
    "heads along the wrong side": ("heads-interleaved", "head-split-interleaved", "head-merge-interleaved"),
    "rotary positions besides": ("scores-rotary",),
    "linear biases besides": ("scores-linear-bias", "scores-bias-by-distance"),
    "attention in half": _HALF,
    "mask added as it is": ("mask-added-raw", "mask-constant"),
    "mask not inverted": ("mask-inverted", "mask-inverted-lowest"),
    "1e-9 for -1e9": ("mask-multiplied", "mask-ignored"),
    "mask of queries": ("mask-on-queries", "mask-ignored"),
    "mask tiled over heads": ("mask-tiled", "mask-by-head", "mask-other"),
    "mask of the first sequence": ("mask-other", "mask-ignored"),
    "masked in the first layer only": ("mask-ignored",),
    "softmax over heads": ("softmax-heads",),
    "a zero key more": ("softmax-plus-one",),
    "exp by bits": _NONE,
    "window of three": ("mask-window",),
    "one head masked": ("head-zero",),
    "value by key's weights": ("value-from-key",),
    "keys and values of the first layer": ("layer-before-kept",),
    "pooler reads the last token": ("pooler-token",),
    "pooler of the layer before": ("heads-read-layer-before",),
    "pooler's activation is GELU": ("pooler-gelu",),
    "decoder without bias": ("bias-missing",),
    "decoder scaled as T5's": ("product-scaled",),
    "next sentence reversed": ("next-sentence-order",),
    "norm before activation": ("transform-order",),
}
"""By the author's name of the mistake; any of the names, and no other, is right."""

REPEATED = frozenset(
    (
        "output kernel not transposed",
        "types one token late",
        "positions after the norm",
        "epsilon of the framework",
        "root mean square for variance",
        "the Annotated Transformer's norm",
        "norm over positions too",
        "norm's bias not loaded",
        "gain plus one",
        "tanh form everywhere",
        "quick GELU",
        "residual of the layer's input",
        "residual after the norm",
        "mask added as it is",
        "mask of queries",
        "keys and values of the first layer",
        "pooler of the layer before",
        "next sentence reversed",
    )
)
"""What the first set has too, so that the catalogue was extended by it: found when both were laid side by side."""
