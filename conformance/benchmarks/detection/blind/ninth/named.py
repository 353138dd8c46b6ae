"""The names that are right for each mistake of the ninth set, by the rule in its `hoped`; decided before the results were seen.

`EXACT` are the names that say what the mistake is, or an equivalent of it on every input of the networks it is planted in.
`GENERAL` are those whose sentence, with the numbers that are printed with it, says what `hoped` admits besides. As in the eighth
set, names that say less than `hoped` are not right: `parameters-other` and the like count only where `hoped` asks for no more.
"""

from collections.abc import Mapping

_OTHER = ("parameters-other",)
_NONE: tuple[str, ...] = ()

EXACT: Mapping[str, tuple[str, ...]] = {
    "segments never passed": ("token-types-ignored",),
    "segments passed where the mask belongs": ("token-types-ignored", "mask-from-token-types"),  # One of each activation.
    "positions from two": ("positions-shifted",),
    "positions counted along the mask": ("positions-counted-by-mask",),
    "sinusoids for positions": ("positions-sinusoidal",),
    "word embeddings times the root of the width": ("word-embeddings-scaled",),
    "embeddings not normed": ("norm-missing",),
    # The latter is of the decoder, and printed with the offset, which is the size of a row.
    "word table one row off": ("words-shifted-back", "weight-offset"),
    "mask the wrong way round": ("mask-inverted", "mask-inverted-lowest"),
    "mask of ones and zeros added": ("mask-added-raw", "mask-constant"),  # The constant is 1/e, which is the same function.
    "mask all ones": ("mask-ignored",),
    "mask laid over the queries": ("mask-on-queries", "mask-ignored"),  # One function, reported as the latter.
    "mask lost after the first layer": ("mask-ignored",),
    "causal besides padding": ("mask-causal",),
    "fill of 1e-9 for -1e9": ("mask-multiplied", "mask-filled"),  # The former's masked scores are 0.
    "mask tiled against the heads": ("mask-tiled",),
    "heads joined by a view": ("head-order",),
    "heads split by a view": ("heads-unmoved", "head-split-unmoved", "head-order"),  # The last of the context, joined by a view.
    "divided by the root of the hidden size": ("scale-missing", "softmax-temperature"),  # One function, reported as the former.
    "softmax along the queries": ("softmax-queries",),
    "key times query": ("scores-transposed",),
    "no projection after the heads": ("projection-missing",),
    "half the heads, each twice as wide": _NONE,  # Names of the number of heads are of 12 heads and of heads 64 wide.
    "kernel called with a scale of 1": ("scale-missing", "softmax-temperature"),
    "variance with the block's zeros": ("norm-idle-lanes",),  # Where 1024 is the next power of 2.
    "Keras' epsilon": ("epsilon",),
    "gamma and beta not found": ("norm-affine-missing",),
    "gamma and beta swapped": ("norm-affine-exchanged",),
    "layer's input for the second residual": ("residual-from-layer-input",),
    "residual added twice": ("residual-doubled", "residual-scaled"),  # The latter is printed with the factor 2.
    "residual after the norm": ("residual-after-norm",),
    "GELU by tanh everywhere": ("gelu-variant",),
    "GELU by sigmoid": ("activation-quick-gelu",),
    "ReLU by default": ("activation-relu",),
    "erf without the root of two": ("gelu-argument",),
    "GELU twice": ("activation-twice", "activation-again"),
    "GELU after the second linear as well": _NONE,  # `activation-again` is of the second linear's input.
    "first linear without bias": ("bias-missing",),
    "last token pooled": ("pooler-token",),
    "mean pooled": ("pooler-mean-with-padding",),
    "pooler without tanh": ("pooler-activation-missing", "head-without-tanh"),
    "next sentence from the hidden state": ("head-without-pooler",),
    "next sentence's classes swapped": ("next-sentence-order", "weight-reversed"),  # The same of two features.
    "decoder's bias twice": ("bias-twice",),
    "decoder without bias": ("bias-missing",),
    "logits of the last layer": ("decoder-without-transform",),
    "square kernels not transposed": ("weight-transposed", "weight-reshaped"),  # The same of square matrices.
    "fused projections cut head by head": ("qkv-interleaved",),
    # The first is of the query, printed with the factor; the others are one function of the scores.
    "scale folded in and applied again": ("result-scaled", "scale-missing", "softmax-temperature"),
    "first head pruned": ("head-zero",),
    "adapter left in": ("adapter",),
    "layers that are one object": ("layer-neighbour",),  # Its sentence says that the first layer has those of the second.
    "row of the padding zeroed": ("padding-word-zeroed",),  # A fault of the look-up; the batches show the row in the decoder only.
    "attention's dropout left on": ("dropout-active",),
    "bias added on both devices": ("bias-twice", "sublayer-bias-twice"),  # The latter of the norm after the product.
    "8 bits, one scale a tensor": ("precision-int8", "precision-int8-held"),
    "heads on the layer before the last": ("heads-read-layer-before",),
    "rows left sorted by length": ("rows-other",),
    "autocast left on": ("precision-bfloat16", "result-bfloat16"),
    "packed rows attend to each other": ("attention-over-rows",),
}
"""The names that say what the mistake is; empty where there is none."""

