"""Adapters such as LoRA: pairs of matrices of low rank that a module adds to what the checkpoint's parameters compute.

A module that is loaded with a checkpoint keeps its adapter. If the adapter was merged into the checkpoint, it is then added twice;
if it was not, the module computes another network than the checkpoint's. Either way every step after it is wrong, and one sentence
says why.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from conformance.candidates.capture import listening
from conformance.candidates.returned_value import selected
from conformance.errors import CandidateError


def low_rank_pairs(parameters: Mapping[str, torch.Tensor], width: int) -> tuple[str, ...]:
    """Return the names of the matrices that form a product of lower rank than both of its sides, as those of an adapter do.

    The parameters are those of which the checkpoint has none, and `width` is that of the module's hidden states.

    Example:
        >>> low_rank_pairs({"q.a": torch.zeros(4, 32), "q.b": torch.zeros(32, 4), "head": torch.zeros(2, 32)}, 32)
        ('q.a', 'q.b')
    """
    matrices = {name: tuple(p.shape) for name, p in parameters.items() if p.ndim == 2 and min(p.shape) < min(width, max(p.shape))}
    down, up = ({name: shape[axis] for name, shape in matrices.items() if shape[axis] == min(shape)} for axis in (0, 1))
    ranks = set(down.values()) & set(up.values())
    return tuple(name for name, shape in matrices.items() if min(shape) in ranks)


def require_inactive(module: nn.Module, names: Collection[str], call: Callable[[], Any]) -> None:
    """Raise `CandidateError` if what a module returns depends on the matrices of an adapter.

    The module is in eval mode, and `call` runs it on a batch; `names` are those of the matrices.
    """
    with torch.no_grad():
        usual = _returned(module, call)
        with _zeroed([p for name, p in module.named_parameters() if name in names]):
            without = _returned(module, call)
    if len(usual) != len(without) or not all(torch.equal(one, other) for one, other in zip(usual, without, strict=True)):
        which = f"{', '.join(sorted(names)[:2])}{f' and {len(names) - 2} more matrices' if len(names) > 2 else ''}"
        raise CandidateError(
            f"an adapter is active that the checkpoint lacks: merge it. {which} of low rank change the result and hold nothing "
            "of the checkpoint; merge them into the weights that they are added to, in peft by `merge_and_unload()`, and run that"
        )


def _returned(module: nn.Module, call: Callable[[], Any]) -> list[torch.Tensor]:
    """Return copies of the tensors that a module returns while `call` runs it, and of those that `call` returns."""
    values: list[Any] = []
    with listening([("", module, "output")], lambda _key, _call, value, _named: values.append(value)):
        values.append(call())
    return [tensor.nan_to_num().clone() for _, tensor in selected(values)]


@contextmanager
def _zeroed(parameters: Collection[nn.Parameter]) -> Iterator[None]:
    """Set parameters to zero inside the context."""
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.zero_()
        yield
    finally:
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
