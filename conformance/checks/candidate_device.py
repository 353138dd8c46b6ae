"""The device of a candidate: one of this machine or, for a recorded trace, one that need not be present.

A trace is judged under the arithmetics of the device that it names. Its library functions are those of another machine, so their
error bounds are taken from the table and not from measurements on this machine; the verdict is the same wherever the trace is
judged.
"""

from conformance.candidates.recorded_trace import trace_of
from conformance.numerics.devices import require_device, require_name
from conformance.numerics.function_error_bounds import FunctionErrorBounds, table_bounds
from conformance.numerics.machine import this_machine


def require_place(implementation: object, device: str) -> None:
    """Require that an implementation can use a device: one that is present or, for a trace, any valid device name.

    Raises:
        UsageError, Unavailable, DeviceLostError: as raised by `require_device`; for a trace, only `UsageError`.
    """
    (require_name if trace_of(implementation) else require_device)(device)


def inputs_device(implementation: object, device: str) -> str:
    """Return the device of an implementation's inputs: the CPU for a trace, which only compares them."""
    return "cpu" if trace_of(implementation) else device


def functions_of(implementation: object, device: str) -> FunctionErrorBounds:
    """Return the error bounds of an implementation's library functions; raise `MachineError` if one is too large."""
    return table_bounds() if trace_of(implementation) else this_machine(device).error_bounds
