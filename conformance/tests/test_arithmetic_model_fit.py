"""Agreement of the arithmetic models with correct candidates: whole distributions of residuals, and no false alarm on correct
variants."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, kurtosis

from conformance import check, load_golden
from conformance.errors import DependencyMissingError
from conformance.implementations.hugging_face import HuggingFace, run
from conformance.judge.judged_elements import judged_elements
from conformance.judge.segment import Segment
from conformance.model.batch import Batch
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


def _scaled_residuals(name: str, attention: str, dtype: str, threads: int) -> np.ndarray:
    """Return the local residuals of every linear step in sigma, computed from the candidate's own captured parents."""
    golden = load_golden(name)
    (batch,) = golden.batches.values()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        stream = HuggingFace(attention).prepare(golden.checkpoint, "cpu", dtype)(batch.on("cpu"))
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


@pytest.mark.landing(threads=1, attention="sdpa")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_errors_of_bfloat16_linear_layers_are_uniform(golden: str, attention: str, threads: int) -> None:
    """One rounding: uniform on ±√3 sigma, so RMS 1 and kurtosis 1.8; the Kolmogorov–Smirnov distance is below 0.02, about a
    hundredth more than accumulation alone blurs the edges."""
    residuals = _scaled_residuals(golden, attention, "bfloat16", threads)
    assert np.sqrt((residuals**2).mean()) == pytest.approx(1.0, abs=0.02)
    assert kurtosis(residuals, fisher=False) == pytest.approx(1.8, abs=0.05)
    assert kstest(residuals, "uniform", args=(-np.sqrt(3), 2 * np.sqrt(3))).statistic < 0.02
    assert kstest(residuals, "norm").statistic > 0.02


@pytest.mark.landing(threads=1, attention="sdpa")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_errors_of_float32_linear_layers_are_bell_shaped_and_within_sigma(golden: str, attention: str, threads: int) -> None:
    """Many roundings: a bell-shaped distribution without bias, for which sigma is an upper estimate that is not far too wide."""
    residuals = _scaled_residuals(golden, attention, "float32", threads)
    rms = np.sqrt((residuals**2).mean())
    assert 0.3 < rms < 1.0
    assert abs(residuals.mean()) < 0.05 * rms
    assert 2.5 < kurtosis(residuals, fisher=False) < 6.0
    assert kstest(residuals / rms, "norm").statistic < 0.05


class Masked(HuggingFace):
    """A candidate that masks by adding a given constant."""

    def __init__(self, constant: float) -> None:
        super().__init__("eager")
        self.constant = constant

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        model = self.build(checkpoint).to(dtype=getattr(torch, dtype)).eval()

        def runner(batch: Any) -> Any:
            shape = (*batch.input_ids.shape, batch.input_ids.shape[1])
            keys = batch.attention_mask[:, None, None, :].expand(-1, 1, shape[1], -1)
            batch.attention_mask = torch.where(keys == 1, 0.0, self.constant).to(getattr(torch, dtype))
            return run(model, batch)

        return runner


class Split(HuggingFace):
    """A candidate that runs each row of the batch separately."""

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        model = self.build(checkpoint).to(dtype=getattr(torch, dtype)).eval()

        def runner(batch: Any) -> Any:
            whole = batch.numpy().arrays()
            rows = [
                dict(run(model, Batch.of({k: v[i : i + 1] for k, v in whole.items()}).on("cpu")))
                for i in range(len(batch.input_ids))
            ]
            return {
                n: torch.cat([r[n] for r in rows]) for n in rows[0] if rows[0][n].ndim and n != "embeddings.position_embeddings"
            }

        return runner


@pytest.mark.landing(golden="tiny", dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "candidate",
    [Masked(-1e4), Masked(-1e9), Masked(float("-inf")), Masked(-3e38), Split("eager"), Split("sdpa")],
    ids=["-1e4", "-1e9", "-inf", "-3e38", "split eager", "split sdpa"],
)
def test_correct_variants_raise_no_alarm(golden: str, candidate: Any, dtype: str) -> None:
    result = check(candidate, golden, dtype=dtype)
    assert result.conforms, (result.reason, [v.activation for v in result.origins])
    rms = result.median_rms
    assert rms is not None
    assert 0.3 <= rms <= 2.0
