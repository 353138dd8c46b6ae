"""Torch's process-wide settings, put back after a candidate has run, so that it cannot disturb the next."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def _settings() -> tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...]:
    """How each is asked for, and set."""
    import numpy as np
    import torch

    return (
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, _set_default_device),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
        (np.geterr, lambda errors: np.seterr(**errors)),
    )


def settings_now() -> list[Any]:
    """Default dtype and device, thread count, gradient mode, deterministic algorithms, TF32 and fast paths, NumPy's errors."""
    return [get() for get, _ in _settings()]


def restore(before: list[Any]) -> None:
    """Set them to what `settings_now` gave."""
    for (get, put), value in zip(_settings(), before, strict=True):
        if get() != value:
            put(value)


@contextmanager
def restored() -> Iterator[None]:
    """All of them as they were, whatever happens inside."""
    before = settings_now()
    try:
        yield
    finally:
        restore(before)


def _set_default_device(device: Any) -> None:
    """None for the CPU: to set it by name leaves a mode behind that keeps torch's encoder off its fast path."""
    import torch

    torch.set_default_device(None if device.type == "cpu" else device)
