"""Where a candidate computes: on a device of this machine or, if it is a recorded trace, on one that need not be here.

A trace is judged under the arithmetics of the device that it names, as what runs there would be. Its library's functions are those
of another machine, whose accuracy the table bounds and no measurement here: its verdict is the same wherever it is judged.
"""

from conformance.candidates.recorded import trace_of
from conformance.numerics.accuracy import Accuracy, known
from conformance.numerics.devices import require_device, require_name
from conformance.numerics.machine import this_machine


def require_place(implementation: object, device: str) -> None:
    """Return where an implementation can be asked for a device: one that computes here, or any that a trace can name.

    Raises:
        UsageError, Unavailable, DeviceLostError: as `require_device`; a trace raises the first alone.
    """
    (require_name if trace_of(implementation) else require_device)(device)


def inputs_device(implementation: object, device: str) -> str:
    """The device on which its inputs are put: the CPU for a trace, which only compares them."""
    return "cpu" if trace_of(implementation) else device


def functions_of(implementation: object, device: str) -> Accuracy:
    """How accurate the library functions are that it calls; raises `MachineError` where this machine's are none of float32."""
    return known() if trace_of(implementation) else this_machine(device).accuracy
