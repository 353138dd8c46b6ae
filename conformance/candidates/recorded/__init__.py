"""Recorded traces: files of activations, computed by any library on any machine."""

from conformance.candidates.recorded.recorded_trace import RecordedTrace, trace_of

__all__ = ["RecordedTrace", "trace_of"]
