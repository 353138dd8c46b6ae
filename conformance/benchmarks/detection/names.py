"""The names of the planted mistakes whose list is fixed, and the choice of held-out mistakes; both preceded every filter.

`LISTED` are the mistakes that the project set out to name, and `CONSTRUCTED` are further ones. The 24 constructed mistakes with the
smallest hashes (`HELD_OUT`) have no filter, so they measure how the suite judges a mistake that nobody foresaw. Excepted are the
`RELEASED` ones, which people make according to the blind mistakes (`blind`). The blind mistakes measure the same, and are not
known to those who write filters.

A mistake that is planted later is a row of a theme of `planted` alone, which has its description, and is not added here.
"""

from hashlib import sha256

LISTED = (
    # activation functions
    "gelu-variant", "activation-quick-gelu", "activation-relu", "activation-missing", "gelu-argument", "gelu-tanh-constant",
    # norms and residuals
    "epsilon", "epsilon-outside-root", "norm-variance", "norm-missing", "norm-without-mean", "norm-affine-missing", "norm-shared",
    "residual-after-norm", "residual-missing", "residual-doubled", "residual-from-layer-input", "pre-norm",
    # attention
    "scale-missing", "softmax-temperature", "softmax-queries", "mask-ignored", "mask-inverted", "mask-on-queries",
    "mask-constant", "mask-shifted", "mask-multiplied", "head-order", "head-merge-interleaved", "head-split-interleaved",
    "head-split-unmoved",
    # projections
    "query-key-swapped", "query-value-swapped", "key-value-swapped", "weight-transposed", "bias-missing", "bias-twice",
    # embeddings
    "positions-shifted", "positions-from-one", "positions-doubled", "positions-repeated", "positions-missing",
    "positions-from-token-types", "positions-sinusoidal", "sinusoid-exponent", "sinusoid-halves", "sinusoid-order",
    "token-types-ignored", "token-types-missing", "token-types-shifted", "token-types-from-mask", "token-types-from-positions",
    # pooler and heads
    "pooler-token", "pooler-last-unmasked", "pooler-mean", "pooler-missing", "pooler-activation-missing", "decoder-untied",
    "next-sentence-order", "next-sentence-label", "loss-denominator", "loss-ignores-zero", "loss-labels-shifted",
    "span-ends-exchanged", "span-labels-exchanged", "span-loss-summed", "choices-interleaved", "choices-one-by-one",
    # sentence embeddings
    "pooling-with-padding", "pooling-without-special", "pooling-first-token", "pooling-mean", "pooling-max",
    "pooling-not-normalised", "pooling-normalised-by-largest",
    # layers and loading
    "layer-skipped", "layer-repeated", "layers-reversed", "layers-shared", "layer-neighbour", "parameters-default",
    "parameters-other",
    # precision, where float32 is promised
    "precision-bfloat16", "precision-float16", "precision-tf32", "precision-int8", "dropout-active",
)  # fmt: skip

CONSTRUCTED = (
    "activation-silu", "activation-twice", "activation-leaky-relu", "activation-softplus", "activation-tanh", "gelu-half-missing",
    "norm-bias-missing", "norm-weight-missing", "norm-over-positions", "norm-weight-plus-one", "norm-twice", "norm-per-head",
    "norm-by-variance", "mask-after-softmax", "mask-causal", "mask-added-raw", "mask-diagonal", "mask-of-first-row",
    "softmax-heads", "softmax-missing", "softmax-plus-one", "scores-transposed", "scores-clipped", "heads-reversed",
    "heads-unsplit", "context-uniform", "context-of-keys", "qkv-rotated", "qkv-interleaved", "bias-negated", "weight-reversed",
    "features-dropped", "positions-reversed", "positions-counted-by-mask", "sinusoid-base", "token-types-inverted",
    "token-types-doubled", "word-embeddings-scaled", "padding-word-zeroed", "words-shifted", "first-token-zeroed",
    "hidden-clipped", "residual-subtracted", "residual-scaled", "sublayer-missing", "sublayer-doubled", "pooler-second-token",
    "pooler-max", "pooler-sigmoid", "pooler-relu", "loss-summed", "class-labels-reversed",
)  # fmt: skip

RELEASED = frozenset((
    "activation-silu", "activation-twice", "bias-negated", "first-token-zeroed", "mask-after-softmax", "mask-diagonal",
    "mask-of-first-row", "norm-by-variance", "norm-weight-missing", "positions-counted-by-mask", "qkv-interleaved",
    "residual-subtracted", "softmax-heads", "sublayer-doubled", "word-embeddings-scaled", "words-shifted",
))  # fmt: skip
"""Mistakes that were held out until they, or similar ones, were found among the blind mistakes."""

COUNT_HELD_OUT = 24


def _draw(name: str) -> str:
    return sha256(f"held out, 1: {name}".encode()).hexdigest()


HELD_OUT = frozenset(sorted(CONSTRUCTED, key=_draw)[:COUNT_HELD_OUT]) - RELEASED
"""Constructed mistakes for which no filter exists."""
