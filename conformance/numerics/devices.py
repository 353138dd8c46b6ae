"""Devices: whether torch has a device on this machine, whether it still works, and what it is called.

An accelerator executes work asynchronously, and an error there (most often an out-of-range look-up) destroys its whole context:
every later request of this process to the device fails. Checking whether a device works therefore waits for all pending work.
"""

from conformance.errors import DeviceLostError, Unavailable, UsageError
from conformance.names import nearest_names, suggestion

USUAL = ("cpu", "cuda", "mps", "xpu")  # names that torch defines on every machine; they are suggested for misspelt ones
_HAD: set[str] = set()  # Devices that have worked in this process.


def require_device(device: str) -> None:
    """Return if the device is able to compute.

    Raises:
        UsageError: torch does not define a device of this name on any machine.
        Unavailable: the device has not worked in this process.
        DeviceLostError: the device has worked earlier in this process, but no longer does.
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
    """Check the name of a device.

    Raises:
        UsageError: torch does not define a device of this name on any machine.
    """
    wrong = not_a_device(device)
    if wrong is not None:
        meant = suggestion(nearest_names(device.partition(":")[0], USUAL))
        raise UsageError(f"no device {device!r}{f'; {meant}' if meant else f': {wrong}'}")


def not_a_device(device: str) -> str | None:
    """Return torch's error message for a text that is not a device name; None for a valid name, available here or not."""
    if device in USUAL:  # without importing torch, which takes seconds
        return None
    import torch

    try:
        torch.device(device)
    except RuntimeError as error:
        return _first_line(error)
    return None


def is_whole(device: str) -> bool:
    """Return whether the device has finished all pending work without an error and is able to compute."""
    return _error(device) is None


def loss_of(device: str) -> str | None:
    """Return the first line of the error of a device that has worked in this process but no longer does, or None."""
    return _error(device) if device in _HAD else None


def judging_device(device: str) -> str | None:
    """Return the device on which the output of a candidate on `device` is judged; None if that is in memory, by NumPy.

    The judge computes in float64, which not every accelerator has; it has been tried on CUDA alone.
    """
    import torch

    return device if device.partition(":")[0] == "cuda" and torch.cuda.is_available() else None


def description(device: str) -> str | None:
    """Return the vendor's name of an accelerator; None for the CPU, or if the name is unknown or the device does not work."""
    import torch

    named = getattr(torch, device.partition(":")[0], None)
    get = getattr(named, "get_device_name", None)
    if get is None or not is_whole(device):
        return None
    return str(get(torch.device(device)))


def _error(device: str) -> str | None:
    """Return the first line of the error that a small computation on the device raises, or None.

    The result is copied back to the CPU, which waits for all earlier work on the device.
    """
    import torch

    try:
        torch.ones(2, device=device).sum().cpu()
    except Exception as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
