"""Capture of a step of a training loop: the gradients before clipping, and the parameters after the step."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from conformance.candidates.step_gradients import captured_gradients
from conformance.model.gradients import grad

Named = Iterable[tuple[str, torch.Tensor]]


def captured_step(
    module: nn.Module, step: Callable[[], Any], *, parameters: Callable[[Named], Named] = lambda named: named
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run one step of a training loop; yield `NAME.grad` of each trained parameter, then `NAME` of each parameter.

    A gradient is the value after the last backward pass of the step and before clipping (`step_gradients`). Parameters that no
    backward pass reaches, or that require no gradient, have none.

    Args:
        module: the module that is trained.
        step: runs the forward and backward passes, clipping, and the steps of optimizer and schedule.
        parameters: converts pairs of the module's parameter names and tensors to those of the checkpoint.

    Example:
        >>> net = nn.Linear(1, 1, bias=False)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        >>> _ = net.weight.data.fill_(1.0)
        >>> def step():
        ...     optimizer.zero_grad()
        ...     net(torch.ones(1, 1)).sum().backward()
        ...     optimizer.step()
        >>> [(name, value.item()) for name, value in captured_step(net, step)]
        [('weight.grad', 1.0), ('weight', 0.5)]
    """
    named = list(module.named_parameters())
    with torch.enable_grad(), captured_gradients(module) as found:
        step()
    yield from ((grad(name), gradient) for name, gradient in parameters(found.items()))
    trained = dict(parameters((name, parameter.detach().clone()) for name, parameter in named if name in found))
    yield from trained.items()
    others = parameters((name, parameter.detach().clone()) for name, parameter in named if name not in found)
    yield from ((name, value) for name, value in others if name not in trained)
