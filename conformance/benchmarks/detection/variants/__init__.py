"""Correct BERTs with unusual computations; none may raise an alarm, in any format in which it is correct.

To add a variant, write its step in `rewritten`, and name it in the module of this package to which the step belongs.
"""

from collections.abc import Mapping

from conformance.benchmarks.detection.variant import Variant
from conformance.benchmarks.detection.variants.attention import ATTENTION
from conformance.benchmarks.detection.variants.functions import FUNCTIONS
from conformance.benchmarks.detection.variants.mixtures import MIXTURES
from conformance.benchmarks.detection.variants.norms import NORMS
from conformance.benchmarks.detection.variants.products import PRODUCTS
from conformance.benchmarks.detection.variants.whole import WHOLE

VARIANTS: Mapping[str, Variant] = {
    "as the paper writes it": Variant(),
    **NORMS,
    **ATTENTION,
    **PRODUCTS,
    **FUNCTIONS,
    **WHOLE,
    **MIXTURES,
}
