"""What the suite is to call each mistake: written once the results were seen, and the catalogue with them.

A mistake in parameters that has no name of its own is rightly called by what it is, `parameters-other`.
"""

from collections.abc import Mapping

_OTHER = ("parameters-other",)
_PRECISION = ("precision-int8", "precision-int8-channel", *_OTHER)

RIGHT: Mapping[str, tuple[str, ...]] = {
    "query kernel as TensorFlow has it": ("weight-transposed",),
    "kernel viewed, not transposed": ("weight-reshaped", *_OTHER),
    "query and key exchanged": ("query-key-swapped",),
    "key and value exchanged": ("key-value-swapped",),
    "fused projection by rank": ("qkv-interleaved-file", *_OTHER),
    "query's bias for all three": ("bias-other", *_OTHER),
    "output projection of the layer before": ("layer-neighbour",),
    "norms not loaded": ("norm-affine-missing",),
    "norms of a layer exchanged": ("norm-shared",),
    "int8 kernel, one scale": _PRECISION,
    "int8 kernels, scale by channel": _PRECISION,
    "float8 kernel": ("precision-float8", *_OTHER),
    "last words are new": _OTHER,
    "weights of one step later": _OTHER,
    "positions from two": ("positions-shifted",),
    "positions count real tokens": ("positions-counted-by-mask",),
    "positions restart with the segment": ("positions-restarted",),
    "positions clipped at five": ("positions-clipped",),
    "positions count rows": ("positions-by-row",),
    "second segment late by one": ("token-types-other",),
    "dropout on embeddings left on": ("dropout-active",),
    "positions added after the norm": ("positions-after-norm",),
    "epsilon of torch": ("epsilon",),
    "norm of the Annotated Transformer": ("norm-unbiased-deviation", "norm-variance"),  # its epsilon is no matter in half formats
    "RMSNorm": ("norm-without-mean",),
    "norm over the sequence too": ("norm-over-sequence",),
    "weight plus one": ("norm-weight-plus-one",),
    "norm without bias": ("norm-bias-missing",),
    "norm without bias, epsilon 1e-5": ("norm-bias-missing", "epsilon"),
    "residual after the norm": ("residual-after-norm",),
    "residual from the layer's input": ("residual-from-layer-input",),
    "residual twice": ("residual-doubled",),
    "tanh-GELU": ("gelu-variant",),
    "quick-GELU": ("activation-quick-gelu",),
    "SiLU": ("activation-silu",),
    "mistyped constant of GELU": ("gelu-tanh-cubic",),
    "bias after GELU": ("bias-after-activation", "bias-missing"),
    "mask of minus ten": ("mask-constant",),
    "mask of ones added": ("mask-added-raw",),
    "last token masked": ("mask-other",),
    "mask over queries": ("mask-on-queries", "mask-ignored"),  # the same to every token that is no padding
    "mask after softmax": ("mask-after-softmax",),
    "mask of the last row": ("mask-other",),
    "causal": ("mask-causal",),
    "softmax over queries": ("softmax-queries",),
    "scale by the width": ("scale-missing",),
    "scale folded into the weight alone": ("scale-without-bias",),
    "heads by view": ("head-split-unmoved",),
    "merged by view": ("head-order",),
    "heads interleaved, no scale": ("head-split-interleaved", "scale-missing"),
    "one head of values": ("heads-share-first",),
    "a head pruned": ("head-zero",),
    "dropout on probabilities left on": ("dropout-active",),
    "keys of the layer before": ("layer-before-kept",),
    "scores in TF32": ("precision-tf32",),
    "accumulated in float16": (),
    "mean pooled": ("pooler-mean-with-padding",),
    "next-sentence logits reversed": ("next-sentence-order",),
    "next sentence without pooler": ("head-without-pooler",),
    "heads read the layer before": ("heads-read-layer-before",),
}
"""By the author's name of the mistake; any of the names, and no other, is right."""
