"""Process-wide settings of torch and NumPy, restored after a candidate has run, so that it cannot affect the next one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


def _settings() -> tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...]:
    """Return the pair (getter, setter) of each setting."""
    import numpy as np
    import torch

    return (
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, _set_default_device),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (
            lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
        ),
        (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
        (partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")),
        (lambda: torch.get_rng_state().tolist(), lambda state: torch.set_rng_state(torch.tensor(state, dtype=torch.uint8))),
        (_float32_precision, _set_float32_precision),
        (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
        (np.geterr, lambda errors: np.seterr(**errors)),
    )


def settings_now() -> list[Any]:
    """Return the current settings.

    These are default dtype, default device, thread count, gradient mode, deterministic algorithms, autocast, torch's random state,
    float32 matmul precision (TF32), the fast path of attention, and NumPy's handling of floating-point errors.
    """
    return [get() for get, _ in _settings()]


def restore(before: list[Any]) -> None:
    """Restore the settings that `settings_now` returned."""
    for (get, put), value in zip(_settings(), before, strict=True):
        if get() != value:
            put(value)


@contextmanager
def restored() -> Iterator[None]:
    """Restore all settings at the end of the context, also after an exception."""
    before = settings_now()
    try:
        yield
    finally:
        restore(before)


def _float32_precision() -> tuple[str | None, dict[str, str]]:
    """Return the precision of float32 products by torch's two interfaces; None by the older one where it contradicts the newer."""
    import torch

    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = None
    return older, {name: place.fp32_precision for name, place in _places_of_precision().items()}


def _set_float32_precision(before: tuple[str | None, dict[str, str]]) -> None:
    """Set what `_float32_precision` returned."""
    import torch

    older, newer = before
    for name, place in _places_of_precision().items():
        place.fp32_precision = newer[name]
    if older is not None and _float32_precision()[0] != older:
        torch.set_float32_matmul_precision(older)


def _places_of_precision() -> dict[str, Any]:
    """Return the objects that have the attribute `fp32_precision` in this version of torch, by name."""
    import torch

    places = {"all": torch.backends, "cuda": torch.backends.cuda.matmul, "mkldnn": getattr(torch.backends.mkldnn, "matmul", None)}
    return {name: place for name, place in places.items() if hasattr(place, "fp32_precision")}


def _set_default_device(device: Any) -> None:
    """Set the default device; None for the CPU, since "cpu" would install a mode that disables the fast path of torch's encoder."""
    import torch

    torch.set_default_device(None if device.type == "cpu" else device)
