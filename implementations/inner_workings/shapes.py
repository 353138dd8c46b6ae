"""Reports of every tensor's shape to a listener, in the order of computation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Listener = Callable[[str, tuple[int, ...]], object]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def shape_log(listener: Listener) -> Iterator[None]:
    """Call `listener(what, shape)` for every tensor of every forward pass inside the context, in the order of computation."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def reported(what: str, x: Tensor) -> Tensor:
    """Return `x` after reporting its shape to the listener, if there is one."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        listener = _listener.get()
        if listener is not None:
            listener(what, tuple(x.shape))
    return x
