"""What the judge states of a fitted fault, its name, its numbers and the places, is what the array shows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import check, load_golden
from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, prefix
from conformance.faults.fitted import FITTED, Fit, FitData
from conformance.judge.judged_elements import judged_elements
from conformance.numerics.formats import Array, Mask
from conformance.oracle import Network, Step
from conformance.report.finding_sentences import findings_of
from conformance.results.result import NamedFinding

pytestmark = pytest.mark.usefixtures("one_thread")


def _with(golden: Any = "tiny", **operations: Operation) -> tuple[NamedFinding, ...]:
    """Return the findings of a candidate with other operations in the first layer and outside of the layers."""
    return findings_of(check(Mistake("", "", "", "first", (), "", operations), golden))


def _biased(bias: Tensor) -> tuple[NamedFinding, ...]:
    """Return the findings of a candidate that adds a bias to the scores."""
    return _with(scores=lambda port, layer, query, key: OPERATIONS["scores"](port, layer, query, key) + bias)


HEADS, POSITIONS = torch.arange(4.0)[:, None, None], torch.arange(16.0)
DISTANCES = POSITIONS[:, None] - POSITIONS


@pytest.mark.parametrize("bias", [torch.tensor(0.5), 0.3 * HEADS], ids=["one for all", "one for each head"])
def test_an_offset_of_the_scores_that_is_equal_at_all_distances_is_no_bias_by_distance(bias: Tensor) -> None:
    assert [found.name for found in _biased(bias)] == [None]


@pytest.mark.parametrize(
    "bias", [torch.sin(DISTANCES), 0.3 * HEADS + 1e-4 * torch.sin(DISTANCES), (HEADS == 2) * torch.sin(DISTANCES)],
    ids=["one for all heads", "besides one for each head", "in one head"],
)  # fmt: skip
def test_a_bias_by_distance_has_its_name(bias: Tensor) -> None:
    assert [found.name for found in _biased(bias)] == ["scores-bias-by-distance"]


def _normalised(of: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[NamedFinding, ...]:
    """Return the findings of a candidate whose norms of attention use another mean and variance."""

    def norm(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
        name = f"{prefix(layer)}.attention.output.LayerNorm"
        mean, variance = of(x + skip)
        return (x + skip - mean) * variance.rsqrt() * port.weights[f"{name}.weight"] + port.weights[f"{name}.bias"]

    return _with(attention_norm=norm)


def test_a_wrong_mean_is_not_reported_as_a_wrong_deviation() -> None:
    (found,) = _normalised(lambda x: (x[..., :16].mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)))
    assert found.name == "norm-statistics-other"
    assert "error of the mean 0." in found.evidence


def test_a_wrong_deviation_is_reported_as_such() -> None:
    (found,) = _normalised(lambda x: (x.mean(-1, keepdim=True), (x - x.mean(-1, keepdim=True)).abs().mean(-1, keepdim=True) ** 2))
    assert found.name == "norm-statistics-other"
    assert "error of the deviation 0." in found.evidence


def _fitted(fault: str, name: str, error: float, change: Callable[[Array], Array]) -> tuple[Fit, Step, Mask]:
    """Return the fit of a fault to the changed result of a step of the golden `tiny`, the step, and its judged elements.

    Args:
        fault: name of the fault.
        name: activation of the first layer.
        error: the allowed error, relative to the norm's weight if there is one.
        change: function from the correct result to the changed one.
    """
    tiny = load_golden("tiny")
    network = Network(tiny.checkpoint.architecture, tiny.checkpoint.weights, tiny.batches["padded"])
    activation = network.table[f"encoder.layer.0.{name}"]
    values = dict(network.walk())
    step = network.step(activation.name, *(values[parent] for parent in activation.parents))
    judged = judged_elements(activation, network.batch, step.value.shape)
    allowed = error * np.abs(step.site.parameters.get("weight", np.ones(1))) * np.ones_like(step.value)
    (fitted,) = (one for one in FITTED if one.name == fault)
    fit = fitted.fit(step, FitData(change(step.value), judged, allowed, 6.0, network))
    assert fit is not None
    return fit, step, judged


def test_the_error_of_a_norms_mean_or_deviation_is_a_standard_deviation_and_fits_two_numbers_for_each_judged_token() -> None:
    """With errors of γ e the normalized features have errors of e, and mean and deviation over H of them errors of e / √H."""
    error = 1e-6
    fit, step, judged = _fitted("norm-statistics-other", "attention.output.LayerNorm", error, lambda y: 1.01 * y)
    assert fit.deviation == pytest.approx(error / step.value.shape[-1] ** 0.5, rel=1e-3)
    assert fit.free == 2 * judged.any(-1).sum()


def test_a_factor_is_fitted_for_each_judged_row_of_probabilities() -> None:
    fit, _, judged = _fitted("softmax-unnormalised", "attention.self.probs", 1e-6, lambda p: 1.01 * p)
    assert fit.free == judged.any(-1).sum()
