"""Variants of attention."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from conformance.benchmarks.detection.rewritten import attention, formats, places, products, softmax
from conformance.benchmarks.detection.variant import WIDE, Variant, changed


def _are_no_scores(name: str) -> bool:
    return not name.endswith("scores")


def _is_no_query(name: str) -> bool:
    return not name.endswith("query")


def _scaled(query: Tensor, key: Tensor) -> Tensor:
    return torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2))


def _scaled_key(query: Tensor, key: Tensor) -> Tensor:
    return torch.matmul(query, (key * query.shape[-1] ** -0.5).transpose(-1, -2))


def _scaled_both(query: Tensor, key: Tensor) -> Tensor:
    root = query.shape[-1] ** -0.25
    return torch.matmul(query * root, (key * root).transpose(-1, -2))


def _divided(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])


def _batched(query: Tensor, key: Tensor) -> Tensor:
    """Compute all heads of all sequences in one batched product, which includes the scale."""
    product = torch.baddbmm(
        query.new_zeros(()), query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), beta=0.0, alpha=query.shape[-1] ** -0.5
    )
    return product.view(*query.shape[:-1], -1)


ATTENTION: Mapping[str, Variant] = {
    "softmax, every operation rounded": changed(places.softmax(softmax.native_softmax)),
    "softmax with a reciprocal": changed(places.softmax(softmax.reciprocal_softmax)),
    "softmax by logsumexp": changed(places.softmax(formats.at_least_float32(softmax.logsumexp_softmax))),
    "softmax as the exponential of its logarithm": changed(
        places.softmax(formats.at_least_float32(softmax.exponential_of_log_softmax))
    ),
    "softmax to base two": changed(places.softmax(formats.at_least_float32(softmax.base_two_softmax))),
    "softmax of shifted scores": changed(places.softmax(softmax.shifted_softmax)),
    "softmax of unshifted scores, float32": changed(places.softmax(formats.at_least_float32(softmax.unshifted_softmax))),
    "softmax normalised by torch": changed(places.softmax(formats.at_least_float32(softmax.multiplied_softmax))),
    "softmax in float64": changed(places.softmax(formats.in_float64(softmax.infinite_softmax))),
    "softmax in float32 by its argument": changed(places.softmax(softmax.float32_softmax)),
    "softmax of unmasked keys alone": changed(places.softmax(softmax.unmasked_keys_softmax)),
    "mask of minus infinity": changed(places.softmax(softmax.infinite_softmax)),
    "mask of half the least number": changed(places.softmax(softmax.half_least_softmax)),
    "mask of −10000, added in float32": changed(places.softmax(formats.at_least_float32(softmax.added_softmax))),
    "mask of the least number, added": changed(places.softmax(softmax.added_least_softmax)),
    "scores shown with the mask": changed(attention.masked_scores_shown),
    "query scaled before the product": changed(places.scores(_scaled)),
    "key scaled before the product": changed(places.scores(_scaled_key)),
    "query and key scaled by the fourth root": Variant((places.scores(_scaled_both),), exposes=_are_no_scores),
    "scale in the query's parameters": Variant((products.scale_in_query,), exposes=_is_no_query, dtypes=WIDE),
    "scores in one batch of heads": changed(places.scores(_batched)),
    "scores and contexts transposed": changed(
        places.scores(products.transposed_scores), places.contexts(products.transposed_context)
    ),
    "scores as sums of elementwise products": changed(places.scores(products.summed_scores)),
    "contexts over blocks of keys": changed(places.contexts(products.context_in_blocks)),
    "a head at a time": changed(places.scores(products.by_head(_divided)), places.contexts(products.by_head(torch.matmul))),
    "einsum": changed(
        places.scores(lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5),
        places.contexts(lambda p, v: torch.einsum("bhqk,bhkd->bhqd", p, v)),
    ),
    "torch's own attention": changed(places.attention(attention.native_attention)),
    "torch's own attention, additive mask": changed(places.attention(attention.native_attention_additive)),
    "torch's own attention, padded heads": changed(places.attention(attention.padded_heads_attention)),
    "torch's own attention in float64": changed(places.attention(attention.float64_attention)),
    "torch's own attention, a query at a time": changed(places.attention(attention.query_at_a_time)),
    "softmax divided after the values": changed(places.attention(attention.divided_afterwards)),
    "softmax online, over blocks of keys": changed(places.attention(attention.online_attention)),
    "softmax online, from the last key": changed(places.attention(attention.online_attention_backwards)),
    "softmax in two passes": changed(places.attention(attention.two_pass_attention)),
    "softmax of two halves, merged": changed(places.attention(attention.ring_attention)),
}
