"""Variants in which steps of one kind are computed in several ways in one network: by hand, fused, or unchanged."""

from collections.abc import Mapping

import torch
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import SelfAttention
from conformance.benchmarks.detection.rewritten import attention, ends, formats, functions, fused, norms, places, products, softmax
from conformance.benchmarks.detection.rewritten.norms import widened_norm
from conformance.benchmarks.detection.steps import LayerNorm, Linear
from conformance.benchmarks.detection.variant import Variant, changed


def _usual_norm(norm: LayerNorm, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


def _usual_product(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, linear.weight, linear.bias)


_HAND_WRITTEN = places.norms(norms.native_norm, _usual_norm, widened_norm(norms.one_pass_norm))
_EVERY_NORM = places.norms(
    norms.group_norm,
    norms.native_norm,
    widened_norm(norms.merged_norm),
    widened_norm(norms.pairwise_norm),
    widened_norm(norms.folded_norm),
    norms.cast_norm,
    widened_norm(norms.product_norm),
)
_EVERY_GELU = places.erf_gelus(
    functions.native_gelu, F.gelu, formats.at_least_float32(functions.erfc_gelu), formats.in_float64(F.gelu)
)
_EVERY_PRODUCT = places.products(
    _usual_product,
    products.split_k_product,
    products.augmented_product,
    products.column_product,
    products.blocked_product,
    products.summed_product,
    products.split_product,
    products.token_product,
    products.power_of_two_product,
    products.transposed_product,
    products.padded_product,
)
_EVERY_SOFTMAX = places.softmax(softmax.native_softmax, softmax.infinite_softmax, softmax.reciprocal_softmax)
_EVERY_ATTENTION = places.attention(attention.native_attention, attention.online_attention, attention.divided_afterwards)
_FUSED_EVERY_OTHER_LAYER = places.every(
    SelfAttention, lambda own: places.fused_attention(attention.native_attention, own), places.as_it_is
)

MIXTURES: Mapping[str, Variant] = {
    "one norm of three by hand": changed(_HAND_WRITTEN),
    "norms of seven kinds": changed(_EVERY_NORM),
    "GELUs of four kinds": changed(_EVERY_GELU),
    "products of eleven kinds": changed(_EVERY_PRODUCT),
    "softmaxes of three kinds": changed(_EVERY_SOFTMAX),
    "attention of three kinds": changed(_EVERY_ATTENTION),
    "attention fused in every other layer": changed(_FUSED_EVERY_OTHER_LAYER),
    "everything of several kinds": changed(_EVERY_NORM, _EVERY_GELU, _EVERY_PRODUCT, _EVERY_SOFTMAX),
    "everything of several kinds, attention fused": changed(_EVERY_NORM, _EVERY_GELU, _EVERY_PRODUCT, _EVERY_ATTENTION),
    "several kinds, norms only": Variant(
        (_EVERY_NORM, _EVERY_GELU, _EVERY_PRODUCT, _EVERY_SOFTMAX), exposes=lambda name: name.endswith("LayerNorm")
    ),
    "several kinds, the last hidden state only": Variant(
        (_EVERY_NORM, _EVERY_GELU, _EVERY_PRODUCT, _EVERY_SOFTMAX), last_only=True
    ),
    "norms of unrounded sums, GELUs of several kinds": changed(fused.sum_and_norm, _EVERY_GELU),
    "padding zeroed, norms of several kinds": changed(ends.padding_zeroed, _EVERY_NORM),
}
