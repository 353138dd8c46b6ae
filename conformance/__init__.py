"""Conformance tests for BERT implementations: is it right, and if not, where, by how much and which mistake is it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from conformance.candidates.archives import Archive
    from conformance.candidates.capture import Showing, Tap, captured
    from conformance.candidates.layouts import Layout, fused, interleaved, per_head, stacked, tied, transposed
    from conformance.candidates.module_runner import ModuleRunner
    from conformance.candidates.torch_implementation import OutputMap, TorchImplementation
    from conformance.checks.examples import example
    from conformance.checks.run import check
    from conformance.checks.trace import Trace, trace
    from conformance.errors import (
        CandidateCrash,
        CandidateError,
        ConformanceError,
        DependencyMissingError,
        Unavailable,
        Unsupported,
        UsageError,
    )
    from conformance.goldens.custom_golden import golden_of
    from conformance.goldens.golden import Golden, load_golden
    from conformance.model.architecture import Architecture
    from conformance.model.batch import Batch, TorchBatch
    from conformance.model.checkpoint import Checkpoint, load_directory
    from conformance.results.file import read_results
    from conformance.results.result import Result
    from conformance.suite.parametrize import parametrize_with_checks

# Where each public name lives; imported when first asked for, so that the command line answers without torch.
_PUBLIC = {
    "model.architecture": ("Architecture",),
    "candidates.archives": ("Archive",),
    "model.batch": ("Batch", "TorchBatch"),
    "candidates.capture": ("Showing", "Tap", "captured"),
    "model.checkpoint": ("Checkpoint", "load_directory"),
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
    "goldens.custom_golden": ("golden_of",),
    "candidates.layouts": ("Layout", "fused", "interleaved", "per_head", "stacked", "tied", "transposed"),
    "checks.examples": ("example",),
    "suite.parametrize": ("parametrize_with_checks",),
    "results.result": ("Result",),
    "results.file": ("read_results",),
    "checks.run": ("check",),
    "checks.trace": ("Trace", "trace"),
    "candidates.module_runner": ("ModuleRunner",),
    "candidates.torch_implementation": ("OutputMap", "TorchImplementation"),
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
    "ModuleRunner",
    "OutputMap",
    "Result",
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
