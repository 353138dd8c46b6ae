"""making-bert with its backward pass, through the copy of the client beside it; `--detached` detaches the mean of a norm."""

import sys
from typing import Any

import torch
from client import Unsupported, serve
from torch import Tensor, nn

from conformance.implementations.making_bert import making_bert
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint


class DetachedMean(nn.LayerNorm):
    """LayerNorm whose mean is treated as a constant by the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean.detach()) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


def prepare(architecture: dict[str, Any], weights: dict[str, Any], device: str, dtype: str) -> Any:
    if dtype not in ("float32", "float64"):
        raise Unsupported(f"NumPy has no {dtype}")
    runner = making_bert.prepare(Checkpoint(Architecture.from_config(architecture), weights), device, dtype)
    if sys.argv[1:] == ["--detached"]:
        norms = [module for module in runner.module.modules() if isinstance(module, nn.LayerNorm)]
        norms[2].__class__ = DetachedMean

    def run(inputs: dict[str, Any], source: str = "") -> dict[str, Any]:
        upstream = inputs.pop("gradient", None)
        batch = Batch.of(inputs).on(device)
        if not source:
            return {name: value.numpy(force=True) for name, value in dict(runner(batch)).items()}
        given = torch.from_numpy(upstream).to(getattr(torch, dtype))
        return {name: value.numpy(force=True) for name, value in dict(runner.gradients(batch, source, given)).items()}

    return run


serve(prepare, gradients=True)
