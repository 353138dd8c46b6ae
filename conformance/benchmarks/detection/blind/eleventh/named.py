"""The names that are right for each mistake of the eleventh set, by the rule in its `hoped`; decided before its results were seen.

`EXACT` are the names that say what the mistake is, or an equivalent of it on every input of the networks it is planted in.
`GENERAL` are those whose sentence, with the numbers that are printed with it, says what `hoped` admits besides. `DESCRIBED` are the
descriptions (`NamedFinding.is_description`) that are true of it, but say less than `hoped`; they are counted apart.
"""

from collections.abc import Mapping

_OTHER = ("parameters-other",)
_NONE: tuple[str, ...] = ()

EXACT: Mapping[str, tuple[str, ...]] = {
    "RoBERTa's position offset": ("positions-shifted", "positions-offset"),  # The latter is printed with the number 2.
    "positions counted over the mask": ("positions-counted-by-mask",),
    "positions along the batch": ("positions-by-row",),
    "token types not passed": ("token-types-ignored",),
    "word embeddings scaled": ("word-embeddings-scaled",),
    "embeddings not normed": ("norm-missing",),
    "mask upside down": ("mask-inverted", "mask-inverted-lowest"),
    "mask left out": ("mask-ignored",),
    "mask on the queries": ("mask-on-queries", "mask-ignored"),  # One function, reported as the latter, with the former's sentence.
    "ones and zeros added": ("mask-added-raw", "mask-constant"),  # The constant is 1/e, which is the same function.
    "mask after the softmax": ("mask-after-softmax",),
    "causal attention": ("mask-causal",),
    "length for a mask": ("mask-as-lengths",),
    "masks in the wrong order for the heads": ("mask-tiled",),
    "scores not scaled": ("scale-missing", "softmax-temperature"),  # One function, reported as the former.
    "root of the hidden size": ("scale-missing", "softmax-temperature"),  # Printed with the factor.
    "keys by queries": ("scores-transposed",),
    "softmax down the columns": ("softmax-queries",),
    "softmax over the heads": ("softmax-heads",),
    "heads by a view": ("heads-unmoved", "head-split-unmoved"),  # One function of the scores.
    "every h-th feature a head": ("heads-interleaved", "head-split-interleaved"),  # One function of the scores.
    "heads not transposed back": ("head-order",),
    "no output projection": ("projection-missing",),
    "PyTorch's epsilon in the layers": ("epsilon",),
    "Bessel's correction": ("norm-unbiased-deviation", "norm-variance"),  # They differ by an epsilon of 1e-12.
    "RMSNorm": ("norm-without-mean",),
    "norm over tokens and features": ("norm-over-sequence",),
    "weights around zero": ("norm-weight-plus-one",),
    "residual around the attention forgotten": ("residual-missing", "residual-scaled"),  # The latter by 0.
    "one norm for both": ("norm-shared",),
    "GELU by tanh": ("gelu-variant",),
    "GELU by a sigmoid": ("activation-quick-gelu",),
    "ReLU": ("activation-relu",),
    "erf without the root of two": ("gelu-argument",),
    "bias of both ranks": ("bias-twice",),
    "no sum over the ranks": ("inputs-zeroed", "inputs-last-unread"),
    "mean into the pooler": ("pooler-mean-with-padding",),
    "pooler without tanh": ("pooler-activation-missing", "head-without-tanh"),
    "decoder without bias": ("bias-missing",),
    "decoder not tied": _NONE,
    "transform without activation": ("activation-missing",),
    "next sentence without the pooler": ("head-without-pooler",),
    "next sentence the other way round": ("next-sentence-order", "weight-reversed"),  # The same of two features.
    "heads on the last layer but one": ("heads-read-layer-before", "input-embeddings"),  # The latter in a network of one layer.
    "last layer left at its initial values": ("norm-affine-missing",),  # Of the products, and of the norms.
    "key and value exchanged": ("key-value-swapped",),
    "kernels reshaped": ("weight-reshaped",),
    "int8 with one scale": ("precision-int8", "precision-int8-held"),
    "scales along the inputs": ("precision-int8-scales-of-inputs",),
    "two of four weights": ("weight-two-of-four",),
    "projections without bias": ("bias-missing",),
    # The last two are of the decoder, whose bias is not moved; the offset is the size of a row.
    "vocabulary shifted by one": ("words-shifted-back", "weight-rows-reordered", "weight-offset"),
    "shards in the wrong order": ("features-reordered",),  # Printed with the order.
    "TF32": ("precision-tf32",),
    "softmax in float16": ("result-float16", "precision-float16"),
    "tail of the tile": _NONE,  # Names of a tile are of the context, with probabilities that are right.
    "online softmax not rescaled": ("softmax-not-rescaled",),
    "range of the calibration": ("inputs-clipped",),
    # A norm of 2 x is one of x, but for epsilon; the latter name is printed with the factor 0.
    "residual overwritten": ("residual-missing", "residual-scaled"),
    "model in training": ("dropout-active",),
}
"""The names that say what the mistake is; empty where there is none."""

