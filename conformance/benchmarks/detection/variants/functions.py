"""Variants of the activation functions."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.rewritten import formats, functions, fused, places
from conformance.benchmarks.detection.variant import HALVES, Change, Variant, changed


def _is_no_intermediate_product(name: str) -> bool:
    return not name.endswith("intermediate.dense")


def _tanh(written: Callable[[Tensor], Tensor]) -> Change:
    """Return a change of the pooler's tanh, computed in at least float32."""

    def change(model: Bert) -> None:
        if model.pooler:
            model.pooler.activation.function = formats.at_least_float32(written)

    return change


FUNCTIONS: Mapping[str, Variant] = {
    "GELU, every operation rounded": changed(places.erf_gelus(functions.native_gelu)),
    "GELU by erf of a product, float32": changed(places.erf_gelus(formats.at_least_float32(functions.distributed_gelu))),
    "GELU by erfc": changed(places.erf_gelus(formats.at_least_float32(functions.erfc_gelu))),
    "GELU by erfc of a magnitude": changed(places.erf_gelus(formats.at_least_float32(functions.positive_gelu))),
    "GELU by ndtr": changed(places.erf_gelus(formats.at_least_float32(lambda x: x * torch.special.ndtr(x)))),
    "GELU by the normal distribution": changed(places.erf_gelus(formats.at_least_float32(functions.normal_gelu))),
    "GELU by a table of every number": changed(places.erf_gelus(functions.tabulated_gelu), dtypes=HALVES),
    "GELU of an unrounded product": Variant((fused.product_and_gelu,), exposes=_is_no_intermediate_product),
    "GELU in float64": changed(places.erf_gelus(formats.in_float64(F.gelu))),
    "tanh form by sigmoid, float32": changed(places.tanh_gelus(formats.at_least_float32(functions.tanh_gelu_by_sigmoid))),
    "tanh form by pow, float32": changed(places.tanh_gelus(functions.tanh_gelu_by_power)),
    "tanh by expm1": changed(_tanh(functions.tanh_by_expm1)),
    "tanh by sigmoid, in float32": changed(_tanh(functions.tanh_by_sigmoid), dtypes=HALVES),
}
