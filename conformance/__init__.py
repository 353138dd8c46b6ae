"""Conformance tests for BERT implementations: is it right, and if not, where, by how much and which mistake is it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from conformance.architecture import Architecture
    from conformance.archives import Archive
    from conformance.batch import Batch, TorchBatch
    from conformance.candidates.capture import Showing, Tap, captured
    from conformance.candidates.layouts import Layout, fused, interleaved, per_head, stacked, tied, transposed
    from conformance.candidates.running import Running
    from conformance.candidates.torch_implementation import Seen, TorchImplementation
    from conformance.checkpoint import Checkpoint, load_directory
    from conformance.checks.examples import example
    from conformance.checks.parametrize import parametrize_with_checks
    from conformance.errors import (
        CandidateCrash,
        CandidateError,
        ConformanceError,
        DependencyMissingError,
        Unavailable,
        Unsupported,
        UsageError,
    )
    from conformance.goldens.golden import Golden, load_golden
    from conformance.goldens.own import golden_of
    from conformance.result import Result
    from conformance.results_file import read_results
    from conformance.run import check
    from conformance.traces.trace import Trace, trace

# Where each public name lives; imported when first asked for, so that the command line answers without torch.
_PUBLIC = {
    "architecture": ("Architecture",),
    "archives": ("Archive",),
    "batch": ("Batch", "TorchBatch"),
    "candidates.capture": ("Showing", "Tap", "captured"),
    "checkpoint": ("Checkpoint", "load_directory"),
    "errors": (
        "CandidateCrash",
        "CandidateError",
        "ConformanceError",
        "DependencyMissingError",
        "Unavailable",
        "Unsupported",
        "UsageError",
    ),
    "goldens.golden": ("Golden", "load_golden"),
    "goldens.own": ("golden_of",),
    "candidates.layouts": ("Layout", "fused", "interleaved", "per_head", "stacked", "tied", "transposed"),
    "checks.examples": ("example",),
    "checks.parametrize": ("parametrize_with_checks",),
    "result": ("Result",),
    "results_file": ("read_results",),
    "run": ("check",),
    "traces.trace": ("Trace", "trace"),
    "candidates.running": ("Running",),
    "candidates.torch_implementation": ("Seen", "TorchImplementation"),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "Architecture",
    "Archive",
    "Batch",
    "CandidateCrash",
    "CandidateError",
    "Checkpoint",
    "ConformanceError",
    "DependencyMissingError",
    "Golden",
    "Layout",
    "Result",
    "Running",
    "Seen",
    "Showing",
    "Tap",
    "TorchBatch",
    "TorchImplementation",
    "Trace",
    "Unavailable",
    "Unsupported",
    "UsageError",
    "captured",
    "check",
    "example",
    "fused",
    "golden_of",
    "interleaved",
    "load_directory",
    "load_golden",
    "parametrize_with_checks",
    "per_head",
    "read_results",
    "stacked",
    "tied",
    "trace",
    "transposed",
]


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    return getattr(import_module(f"conformance.{_MODULE_OF[name]}"), name)
