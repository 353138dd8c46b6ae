"""Variants of embeddings, pooler, losses, the batch and formats, and mixtures of several ways to compute a step."""

from collections.abc import Mapping
from zlib import crc32

from conformance.benchmarks.detection.bert import changed
from conformance.benchmarks.detection.equations import Wide
from conformance.benchmarks.detection.variant import HALVES_AND_FLOAT32, Variant, in_order, row_by_row, unpadded, variant, variants
from conformance.benchmarks.detection.variants import attention, norms, products

BY_HAND = "-log_softmax(x.flatten(0, -2)[y.flatten() >= 0]).gather(-1, y[y >= 0][:, None]).sum() / (y >= 0).sum()"
ONE_HOT = (
    "(lambda s: (torch.logsumexp(s, -1) - (F.one_hot(y[y >= 0], s.shape[-1]) * s).sum(-1)).mean())"
    "(x.flatten(0, -2)[y.flatten() >= 0])"
)
FLOAT32_SINUSOIDS = "(lambda t: torch.stack([t.sin(), t.cos()], -1).flatten(1)[:, :H].to(weight))({})[positions]".format(
    "arange(len(weight)).float()[:, None] * exp(arange(0, H, 2).float() * (-log(10000.0) / H))"
)
LOGITS = ("decoder", "seq_relationship", "log_probs", "classifier")


def is_logits(name: str) -> bool:
    """Return whether an activation is the result of a head."""
    return name.endswith(LOGITS)


WHOLE: Mapping[str, Variant] = {
    "look-ups as products": variant("lookups", "F.one_hot(rows, len(weight)).to(weight.dtype) @ weight"),
    "look-ups by index_select": variant("lookups", "weight.index_select(0, rows.flatten()).view(*rows.shape, -1)"),
    "sinusoids in float32": variant(
        "position", f"right() if a.position_embedding_type == 'absolute' else {FLOAT32_SINUSOIDS}", dtypes=HALVES_AND_FLOAT32
    ),
    "pooler of the whole sequence": variant("pooler", "linear(last, weight, bias)[:, 0]"),
    "losses by hand": variant("losses", BY_HAND, wide=True),
    "losses of one-hot labels": variant("losses", ONE_HOT, wide=True),
    "one sequence at a time": Variant(arranged=row_by_row),
    "sequences in reverse order": Variant(arranged=in_order(lambda size: range(size - 1, -1, -1))),
    "every sequence twice": Variant(arranged=in_order(lambda size: [*range(size), *range(size)])),
    "without padding": Variant(arranged=unpadded),
    "padding zeroed": variant("handed", "output * mask[:, :, None]"),
    "everything in float32, rounded when shown": Variant(computes="float32", dtypes=HALVES_AND_FLOAT32),
    "everything in float64, rounded when shown": Variant(computes="float64"),
    "residuals in float32": variants(
        (
            changed("products", "linear(x.to(weight.dtype), weight, bias)"),
            changed("norms", "layer_norm(widened(x), widened(weight), widened(bias), eps)"),
        ),
        by_layer=False,  # products of other layers do not read float32
    ),
    "norms only": Variant(exposes=lambda name: name.endswith("LayerNorm")),
    "about half of the activations": Variant(
        exposes=lambda name: crc32(name.encode()) % 2 == 0 or name.endswith("output.LayerNorm")
    ),
    "the last hidden state only": Variant(last_only=True),
    "logits only": Variant(exposes=is_logits, suits="len(a.heads) > 0"),
    "computed in float64, logits only": Variant(exposes=is_logits, computes="float64", suits="len(a.heads) > 0"),
}


USUAL = "right()"
EVERY_NORM = changed(
    *("norms", norms.GROUP_NORM, norms.NATIVE_NORM, Wide(norms.merged_norm), Wide(norms.pairwise_norm), Wide(norms.FOLDED)),
    *(norms.CAST, Wide(norms.product_norm)),
)
EVERY_GELU = changed("functions", *products.erf_form(products.NATIVE_GELU, USUAL, Wide(products.ERFC), products.FLOAT64_GELU))
EVERY_PRODUCT = changed(
    *("products", USUAL, products.in_eight_parts, products.AUGMENTED, products.COLUMNS, Wide(products.in_blocks_of_four)),
    *(Wide(products.SUMMED), products.TWO_HALVES, products.BY_TOKEN, products.POWERS, products.IN_OUT, products.PADDED),
)
EVERY_SOFTMAX = changed("probs", attention.NATIVE_SOFTMAX, attention.INFINITE, attention.RECIPROCAL)
EVERYTHING = (EVERY_NORM, EVERY_GELU, EVERY_PRODUCT, EVERY_SOFTMAX)
EVERY_ATTENTION = changed("context", attention.SDPA, Wide(attention.online), attention.divided_afterwards)

MIXTURES: Mapping[str, Variant] = {
    "one norm of three by hand": variant("norms", norms.NATIVE_NORM, USUAL, Wide(norms.ONE_PASS)),
    "norms of seven kinds": variants((EVERY_NORM,)),
    "norms of seven kinds, of unrounded sums": variants((*norms.UNROUNDED, EVERY_NORM)),
    "GELUs of four kinds": variants((EVERY_GELU,)),
    "products of eleven kinds": variants((EVERY_PRODUCT,)),
    "softmaxes of three kinds": variants((EVERY_SOFTMAX,)),
    "attention of three kinds": variants((EVERY_ATTENTION,), hides=attention.INNER),
    "attention fused in every other layer": variants(
        (changed("context", attention.SDPA, layers="i % 2 == 0"),),
        hides=[f"layer.{i}.attention.{n}" for i in range(0, 12, 2) for n in attention.INNER],
        by_layer=False,  # another layer alone would expose probabilities that its kernel does not use
    ),
    "everything of several kinds": variants(EVERYTHING),
    "everything of several kinds, attention fused": variants(
        (EVERY_NORM, EVERY_GELU, EVERY_PRODUCT, EVERY_ATTENTION), attention.INNER
    ),
    "several kinds, norms only": Variant(EVERYTHING, exposes=lambda name: name.endswith("LayerNorm")),
    "several kinds, the last hidden state only": Variant(EVERYTHING, last_only=True),
    "norms of unrounded sums, GELUs of several kinds": variants((*norms.UNROUNDED, EVERY_GELU)),
    "padding zeroed, norms of several kinds": variants((changed("handed", "output * mask[:, :, None]"), EVERY_NORM)),
}
"""Variants in which steps of one kind are computed in several ways in one network: by hand, fused, or as usual."""
