"""The names that are right for each mistake of the tenth set, by the rule in its `hoped`; decided before the results were seen.

`EXACT` are the names that say what the mistake is, or an equivalent of it on every input of the networks it is planted in.
`GENERAL` are those whose sentence, with the numbers that are printed with it, says what `hoped` admits besides. `DESCRIBED` are the
descriptions (`NamedFinding.is_description`) that are true of it, but say less than `hoped`; they are counted apart.
"""

from collections.abc import Mapping

_OTHER = ("parameters-other",)
_POSITIONS = ("positions-other", *_OTHER)
_NONE: tuple[str, ...] = ()

EXACT: Mapping[str, tuple[str, ...]] = {
    "first layer left as it was initialised": ("norm-affine-missing",),  # Of the products, and of the norms.
    "kernels reshaped": ("weight-reshaped",),
    "biases of key and value swapped": _NONE,
    "query permuted for a rotary embedding": ("features-reordered",),  # Printed with the order.
    "norm found by the end of its name": ("norm-shared",),
    "layers in reverse order": ("layers-reversed", "layer-neighbour"),  # The same of two layers.
    "bfloat16 read as float16": ("weights-bfloat16-as-float16",),
    "pooler left as it was initialised": _NONE,
    "positions from 2": ("positions-shifted", "positions-offset"),  # The latter is printed with the number 2.
    "positions of attended tokens only": ("positions-counted-by-mask",),
    "positions restart at the second segment": ("positions-restarted",),
    "all tokens of type 0": ("token-types-ignored",),
    "words times the root of the hidden size": ("word-embeddings-scaled",),
    "ids counted from one": ("words-shifted-back",),
    "scores multiplied by the mask": ("mask-multiplied", "mask-filled"),  # The latter is printed with the score 0.
    "mask inverted": ("mask-inverted", "mask-inverted-lowest"),
    "mask along the queries": ("mask-on-queries", "mask-ignored"),  # One function, reported as the latter.
    "causal": ("mask-causal",),
    "mask after the softmax": ("mask-after-softmax",),
    "boolean mask added": ("mask-added-raw", "mask-constant"),  # The constant is 1/e, which is the same function.
    "token types for the mask": ("token-types-ignored", "mask-from-token-types"),  # One of each activation.
    "heads interleaved": ("head-merge-interleaved",),
    "distance taken off the scores": ("scores-linear-bias",),
    "rotary embedding besides": ("scores-rotary",),
    "a zero key besides": ("softmax-plus-one",),
    "query's bias not scaled": ("scale-without-bias",),
    "one cache for all layers": ("layer-kept", "layer-before-kept"),  # The same of two layers.
    "mean not taken off": ("norm-without-mean",),
    "standard deviation of n - 1": ("norm-unbiased-deviation",),
    "norms' weights for weights less one": ("norm-weight-plus-one",),
    "no residual around the attention": ("residual-missing",),
    "bias in the linear layer and in the fused norm": ("sublayer-bias-twice",),
    "output added to itself": ("residual-missing",),  # A norm of 2 x is one of x, but for epsilon.
    "norms before the sublayers": ("pre-norm", "norm-missing"),  # Of the products, and of the norms.
    "tanh in the GELU": ("gelu-variant",),
    "sigmoid in the GELU": ("activation-quick-gelu",),
    "bias twice before the GELU": ("bias-again-before-activation",),
    "rest after the last whole chunk": ("tokens-zero",),
    "feed-forward beside the attention": ("feed-forward-parallel",),
    "pooler of the last token": ("pooler-token",),
    "no tanh in the pooler": ("pooler-activation-missing", "head-without-tanh"),
    "next sentence from the first token": ("head-without-pooler",),
    "labels of the next sentence swapped": ("next-sentence-order", "weight-reversed"),  # The same of two features.
    "bias of the vocabulary twice": ("bias-twice",),
    "decoder not tied": _NONE,
    "decoder scaled as in T5": ("product-scaled",),  # Printed with the factor.
    "scales along the other axis": ("precision-int8-scales-of-inputs",),
    "zero point left out": ("zero-point-missing",),
    # The latter is of the same weight, named beside the former.
    "nibbles swapped": ("weight-pairs-exchanged", "precision-int4-channel"),
    "calibrated on too small a range": _NONE,  # The names of a clip are of a result.
    "smoothed norm before a residual": ("inputs-scaled",),  # Of the product; for the norm there is none.
    "other rank's part of the vocabulary": _NONE,  # `tokens-zero` is of products and norms.
    "bias on every rank": ("bias-twice",),
    "sum over the ranks left out": ("inputs-zeroed", "inputs-last-unread"),
    "linear layers in bfloat16": ("precision-bfloat16", "result-bfloat16"),
    "online softmax not rescaled": ("softmax-not-rescaled",),
    "tile's padding attended to": _NONE,  # `softmax-plus-one` is of the probabilities.
    "packed without boundaries": ("attention-over-rows",),
    "dropout in the kernel": ("dropout-active",),
    "order of the rows not restored": ("rows-other",),
}
"""The names that say what the mistake is; empty where there is none."""

