"""Capture of gradients of an `nn.Module`: in a backward pass, with its activations, and in a step of a training loop.

A gradient is captured by a hook on the tensor at the tap. It is therefore the sum over all uses of that tensor; if the tensor is
modified in place later, it is the gradient with respect to the value before the modification. (A view that is modified in place
is no longer part of the graph; for such a view, the gradient that arrives at the operation that produced its base is captured.)
Gradients of parameters are read from `.grad` after the pass, as an optimizer reads them. The module and its parameters are
restored afterwards.

In a step of a training loop, gradients are read before they are clipped.
Between the last backward pass and clipping a loop may rescale gradients: `GradScaler.unscale_` does, and so does a division by the
number of labelled tokens. Therefore a gradient is read again after `unscale_`, for the parameters of its optimizer, and at the
first call of a clipping function of `torch.nn.utils`, for all parameters. These functions are replaced during the step. A function
that a loop imported by name before, or clipping written by hand, is not seen; then the gradient is the one that the last backward
pass, or `unscale_`, left.
"""

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any
from weakref import ref

import torch
from torch import nn

from conformance.candidates.capture import Tap, gradient_of, hooked, require_modules, returned
from conformance.errors import CandidateError, NotApplicable
from conformance.model.gradients import grad

Show = Callable[[str, torch.Tensor], Iterable[tuple[str, torch.Tensor]]]
Named = Iterable[tuple[str, torch.Tensor]]
_CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")


def _as_it_is(name: str, tensor: torch.Tensor) -> Named:
    return [(name, tensor)]


def captured_with_gradients(
    module: nn.Module,
    taps: Mapping[str, Tap],
    forward: Callable[[], Mapping[str, Any] | None],
    source: str,
    gradient: torch.Tensor,
    *,
    show: Show = _as_it_is,
    parameters: Callable[[Named], Named] = lambda named: named,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run `forward` and a backward pass from one activation; yield all activations, then the gradients under `NAME.grad`.

    A tensor that the backward pass does not reach has the gradient 0: a tapped tensor that was detached, or a parameter without
    `requires_grad`. Three kinds of gradients are not yielded: those of tensors that do not require a gradient (no parameter
    precedes them), those of a part of a tensor that is modified in place, and those of returned tensors that are not reached,
    since a compiled graph does not compute further from the tensors that it returns.

    Args:
        module: module that is run, as for `captured`.
        taps: tap of each activation by name, as for `captured`.
        forward: runs the module and may return further activations by name, as for `captured`.
        source: name of the activation at which the backward pass starts.
        gradient: ∂L/∂source, in the shape of the activation.
        show: maps (key, tensor) to the activations in the tensor, by name. It is also applied to a gradient, but only if it merely
            rearranges the elements of a tensor; otherwise the gradient is not yielded.
        parameters: converts pairs of the module's parameter names and gradients to those of the checkpoint.

    Raises:
        CandidateError: no activation named `source` is tapped or returned; or as raised by `captured`.
        NotApplicable: `source` was computed without a record for the backward pass.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 1, bias=False))
        >>> ones = torch.ones(3, 1)
        >>> found = captured_with_gradients(net, {"y": Tap("0")}, lambda: net(torch.ones(3, 2)) is None or None, "y", ones)
        >>> [(name, value.flatten().tolist()) for name, value in found][1:]
        [('y.grad', [1.0, 1.0, 1.0]), ('0.weight.grad', [3.0, 3.0])]
    """
    modules = require_modules(module, taps)
    tensors = _DifferentiableTensors()
    activations: list[tuple[str, torch.Tensor]] = []

    def see(key: str, tensor: torch.Tensor) -> None:
        activations.extend(show(key, tensor.detach().clone()))
        if tensor.requires_grad:
            tensors.add(key, tensor)

    with torch.enable_grad(), _without_gradients(module):
        with hooked(modules, taps, see):
            for name, value in (forward() or {}).items():
                see(name, returned(value, name))
        start = _start(source, tensors.seen, activations, show)
        torch.autograd.backward(start, gradient.to(start))
        of_parameters = [(name, gradient_of(p)) for name, p in module.named_parameters()]
    yield from activations
    for key, found in tensors.gradients(taps):
        if _only_rearranges(show, key, found):
            yield from ((grad(name), value) for name, value in show(key, found))
    yield from ((grad(name), value) for name, value in parameters(of_parameters))


class _DifferentiableTensors:
    """The tensors of a forward pass that require a gradient, and the gradients that arrive at them, by key.

    Attributes:
        seen: the tensors.
    """

    def __init__(self) -> None:
        self.seen: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}
        self._arrived: dict[str, torch.Tensor] = {}
        self._at_base: dict[str, torch.Tensor] = {}

    def add(self, key: str, tensor: torch.Tensor) -> None:
        """Keep a tensor, and listen for its gradient and for that of its base."""
        self.seen[key], self._versions[key] = tensor, tensor._version
        hook: Any = tensor.register_hook
        hook(partial(_keep, self._arrived, key))  # a hook that refers to `self`, and so to the tensor, would create a cycle
        _listen_at_base(tensor, partial(self._at_base.__setitem__, key))

    def gradients(self, tapped: Container[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the gradients, the last tensor's first: 0 for a tapped tensor that is not reached, none for a returned one."""
        for key in reversed(self.seen):
            found = self._arrived.get(key)
            if found is None and self.seen[key]._version != self._versions[key]:
                found = self._at_base.get(key)
            elif found is None and key in tapped:
                found = torch.zeros_like(self.seen[key])
            if found is not None:
                yield key, found


