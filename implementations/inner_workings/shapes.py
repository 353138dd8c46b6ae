"""Report the shape of every tensor as it is computed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Listener = Callable[[str, tuple[int, ...]], object]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def shape_log(listener: Listener) -> Iterator[None]:
    """Inside, `listener(what, shape)` is called for every tensor of every forward pass, in the order of computation."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def reported(what: str, x: Tensor) -> Tensor:
    """`x`, after its shape was reported to the listener, if there is one."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        listener = _listener.get()
        if listener is not None:
            listener(what, tuple(x.shape))
    return x