GENERAL: Mapping[str, tuple[str, ...]] = {
    "segments never passed": ("token-types-other",),  # Printed with it: expected 1, estimated 0.
    "segments passed where the mask belongs": ("token-types-other", "mask-other"),
    "positions from two": ("positions-other",),  # Printed with it: expected 0, estimated 2, and so on.
    "sinusoids for positions": _OTHER,  # Printed with it: the table of the positions.
    "word table one row off": ("words-other", "features-reordered"),  # Printed with both: each is the one before it.
    "mask of ones and zeros added": ("mask-ignored",),
    "mask all ones": ("mask-constant",),  # Masked keys keep all of their weight.
    "mask lost after the first layer": ("mask-constant",),
    "fill of 1e-9 for -1e9": ("mask-ignored",),
    "mask tiled against the heads": ("mask-by-head",),
    "variance with the block's zeros": ("norm-statistics-other",),  # Printed with it: by how much the deviation is off.
    "GELU by tanh everywhere": ("gelu-tanh-eight-digits", "gelu-tanh-cubic", "gelu-tanh-outer"),
    "GELU by sigmoid": ("gelu-sigmoid-factor",),
    "mean pooled": ("pooler-mean",),
    "next sentence's classes swapped": ("features-reordered",),  # Printed with it: expected 0 to 1, estimated 1 to 0.
    "adapter left in": _OTHER,
    "layers that are one object": ("parameters-of-module",),  # Printed with the module whose they are.
    "8 bits, one scale a tensor": ("precision-int8-channel", "precision-int8-channel-held", "precision-int8-block"),
    "autocast left on": (
        *("precision-tf32", "precision-tf32-truncated", "precision-float16"),
        *("result-float16", "result-bfloat16-truncated"),
    ),
}
"""The names that say less than the mistake is, but what `hoped` admits."""

ADDED: Mapping[str, str] = {
    "half the heads, each twice as wide": "heads-halved",
    "kernel called with a scale of 1": "kernel-scale-missing",
    "GELU after the second linear as well": "activation-late",
    "first head pruned": "inputs-zeroed",
    "row of the padding zeroed": "outputs-zeroed",
    "word table one row off": "weight-rows-reordered",  # Of the decoder, whose bias is not moved.
}
"""Names that the catalogue was given after the first results, because these mistakes had none, or one that misled."""

AT_FIRST: Mapping[str, tuple[str, ...]] = {name: (*names, *GENERAL.get(name, ())) for name, names in EXACT.items()}
"""The names that were accepted before the first results; there is none for two mistakes."""

RIGHT: Mapping[str, tuple[str, ...]] = {
    name: (*names, *((ADDED[name],) if name in ADDED else ())) for name, names in AT_FIRST.items()
}
"""All accepted names."""
