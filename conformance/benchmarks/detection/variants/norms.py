"""Variants of norms and residual sums."""

from collections.abc import Mapping

from torch import Tensor

from conformance.benchmarks.detection.rewritten import fused, norms, places
from conformance.benchmarks.detection.variant import HALVES, Variant, changed


def _is_no_projection_back(name: str) -> bool:
    return not name.endswith(("output.dense", "output.dropout"))


def _backwards(*parts: Tensor) -> Tensor:
    """Add up the parts from the last to the first."""
    total = parts[-1]
    for part in parts[-2::-1]:
        total = total + part
    return total


def _last_two_first(*parts: Tensor) -> Tensor:
    """Add up the other parts first, then add the first part."""
    return parts[0] + _backwards(*parts[1:]) if len(parts) > 1 else parts[0]


NORMS: Mapping[str, Variant] = {
    "norm, every operation rounded": changed(places.norms(norms.native_norm)),
    "norm in float32": changed(places.norms(norms.widened_norm(norms.native_norm))),
    "norm in one pass, float32": changed(places.norms(norms.widened_norm(norms.one_pass_norm))),
    "norm of merged blocks, float32": changed(places.norms(norms.widened_norm(norms.merged_norm))),
    "norm by pairwise sums, float32": changed(places.norms(norms.widened_norm(norms.pairwise_norm))),
    "norm folded into scale and shift": changed(places.norms(norms.widened_norm(norms.folded_norm))),
    "norm with γ before the division, float32": changed(places.norms(norms.widened_norm(norms.variance_mean_norm))),
    "norm by products with ones, float32": changed(places.norms(norms.widened_norm(norms.product_norm))),
    "norm with features first, float32": changed(places.norms(norms.widened_norm(norms.features_first_norm))),
    "norm with statistics of float64": changed(places.norms(norms.widened_norm(norms.float64_statistics_norm))),
    "norm in float32, rounded before the scale": changed(places.norms(norms.rounded_before_scale_norm), dtypes=HALVES),
    "norm as a group norm": changed(places.norms(norms.group_norm)),
    "norm with stored statistics": changed(places.norms(norms.stored_statistics_norm)),
    "norm as a batch norm, float32": changed(places.norms(norms.widened_norm(norms.batch_norm))),
    "norm by torch, cast to float32": changed(places.norms(norms.cast_norm)),
    "norm of an unrounded sum": changed(fused.sum_and_norm),
    "bias, residual and norm in one": Variant((fused.bias_sum_and_norm,), exposes=_is_no_projection_back),
    "embedding norm native, others not": changed(
        places.norms(norms.widened_norm(norms.native_norm)), places.embedding_norm(norms.native_norm)
    ),
    "sums from the last to the first": changed(places.sums(_backwards)),
    "sums with the first part last": changed(places.sums(_last_two_first)),
}
