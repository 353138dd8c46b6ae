"""Agreement of the arithmetic models with correct candidates: whole distributions of residuals."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest, kurtosis

from conformance import load_golden
from conformance.errors import DependencyMissingError
from conformance.implementations.hugging_face import HuggingFace
from conformance.judge.judged_elements import judged_elements
from conformance.judge.segment import Segment
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.oracle import Network


@pytest.fixture(params=["tiny", "minilm"])
def golden(request: pytest.FixtureRequest) -> str:
    try:
        assert load_golden(request.param).checkpoint
    except DependencyMissingError as why:
        pytest.skip(str(why))
    return str(request.param)


def _scaled_residuals(name: str, dtype: str, threads: int) -> np.ndarray:
    """Return the local residuals of every linear step in sigma, computed from the candidate's own captured parents."""
    golden = load_golden(name)
    (batch,) = golden.batches.values()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        stream = HuggingFace("sdpa").prepare(golden.checkpoint, "cpu", dtype)(batch.on("cpu"))
        values = {n: v.double().numpy() for n, v in stream}
    finally:
        torch.set_num_threads(before)
    weights = rounded_weights(golden.checkpoint, dtype)
    network = Network(golden.checkpoint.architecture, weights, batch)
    hypothesis = representative_hypothesis(dtype)
    scaled = []
    for n, row in network.table.items():
        if row.kind != "linear" or n not in values or "position" not in row.axes:
            continue
        segment = Segment(network, n, {p: values[p] for p in row.parents})
        sigma = np.sqrt(segment.propagate({}, hypothesis))
        scaled.append(((values[n] - segment.value) / sigma)[judged_elements(row, batch, sigma.shape)])
    return np.concatenate(scaled)


@pytest.mark.landing(threads=1)
@pytest.mark.parametrize("threads", [1, 2])
def test_errors_of_bfloat16_linear_layers_are_uniform(golden: str, threads: int) -> None:
    """One rounding: uniform on ±√3 sigma, so RMS 1 and kurtosis 1.8; the Kolmogorov–Smirnov distance is below 0.02, about a
    hundredth more than accumulation alone blurs the edges."""
    residuals = _scaled_residuals(golden, "bfloat16", threads)
    assert np.sqrt((residuals**2).mean()) == pytest.approx(1.0, abs=0.02)
    assert kurtosis(residuals, fisher=False) == pytest.approx(1.8, abs=0.05)
    assert kstest(residuals, "uniform", args=(-np.sqrt(3), 2 * np.sqrt(3))).statistic < 0.02
    assert kstest(residuals, "norm").statistic > 0.02


@pytest.mark.landing(threads=1)
@pytest.mark.parametrize("threads", [1, 2])
def test_errors_of_float32_linear_layers_are_bell_shaped_and_within_sigma(golden: str, threads: int) -> None:
    """Many roundings: a bell-shaped distribution without bias, for which sigma is an upper estimate that is not far too wide."""
    residuals = _scaled_residuals(golden, "float32", threads)
    rms = np.sqrt((residuals**2).mean())
    assert 0.3 < rms < 1.0
    assert abs(residuals.mean()) < 0.05 * rms
    assert 2.5 < kurtosis(residuals, fisher=False) < 6.0
    assert kstest(residuals / rms, "norm").statistic < 0.05
