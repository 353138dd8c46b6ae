"""The names that are right for each mistake of the eighth set, by the rule in its `hoped`.

All but those in `ADDED` were decided before the results were seen.

`EXACT` are the names that say what the mistake is, or an equivalent of it on every input. `GENERAL` are those whose sentence, with
the numbers that are printed with it, says what `hoped` admits besides. This is stricter than in the earlier sets, whose `GENERAL`
also has names that say less than `hoped`: `parameters-other` and the like are right here only where `hoped` asks for no more.
"""

from collections.abc import Mapping

_OTHER = ("parameters-other",)
_NONE: tuple[str, ...] = ()

EXACT: Mapping[str, tuple[str, ...]] = {
    "one token type for all tokens": ("token-types-ignored",),
    "position ids of RoBERTa": _NONE,
    "word embeddings times root of width": ("word-embeddings-scaled",),
    "sinusoids for learned positions": ("positions-sinusoidal",),
    "position of the row": ("positions-by-row",),
    "position 0 as padding": _NONE,
    "no norm of the embeddings": ("norm-missing",),
    "embeddings as inputs_embeds": _NONE,
    "batch without a mask": ("mask-ignored",),
    "mask of the queries": ("mask-on-queries", "mask-ignored"),  # One function, reported as the latter with the former's clause.
    "mask for padding instead of tokens": ("mask-inverted", "mask-inverted-lowest"),
    "mask of ones added to the scores": ("mask-added-raw", "mask-constant"),  # The constant is 1/e, which is the same function.
    "mask as a length": ("mask-as-lengths",),
    "causal mask of a decoder": ("mask-causal",),
    "mask after the softmax": ("mask-after-softmax",),
    "mask of minus ten": ("mask-constant",),
    "masks tiled over the heads": ("mask-tiled",),
    "heads split without a transpose": ("head-split-unmoved", "head-order"),  # The context is also merged by a view.
    "heads merged without a transpose": ("head-order",),
    "scores by the root of the width": ("scale-missing", "softmax-temperature"),  # One function, reported as the former.
    "scores scaled twice": ("scale-missing", "softmax-temperature"),
    "softmax over the queries": ("softmax-queries",),
    "no projection after the heads": _NONE,
    "attention over the batch": _NONE,
    "rotary positions as well": ("scores-rotary",),
    "default epsilon in the layers": ("epsilon",),
    "unbiased deviation plus epsilon": ("norm-unbiased-deviation",),
    "norms before the sublayers": ("pre-norm", "norm-missing"),  # The latter of the sums that are not normed.
    "first norm used twice": ("norm-shared",),
    "no residual around the attention": ("residual-missing",),
    "root mean square for the deviation": ("norm-without-mean",),
    "norm over positions and features": ("norm-over-sequence",),
    "gelu by tanh": ("gelu-variant",),
    "relu by default": ("activation-relu",),
    "gelu by a sigmoid": ("activation-quick-gelu",),
    "erf without the root of two": ("gelu-argument",),
    "activation applied twice": ("activation-twice",),  # It acts on the activation function, not on the product after it.
    "no bias before the activation": ("bias-missing",),
    "no residual around the feed forward": ("residual-missing",),
    "decoder bias added twice": ("bias-twice",),
    "decoder bias dropped": ("bias-missing",),
    # The first is of a decoder that bypasses the transform; the others are of two of its three steps.
    "masked tokens without a transform": ("decoder-without-transform", "activation-missing", "norm-missing"),
    "pooler without tanh": ("pooler-activation-missing", "head-without-tanh"),
    "pooler reads the last position": ("pooler-token",),
    "is next comes second": ("next-sentence-order", "weight-reversed"),  # The same of two features.
    "next sentence without the pooler": ("head-without-pooler",),
    "gamma and beta not found": ("norm-affine-missing",),
    "square matrices not transposed": ("weight-transposed", "weight-reshaped"),  # The same of square matrices.
    "fused rows by heads": ("qkv-interleaved",),
    "one instance for all layers": ("layer-neighbour",),  # Of the second layer, which is the last one.
    "last layer not loaded": ("norm-affine-missing",),  # The latter of the norms.
    "pooler not loaded": _NONE,
    "attention without biases": ("bias-missing",),
    "evaluation mode forgotten": ("dropout-active",),
    "eight bits for each matrix": ("precision-int8",),
    "matrix products in TensorFloat-32": ("precision-tf32",),
    "packed rows attend to each other": _NONE,
    "hidden state before the last layer": ("heads-read-layer-before",),
    "every layer reads the embeddings": ("input-embeddings",),
    "keys up to a fixed length": ("keys-last-hidden",),
}
"""The names that say what the mistake is; empty where there is none."""

GENERAL: Mapping[str, tuple[str, ...]] = {
    "one token type for all tokens": ("token-types-other",),  # Printed with it: expected 1, estimated 0.
    # The last is printed with the first position that is wrong: expected 0, estimated 2.
    "position ids of RoBERTa": ("positions-shifted", "positions-counted-by-mask", "positions-other"),
    "position 0 as padding": _OTHER,  # Printed with it: row 0 of the table, and an element that is 0.
    "embeddings as inputs_embeds": ("positions-doubled", "token-types-doubled"),
    "batch without a mask": ("mask-constant",),  # Masked keys keep all of their weight.
    "mask after the softmax": ("softmax-unnormalised",),
    "mask of minus ten": ("mask-filled",),
    "masks tiled over the heads": ("mask-by-head",),  # Its cause is masks in another order than the scores'.
    "rotary positions as well": ("scores-rotary-neighbours", "scores-bias-by-distance"),
    "unbiased deviation plus epsilon": ("norm-variance",),
    "gelu by tanh": ("gelu-tanh-eight-digits", "gelu-tanh-cubic", "gelu-tanh-outer"),
    "gelu by a sigmoid": ("gelu-sigmoid-factor",),
    "is next comes second": ("features-reordered",),  # Printed with it: expected 0 to 1, estimated 1 to 0.
    "one instance for all layers": ("parameters-of-module",),  # Printed with the module whose they are.
    "last layer not loaded": _OTHER,
    "pooler not loaded": _OTHER,
    "eight bits for each matrix": ("precision-int8-channel", "precision-int8-block"),
    "matrix products in TensorFloat-32": ("precision-tf32-truncated", "precision-float16", "precision-bfloat16"),
}
"""The names that say less than the mistake is, but what `hoped` admits."""

ADDED: Mapping[str, str] = {
    "embeddings as inputs_embeds": "embeddings-again",
    "heads split without a transpose": "heads-unmoved",
    "no projection after the heads": "projection-missing",
    "attention over the batch": "attention-along-batch",
    "activation applied twice": "activation-again",
    "masked tokens without a transform": "projection-missing",
    "eight bits for each matrix": "precision-int8-held",
    "packed rows attend to each other": "attention-over-rows",
}
"""Names that the catalogue was given after the first results, because these mistakes had none, or one that misled."""

AT_FIRST: Mapping[str, tuple[str, ...]] = {name: (*names, *GENERAL.get(name, ())) for name, names in EXACT.items()}
"""The names that were accepted before the first results; there is none for three mistakes."""

RIGHT: Mapping[str, tuple[str, ...]] = {
    name: (*names, *((ADDED[name],) if name in ADDED else ())) for name, names in AT_FIRST.items()
}
"""All accepted names."""
