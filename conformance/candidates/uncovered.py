"""Parameters and hooks of a module that change its results, and of which the checkpoint has nothing.

A module that is loaded with a checkpoint keeps its adapters, prompts, gates and hooks. It then computes another network than the
checkpoint's, or one in which a merged adapter is added twice. Every step after them is wrong, and one sentence says why.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

T = TypeVar("T")
_Run = Callable[[], Iterable[tuple[str, Any]]]


def uncovered(module: nn.Module, ignored: Mapping[str, nn.Parameter], run: _Run) -> str:
    """Return a sentence on what changes a module's activations and is not in the checkpoint; empty if nothing does.

    Parameters are set to zero, and forward hooks removed. What is so found may be of a correct module, as a gate of 1 is: the
    sentence is of use only if the module fails.

    Args:
        module: the module, in eval mode.
        ignored: its parameters that hold nothing of the checkpoint, by name.
        run: runs the module on a batch, and yields its activations.
    """
    hooked = {name or "the module": part for name, part in module.named_modules() if part._forward_hooks or part._forward_pre_hooks}
    parameters, hooks = _acting(ignored, _zeroed, run), _acting(hooked, _unhooked, run)
    found = []
    if parameters:
        found.append(
            "an adapter is active that the checkpoint lacks: merge it, in peft by `merge_and_unload()`, or remove it; "
            f"the result is another without {_listed(parameters)}, of which the checkpoint has nothing"
        )
    if hooks:
        found.append(f"forward hooks change the result, of {_listed(hooks)}: remove them")
    return "; ".join(found)


def _acting(parts: Mapping[str, T], without: Callable[[Collection[T]], AbstractContextManager[None]], run: _Run) -> list[str]:
    """Return the names of the parts without which the activations differ, and do not if the module is run again as it is.

    Parts whose names differ in numbers alone, such as those of layers, are left out together.
    """
    groups: dict[str, list[str]] = {}
    for name in parts:
        groups.setdefault(re.sub(r"\d+", "0", name), []).append(name)
    usual = _tensors(run) if groups else []
    acting = []
    for names in groups.values():
        try:
            with without([parts[name] for name in names]):
                changed = _tensors(run)
        except Exception:  # the module does not run without them, or they cannot be set to zero: they are part of it
            continue
        if not _equal(usual, changed) and _equal(usual, _tensors(run)):
            acting += names
    return acting


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


@contextmanager
def _zeroed(parameters: Collection[nn.Parameter]) -> Iterator[None]:
    """Set parameters to zero inside the context."""
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        try:
            for parameter in parameters:
                parameter.zero_()
            yield
        finally:
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)


@contextmanager
def _unhooked(modules: Collection[nn.Module]) -> Iterator[None]:
    """Remove the forward hooks of modules inside the context."""
    tables: list[dict[int, Any]] = [table for m in modules for table in (m._forward_hooks, m._forward_pre_hooks)]
    before = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, before, strict=True):
            table.update(hooks)


def _tensors(run: _Run) -> list[torch.Tensor]:
    return [value.nan_to_num() for _, value in run() if isinstance(value, torch.Tensor)]


def _equal(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
