"""Torch's process-wide settings, put back after a candidate has run, so that it cannot disturb the next."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def restored() -> Iterator[None]:
    """Default dtype and device, thread count, gradient mode, deterministic algorithms, TF32 and fast paths as they were."""
    import torch

    settings: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, _set_default_device),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    )
    before = [get() for get, _ in settings]
    try:
        yield
    finally:
        for (get, put), value in zip(settings, before, strict=True):
            if get() != value:
                put(value)


def _set_default_device(device: Any) -> None:
    """None for the CPU: to set it by name leaves a mode behind that keeps torch's encoder off its fast path."""
    import torch

    torch.set_default_device(None if device.type == "cpu" else device)
