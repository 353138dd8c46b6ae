"""Views of a candidate, and its device: one of this machine or, for a recorded trace, one that need not be present.

A view filters or inspects the activations, for the checks that judge a part of them.

A trace is judged under the arithmetics of the device that it names. Its library functions are those of another machine, so their
error bounds are taken from the table and not from measurements on this machine; the verdict is the same wherever the trace is
judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.candidates.arrays import Stream, pairs
from conformance.candidates.recorded_trace import RecordedTrace, trace_of
from conformance.candidates.registry import supports_of
from conformance.checks.contract import named_features
from conformance.model.activations import table
from conformance.numerics.devices import require_device, require_name
from conformance.numerics.function_error_bounds import FunctionErrorBounds, table_bounds
from conformance.numerics.machine import this_machine

StreamView = Callable[[Any, Stream], Stream]


@dataclass(frozen=True)
class ViewedCandidate:
    """A candidate whose stream a function filters or inspects.

    Attributes:
        candidate: the candidate.
        view_of: function of (checkpoint, device, dtype) that returns a function of a batch and the stream of its activations.
    """

    candidate: Any
    view_of: Callable[[Any, str, str], StreamView]

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the candidate names."""
        return named_features(self.candidate)

    def supports(self, architecture: Any, device: str, dtype: str) -> str | None:
        """Return the reason why the candidate does not support a case, or None."""
        supports = supports_of(self.candidate)
        return supports(architecture, device, dtype) if supports else None

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        """Return the candidate's runner, whose activations pass through the function."""
        view, runner = self.view_of(checkpoint, device, dtype), self.candidate.prepare(checkpoint, device, dtype)
        return lambda batch: view(batch, pairs(runner(batch), table(checkpoint.architecture)))


def without_view(implementation: object) -> object:
    """Return the candidate that is viewed; an implementation that is no `ViewedCandidate` is returned as it is.

    Where a candidate runs, and on which machine its activations were computed, does not depend on a view.
    """
    return implementation.candidate if isinstance(implementation, ViewedCandidate) else implementation


def require_place(implementation: object, device: str) -> None:
    """Require that an implementation can use a device: one that is present or, for a trace, any valid device name.

    Raises:
        UsageError, Unavailable, DeviceLostError: as raised by `require_device`; for a trace, only `UsageError`.
    """
    (require_name if _trace_of(implementation) else require_device)(device)


def inputs_device(implementation: object, device: str) -> str:
    """Return the device of an implementation's inputs: the CPU for a trace, which only compares them."""
    return "cpu" if _trace_of(implementation) else device


def functions_of(implementation: object, device: str) -> FunctionErrorBounds:
    """Return the error bounds of an implementation's library functions; raise `MachineError` if one is too large."""
    return table_bounds() if _trace_of(implementation) else this_machine(device).error_bounds


def _trace_of(implementation: object) -> RecordedTrace | None:
    return trace_of(without_view(implementation))
