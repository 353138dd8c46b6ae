"""Capture of a step of a training loop: the gradients before clipping, and the parameters after the step.

Between the last backward pass and clipping a loop may rescale gradients: `GradScaler.unscale_` does, and so does a division by the
number of labelled tokens. Therefore a gradient is read again after `unscale_`, for the parameters of its optimizer, and at the
first call of a clipping function of `torch.nn.utils`, for all parameters. These functions are replaced during the step. A function
that a loop imported by name before, or clipping written by hand, is not seen; then the gradient is the one that the last backward
pass, or `unscale_`, left.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import nn

from conformance.candidates.capture import gradient_of
from conformance.model.gradients import grad

_CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")


@contextmanager
def captured_gradients(module: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Return a dictionary that receives the gradients of the module's parameters, by name, while the context is open."""
    gradients = _Gradients(module)
    with ExitStack() as opened:
        for name, parameter in gradients.parameters.items():
            listen: Any = parameter.register_post_accumulate_grad_hook
            opened.callback(listen(partial(gradients.accumulated, name)).remove)
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in _CLIPPING:
                if hasattr(owner, name):
                    opened.enter_context(_replaced(owner, name, gradients.before_clipping))
        opened.enter_context(_replaced(torch.amp.GradScaler, "unscale_", gradients.after_unscaling))
        yield gradients.found


class _Gradients:
    """The gradients of a module's parameters in a step, and whether they have been clipped since the last backward pass."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.found: dict[str, torch.Tensor] = {}
        self._are_clipped = False

    def accumulated(self, name: str, parameter: torch.Tensor) -> None:
        """Record the gradient of a parameter that a backward pass has reached."""
        self._are_clipped = False
        self._record([(name, parameter)])

    def before_clipping(self, clip: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record all gradients unless they are clipped already, and clip."""
        if not self._are_clipped:
            self._record(self.parameters.items())
        self._are_clipped = True
        return clip(*args, **kwargs)

    def after_unscaling(self, unscale: Callable[..., Any], scaler: Any, optimizer: torch.optim.Optimizer) -> Any:
        """Unscale the gradients of an optimizer's parameters, and record them unless they are clipped already."""
        result = unscale(scaler, optimizer)
        unscaled = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not self._are_clipped:
            self._record((name, p) for name, p in self.parameters.items() if id(p) in unscaled)
        return result

    def _record(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, parameter in parameters:
            if parameter.grad is not None:
                self.found[name] = gradient_of(parameter).detach().clone()


@contextmanager
def _replaced(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Replace a function by `around`, which receives the function and its arguments."""
    own = getattr(owner, name)

    @wraps(own)
    def called(*args: Any, **kwargs: Any) -> Any:
        return around(own, *args, **kwargs)

    setattr(owner, name, called)
    try:
        yield
    finally:
        setattr(owner, name, own)


Named = Iterable[tuple[str, torch.Tensor]]


def captured_step(
    module: nn.Module, step: Callable[[], Any], *, parameters: Callable[[Named], Named] = lambda named: named
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run one step of a training loop; yield `NAME.grad` of each trained parameter, then `NAME` of each parameter.

    A gradient is the value after the last backward pass of the step and before clipping. Parameters that no
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
