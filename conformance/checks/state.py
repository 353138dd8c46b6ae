"""What a module holds besides its parameters and buffers: such a tensor is not saved, and stays behind when the module moves."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from conformance.errors import CandidateError


def require_registered(module: nn.Module) -> None:
    """Raise `CandidateError` with every tensor that is an attribute of a module, or in a list or mapping of one, unregistered.

    One that shares its storage with a parameter or a buffer, a tied weight say, is registered.
    """
    registered = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    found = [
        f"{path}.{name}".strip(".")
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in ("_parameters", "_buffers", "_modules")
        and any(t.untyped_storage().data_ptr() not in registered for t in _tensors(value))
    ]
    if found:
        told = f"{', '.join(found)}: neither parameter nor buffer, so not in the state dict, and left behind by `to`"
        raise CandidateError(f"{told}; register_buffer() makes it one (persistent=False where it can be computed again)")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (t for part in value.values() for t in _tensors(part))
    elif isinstance(value, list | tuple):
        yield from (t for part in value for t in _tensors(part))