GENERAL: Mapping[str, tuple[str, ...]] = {
    "first layer left as it was initialised": _OTHER,
    "kernels reshaped": _OTHER,
    "biases of key and value swapped": ("bias-other",),
    "norm found by the end of its name": _OTHER,
    "layers in reverse order": ("parameters-of-module",),  # Printed with the module whose they are.
    "bfloat16 read as float16": _OTHER,
    "pooler left as it was initialised": _OTHER,
    "ids counted from one": ("words-other",),
    "scores multiplied by the mask": ("mask-ignored",),
    "mask after the softmax": ("softmax-unnormalised",),
    "boolean mask added": ("mask-ignored",),
    "token types for the mask": ("mask-other",),
    "distance taken off the scores": ("scores-bias-by-distance",),
    "rotary embedding besides": ("scores-rotary-neighbours",),
    "a zero key besides": ("softmax-unnormalised", "softmax-denominator-epsilon"),
    "standard deviation of n - 1": ("norm-variance",),
    "norms' weights for weights less one": _OTHER,
    "tanh in the GELU": ("gelu-tanh-eight-digits", "gelu-tanh-cubic", "gelu-tanh-outer"),
    "sigmoid in the GELU": ("gelu-sigmoid-factor",),
    "labels of the next sentence swapped": ("features-reordered",),
    "scales along the other axis": ("inputs-scaled", "outputs-scaled", *_OTHER),
    "zero point left out": _OTHER,
    "nibbles swapped": _OTHER,
    "smoothed norm before a residual": _OTHER,
    "linear layers in bfloat16": (
        *("precision-tf32", "precision-tf32-truncated", "precision-float16"),
        *("result-float16", "result-bfloat16-truncated"),
    ),
}
"""The names that say less than the mistake is, but what `hoped` admits."""

DESCRIBED: Mapping[str, tuple[str, ...]] = {
    "biases of key and value swapped": _OTHER,
    "query permuted for a rotary embedding": _OTHER,
    "layers in reverse order": _OTHER,
    "positions from 2": _POSITIONS,
    "positions of attended tokens only": _POSITIONS,
    "positions restart at the second segment": _POSITIONS,
    "all tokens of type 0": ("token-types-other", *_OTHER),
    "words times the root of the hidden size": _OTHER,
    "ids counted from one": _OTHER,
    "mask inverted": ("mask-other",),
    "causal": ("mask-by-query",),
    "token types for the mask": ("token-types-other",),
    "mean not taken off": ("norm-statistics-other",),
    "standard deviation of n - 1": ("norm-statistics-other",),
    "labels of the next sentence swapped": _OTHER,
    "bias of the vocabulary twice": ("bias-other", *_OTHER),
    "decoder not tied": _OTHER,
    "decoder scaled as in T5": _OTHER,
    "other rank's part of the vocabulary": _OTHER,
    "bias on every rank": ("bias-other", *_OTHER),
    "sum over the ranks left out": ("weight-columns-other", *_OTHER),
}
"""The descriptions that are true of the mistake, and say less than `hoped`."""

ADDED: Mapping[str, str] = {
    "calibrated on too small a range": "inputs-clipped",
    "other rank's part of the vocabulary": "words-zeroed",
    "tile's padding attended to": "kernel-tile-64",
}
"""Names that the catalogue was given after the first results, because these mistakes had none."""

AT_FIRST: Mapping[str, tuple[str, ...]] = {name: (*names, *GENERAL.get(name, ())) for name, names in EXACT.items()}
"""The names that were accepted before the first results; there is none for three mistakes."""

RIGHT: Mapping[str, tuple[str, ...]] = {
    name: (*names, *((ADDED[name],) if name in ADDED else ())) for name, names in AT_FIRST.items()
}
"""All accepted names."""
