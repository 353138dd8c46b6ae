"""Recorded traces: activations in a file, which any library on any machine can have computed."""

from conformance.candidates.recorded.recorded_trace import RecordedTrace, trace_of

__all__ = ["RecordedTrace", "trace_of"]
