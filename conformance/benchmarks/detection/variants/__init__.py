"""Correct BERTs with unusual computations; none may raise an alarm, in any format in which it is correct."""

from collections.abc import Mapping

from conformance.benchmarks.detection.variant import Variant
from conformance.benchmarks.detection.variants import attention, norms, products, whole

VARIANTS: Mapping[str, Variant] = {
    "as the paper writes it": Variant(),
    **norms.NORMS,
    **attention.ATTENTION,
    **products.PRODUCTS,
    **products.FUNCTIONS,
    **whole.WHOLE,
    **whole.MIXTURES,
}
