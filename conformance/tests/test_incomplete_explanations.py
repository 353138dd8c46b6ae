"""A mistake that leaves a part of its effect is not preferred for being the simpler explanation."""

from dataclasses import replace

import torch
from torch.nn import functional as F

from conformance import Golden, check, golden_of
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.networks import network

UPPER_HALF = -(1 << 16)  # mask of the upper sixteen bits of a float32


def _two_trained_layers(first: int, rows: int) -> Golden:
    """Return a golden with two layers of the trained network, and as many rows of its batch."""
    trained = network("minilm", 1)
    ((name, batch),) = trained.batches.items()
    moved = {f"encoder.layer.{first + layer}.": f"encoder.layer.{layer}." for layer in range(2)}
    weights = {k: v for k, v in trained.checkpoint.weights.items() if "encoder.layer" not in k}
    for old, new in moved.items():
        weights |= {k.replace(old, new): v for k, v in trained.checkpoint.weights.items() if old in k}
    architecture = replace(trained.checkpoint.architecture, num_hidden_layers=2)
    return golden_of(
        "two layers", replace(trained.checkpoint, architecture=architecture, weights=weights), {name: batch.cut(slice(rows))}
    )


def test_a_smaller_norm_is_not_a_truncated_result() -> None:
    # Truncation towards zero makes the results smaller, too; it explains them within a larger sigma, and three quarters of them.
    (found,) = check(Candidate([MISTAKES["norm-unbiased-deviation"].at(1)]), _two_trained_layers(3, 3), dtype="bfloat16").findings
    assert "norm-unbiased-deviation" in {found.name, *found.others}


def _truncated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    result = F.layer_norm(x.double(), x.shape[-1:], weight.double(), bias.double(), eps).float()
    return (result.view(torch.int32) & UPPER_HALF).view(torch.float32).to(x.dtype)


def test_a_truncated_result_is_not_a_smaller_norm() -> None:
    # Its inputs have rounding errors as large as a unit of its format, so it has but four fifths of the effect on the oracle's.
    (found,) = check(Candidate([changed("attended", _truncated)]), network("bert", 1), dtype="bfloat16").findings
    assert found.name == "result-bfloat16-truncated"
    assert found.steps == tuple(f"encoder.layer.{layer}.attention.output.LayerNorm" for layer in range(3))
