"""Inspection of a stranger's code that may fail: signatures that Python cannot tell, and tensors without values."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from conformance.errors import UsageError


def parameters_of(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """Return the parameters of a function or class, with the annotations that are strings evaluated where all of them can be.

    Raises:
        UsageError: Python has no signature of it, as of TorchScript and of most code that is not written in Python.
    """
    with suppress(Exception):  # an annotation is any code, such as a name that is imported for type checking alone
        return list(inspect.signature(function, eval_str=True).parameters.values())
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} is a {type(function).__name__}, whose arguments Python cannot tell: give a class or function that is written "
            "in Python and not compiled by torch.jit"
        ) from error


def require_values(module: nn.Module) -> None:
    """Raise `UsageError` if a tensor of a module has no values yet."""
    lacking = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if is_lazy(tensor) or tensor.is_meta]
    if lacking:
        raise UsageError(
            f"{lacking[0]} ({len(lacking)} such tensors in all) has no values: it is on the device meta, or in a lazy module that "
            "was not run. Give a class or function that builds the module with every tensor's values"
        )