GENERAL: Mapping[str, tuple[str, ...]] = {
    "positions along the batch": ("positions-other",),
    "mask left out": ("mask-constant",),  # Masked keys keep all of their weight.
    "ones and zeros added": ("mask-ignored",),
    "mask after the softmax": ("softmax-unnormalised",),
    "heads by a view": ("head-order",),  # The other half of the context.
    "every h-th feature a head": ("head-merge-interleaved",),  # The other half of the context.
    "GELU by tanh": ("gelu-tanh-eight-digits", "gelu-tanh-cubic", "gelu-tanh-outer"),
    "GELU by a sigmoid": ("gelu-sigmoid-factor",),
    "no sum over the ranks": ("inputs-scaled",),  # Printed with the factors, half of which are 0.
    "mean into the pooler": ("pooler-mean",),
    "next sentence the other way round": ("features-reordered",),
    "last layer left at its initial values": ("norm-weight-missing", "norm-bias-missing", *_OTHER),
    # Each says one half; the last is printed with the module whose the parameters are.
    "key and value exchanged": ("key-from-value", "value-from-key", "parameters-of-module"),
    "int8 with one scale": ("precision-int8-channel", "precision-int8-channel-held", "precision-int8-block"),
    "scales along the inputs": ("inputs-scaled", "outputs-scaled"),
    "two of four weights": ("weight-pruned",),  # Printed with the share of one half.
    "vocabulary shifted by one": ("words-other",),
    "TF32": ("precision-tf32-truncated", "precision-float16", "result-float16"),  # Of as many bits.
    "tail of the tile": ("softmax-unnormalised",),
}
"""The names that say less than the mistake is, but what `hoped` admits."""

DESCRIBED: Mapping[str, tuple[str, ...]] = {
    "RoBERTa's position offset": ("positions-other", *_OTHER),
    "positions counted over the mask": ("positions-other",),
    "token types not passed": ("token-types-other", *_OTHER),
    "word embeddings scaled": _OTHER,
    "mask upside down": ("mask-other",),
    "mask left out": ("mask-other",),
    "mask on the queries": ("mask-by-query", "mask-other"),  # The latter where queries are not padding.
    "causal attention": ("mask-by-query",),
    "length for a mask": ("mask-other",),
    "masks in the wrong order for the heads": ("mask-by-head",),
    "no output projection": _OTHER,  # The weight acts as the identity, the bias as 0.
    "PyTorch's epsilon in the layers": ("norm-statistics-other",),
    "Bessel's correction": ("norm-statistics-other", *_OTHER),  # The factor √((n − 1) / n) may be the weight's.
    "RMSNorm": ("norm-statistics-other",),
    "norm over tokens and features": ("norm-statistics-other",),
    "weights around zero": _OTHER,
    "one norm for both": _OTHER,
    "bias of both ranks": ("bias-other", *_OTHER),
    "no sum over the ranks": ("weight-columns-other", *_OTHER),
    "decoder without bias": ("bias-other", *_OTHER),
    "decoder not tied": _OTHER,
    "next sentence the other way round": _OTHER,
    "key and value exchanged": _OTHER,
    "kernels reshaped": _OTHER,
    "int8 with one scale": _OTHER,
    "scales along the inputs": _OTHER,
    "two of four weights": _OTHER,
    "projections without bias": ("bias-other", *_OTHER),
    "vocabulary shifted by one": _OTHER,
    "shards in the wrong order": _OTHER,
}
"""The descriptions that are true of the mistake, and say less than `hoped`."""

ADDED: Mapping[str, str] = {}
"""Names that the catalogue was given after the first results, because these mistakes had none."""

AT_FIRST: Mapping[str, tuple[str, ...]] = {name: (*names, *GENERAL.get(name, ())) for name, names in EXACT.items()}
"""The names that were accepted before the first results."""

RIGHT: Mapping[str, tuple[str, ...]] = {
    name: (*names, *((ADDED[name],) if name in ADDED else ())) for name, names in AT_FIRST.items()
}
"""All accepted names."""
