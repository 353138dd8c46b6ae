"""Devices: whether torch has one here, whether it still works, and what it is called.

What an accelerator is asked to do it does later, and an error there, a look-up outside of a table most of all, takes its whole
context with it: all that this process asks of the device from then on fails. Who asks whether it works therefore waits for it.
"""

from conformance.errors import DeviceLostError, Unavailable, UsageError

_HAD: set[str] = set()  # devices that have worked in this process


def require_device(device: str) -> None:
    """Return where the device computes.

    Raises:
        UsageError: torch knows no device of that name anywhere.
        Unavailable: torch has no such device here.
        DeviceLostError: it had.
    """
    require_name(device)
    error = _error(device)
    if error is None:
        _HAD.add(device)
    elif device in _HAD:
        raise DeviceLostError(
            f"device {device!r} is lost to this process, by an error of what ran on it before: {error}; run this by itself"
        )
    else:
        raise Unavailable(f"device {device!r} is not available here: {error}")


def require_name(device: str) -> None:
    """Raise `UsageError` where torch knows no device of that name anywhere."""
    wrong = not_a_device(device)
    if wrong is not None:
        raise UsageError(f"no device {device!r}: {wrong}")


def not_a_device(device: str) -> str | None:
    """What torch says of a text that is no device's name anywhere; None where it is one, here or elsewhere."""
    import torch

    try:
        torch.device(device)
    except RuntimeError as error:
        return _first_line(error)
    return None


def is_whole(device: str) -> bool:
    """Whether the device has finished all that it was asked for without an error, and computes."""
    return _error(device) is None


def is_lost(device: str) -> bool:
    """Whether the device has worked in this process, and no longer does."""
    return device in _HAD and not is_whole(device)


def description(device: str) -> str | None:
    """What its maker calls an accelerator; None for the CPU, and where that is not known."""
    import torch

    named = getattr(torch, device.partition(":")[0], None)
    get = getattr(named, "get_device_name", None)
    if get is None or not is_whole(device):
        return None
    return str(get(torch.device(device)))


def _error(device: str) -> str | None:
    """The first line of the error that a small sum on the device ends with, if it does; its copy back waits for all before it."""
    import torch

    try:
        torch.ones(2, device=device).sum().cpu()
    except Exception as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
