"""The parameters of a linear layer before any are loaded."""

import torch
from torch import Tensor, nn

from conformance.benchmarks.detection.planted.plant import parameter


def initial(weight: Tensor, seed: int = 0) -> tuple[nn.Parameter, nn.Parameter]:
    """Return weight and bias as `nn.Linear` draws them, uniform within ±1/√inputs, for a weight of shape (outputs, inputs)."""
    outputs, inputs = weight.shape
    generator, bound = torch.Generator().manual_seed(seed), inputs**-0.5
    drawn = torch.empty(outputs, inputs + 1).uniform_(-bound, bound, generator=generator).to(weight)
    return parameter(drawn[:, 1:]), parameter(drawn[:, 0])
