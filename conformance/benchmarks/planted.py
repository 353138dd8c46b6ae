"""Changes of torch modules, correct or wrong: each is the text of an expression that a module returns in place of its own result.

An expression may refer to the module's arguments, by position as `x` and `y` or by keyword; to its attributes (`weight`, `eps`,
`training`, submodules), and to itself as `self`; to `right(…)`, what it computes itself; and to the functions of `detection.tools`
and those below.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from conformance.benchmarks.detection.tools import evaluated

Gradient = Callable[[Tensor, Tensor], Tensor]


def plant(model: nn.Module, modules: str, expression: str, **names: Any) -> None:
    """Change what the modules return whose paths match a shell pattern.

    Args:
        model: the module that contains them.
        modules: the pattern.
        expression: what each returns.
        names: further names that the expression refers to.
    """
    chosen = [module for path, module in model.named_modules() if fnmatchcase(path, modules)]
    assert chosen, f"no module {modules}"
    for number, module in enumerate(chosen):
        of_module = {**FUNCTIONS, **names, "self": module, "right": module.forward, "number": number}
        module.forward = partial(_result, module, expression, of_module)


def _result(module: nn.Module, expression: str, names: Mapping[str, Any], *args: Any, **more: Any) -> Any:
    attributes = {**vars(module), **module._parameters, **module._modules}
    scope = {**attributes, **names, **dict(zip("xy", args, strict=False)), **more}
    return evaluated(expression, scope.__getitem__)


class _Rewritten(torch.autograd.Function):
    """A function with the value of one function and the gradient of another."""

    @staticmethod
    def forward(context: Any, x: Tensor, value: Callable[[Tensor], Tensor], gradient: Gradient) -> Tensor:
        context.save_for_backward(x)
        context.gradient = gradient
        return value(x)

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> Any:
        (x,) = context.saved_tensors
        return context.gradient(x, upstream), None, None


def rewritten(x: Tensor, value: Callable[[Tensor], Tensor], gradient: Gradient) -> Tensor:
    """Return value(x), with the gradient gradient(x, upstream)."""
    apply: Any = _Rewritten.apply
    result: Tensor = apply(x, value, gradient)
    return result


def passed(x: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
    """Return x, with the gradient gradient(upstream)."""
    return rewritten(x, Tensor.clone, lambda _, upstream: gradient(upstream))


def of(function: Callable[[Tensor], Tensor], x: Tensor, upstream: Tensor) -> Tensor:
    """Return the gradient of a function at x."""
    with torch.enable_grad():
        inner = x.detach().requires_grad_()
        (result,) = torch.autograd.grad(function(inner), inner, upstream)
    return result


def attended(
    module: Any,
    hidden: Tensor,
    mask: Tensor | None,
    softmax: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(-1),
    scaled: Callable[[Tensor, float], Tensor] = lambda scores, scale: scores * scale,
) -> tuple[Tensor, Tensor]:
    """Return what Hugging Face's self-attention returns, with another softmax or scaling."""
    projections = (getattr(module, name)(hidden) for name in ("query", "key", "value"))
    query, key, value = (x.unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2) for x in projections)
    scores = scaled(query @ key.transpose(-1, -2), query.shape[-1] ** -0.5)
    probs = softmax(scores if mask is None else scores + mask)
    return (probs @ value).transpose(1, 2).flatten(2), probs


def kept(x: Tensor, p: float) -> Tensor:
    """Return a random mask of the shape of x, whose elements are 0 with the probability p."""
    return (torch.rand(x.shape, device=x.device) >= p).to(x.dtype)


FUNCTIONS: Mapping[str, Any] = {each.__name__: each for each in (rewritten, passed, of, attended, kept)}