def _keep(arrived: dict[str, torch.Tensor], key: str, gradient: torch.Tensor | None) -> None:
    if gradient is not None:
        arrived[key] = gradient.detach().clone()


def _listen_at_base(tensor: torch.Tensor, put: Callable[[torch.Tensor], None]) -> None:
    """Pass the gradient of a view's base to `put`, if the view covers the whole base and is modified in place."""
    base = tensor._base
    if (
        base is None
        or base.grad_fn is None
        or base.numel() != tensor.numel()
        or not (base.is_contiguous() and tensor.is_contiguous())
    ):
        return

    def arrive(gradients: tuple[torch.Tensor | None, ...]) -> None:
        view, gradient = viewed(), gradients[number]
        if view is not None and view._version != version and gradient is not None:
            put(gradient.detach().clone().reshape(view.shape))

    # The graph holds a reference to its hooks: a strong reference to the tensor would create a cycle.
    viewed, number, version = ref(tensor), base.output_nr, tensor._version
    base.grad_fn.register_prehook(arrive)


def _start(source: str, seen: Mapping[str, torch.Tensor], yielded: Named, show: Show) -> torch.Tensor:
    """Return the differentiable tensor of the activation named `source`."""
    for key, tensor in seen.items():
        for name, part in show(key, tensor):
            if name == source:
                return part
    if source in dict(yielded):
        raise NotApplicable(f"{source} was computed without a record for a backward pass")
    raise CandidateError(f"{source}, from which the backward pass is to start, is neither tapped nor returned")


@contextlib.contextmanager
def _without_gradients(module: nn.Module) -> Iterator[None]:
    """Clear `.grad` of every parameter inside the context, and restore it afterwards."""
    before = {p: p.grad for p in module.parameters()}
    try:
        for p in before:
            p.grad = None
        yield
    finally:
        for p, kept in before.items():
            p.grad = kept


def _only_rearranges(show: Show, key: str, tensor: torch.Tensor) -> bool:
    """Return whether `show` returns each element of the tensor exactly once, so that it can be applied to a gradient."""
    if show is _as_it_is:
        return True
    count = tensor.numel()
    numbers = torch.arange(count, dtype=torch.float64, device=tensor.device).reshape(tensor.shape)
    shown = torch.cat([part.double().flatten() for _, part in show(key, numbers)])
    if len(shown) != count or bool((shown != shown.clamp(0, count - 1).round()).any()):
        return False
    return bool(torch.zeros(count, dtype=torch.bool, device=tensor.device).index_fill_(0, shown.long(), True).all())


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
