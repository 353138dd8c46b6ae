"""Variants of the linear products."""

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.rewritten import places, products
from conformance.benchmarks.detection.steps import Linear
from conformance.benchmarks.detection.variant import Variant, changed


def _backwards(linear: Linear, x: Tensor) -> Tensor:
    return F.linear(x.flip(-1), linear.weight.flip(-1), linear.bias)


def _in_float64(linear: Linear, x: Tensor) -> Tensor:
    return F.linear(x.double(), linear.weight.double(), linear.bias.double()).to(x.dtype)


PRODUCTS: Mapping[str, Variant] = {
    "products summed backwards": changed(places.products(_backwards)),
    "products, every other feature first": changed(places.products(products.shuffled_product)),
    "bias as a call of its own": changed(places.products(lambda n, x: x @ n.weight.T + n.bias)),
    "bias as one more feature": changed(places.products(products.augmented_product)),
    "products in two halves": changed(places.products(products.split_product)),
    "products in eight parts, stored and added": changed(places.products(products.split_k_product)),
    "products in blocks of four features": changed(places.products(products.blocked_product)),
    "products as sums of elementwise products": changed(places.products(products.summed_product)),
    "outputs in three parts": changed(places.products(products.outputs_in_parts)),
    "products of all tokens in one matrix": changed(places.products(products.flat_product)),
    "products of a matrix and a vector": changed(places.products(products.token_product)),
    "products padded with zeros": changed(places.products(products.padded_product)),
    "products of operands scaled by powers of two": changed(places.products(products.power_of_two_product)),
    "products of three bfloat16 parts": changed(places.products(products.three_part_product), dtypes=("float32",)),
    "kernels of (in, out)": changed(places.products(products.transposed_product)),
    "products with features first": changed(places.products(products.column_product)),
    "products as convolutions": changed(places.products(products.convolved_product)),
    "products in float64": changed(places.products(_in_float64)),
    "feed-forward in chunks": changed(places.feed_forward(products.chunked_product)),
    "query, key and value in one product": changed(products.fused_projections),
    "output projection by head": changed(products.projection_by_head),
}
