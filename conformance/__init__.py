"""Conformance tests for BERT implementations: is an implementation correct, and if not, which step is wrong, and by which mistake?

The path of one batch, from the command line to the report:

1. `cli.main` parses the arguments, and `cli.run.run_all` lists the cases: candidate, golden, device, dtype and check.
2. `cli.work` runs a case. The candidate is in a worker process (`isolation`), and stands in this one as a `RemoteCandidate`.
3. `checks.run_check.run_check` runs the check of a request; most judge passes with batches of their own (`checks.judgement`), and
   the laws are searched (`checks.laws.law`).
4. The worker prepares the candidate, calls its runner and returns one activation after the other; for a torch module, hooks
   capture them (`candidates`).
5. `judge.judge.Judge` judges each activation as it arrives, on the candidate's own inputs to the step, by the equations and
   rounding errors of the `oracle`, under each legal arithmetic of `numerics`. If it fails under each, `judge.search` looks for
   the mistakes of `faults` that explain it.
6. When all passes are judged, the arithmetics are selected, and tied explanations are separated by another batch.
7. `results` writes the records, and `report` renders them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from conformance.candidates.archives.archive import Archive
    from conformance.candidates.capture import Showing, Tap, captured
    from conformance.candidates.capture_gradients import captured_step, captured_with_gradients
    from conformance.candidates.layouts import Layout, fused, interleaved, per_head, permuted, stacked, tied, transposed
    from conformance.candidates.recorded_trace import RecordedTrace
    from conformance.candidates.registry import Implementation, ModuleRunner, load_implementation
    from conformance.candidates.tables import OutputMap
    from conformance.candidates.torch_implementation import TorchImplementation
    from conformance.checks.run_check import check
    from conformance.checks.trace import Trace, trace
    from conformance.errors import (
        CandidateCrash,
        CandidateError,
        ConformanceError,
        DependencyMissingError,
        RegistrationError,
        Unavailable,
        Unsupported,
        UsageError,
    )
    from conformance.goldens.custom_golden import golden_of
    from conformance.goldens.golden import Golden, load_golden
    from conformance.model.architecture import Architecture
    from conformance.model.batch import Batch, TorchBatch
    from conformance.model.checkpoint import Checkpoint
    from conformance.model.directory import load_directory
    from conformance.model.pretraining import PretrainingConventions, PretrainingCorpus, PretrainingData
    from conformance.model.training import Training, decays
    from conformance.results.file import read_results
    from conformance.results.result import Result
    from conformance.suite.parametrize import example, parametrize_with_checks

# Module of each public name. Names are imported on first access, so that the command line starts without importing torch.
_PUBLIC = {
    "model.architecture": ("Architecture",),
    "candidates.archives.archive": ("Archive",),
    "model.batch": ("Batch", "TorchBatch"),
    "candidates.capture_gradients": ("captured_step", "captured_with_gradients"),
    "candidates.capture": ("Showing", "Tap", "captured"),
    "model.checkpoint": ("Checkpoint",),
    "model.directory": ("load_directory",),
    "errors": (
        "CandidateCrash",
        "CandidateError",
        "ConformanceError",
        "DependencyMissingError",
        "RegistrationError",
        "Unavailable",
        "Unsupported",
        "UsageError",
    ),
    "goldens.golden": ("Golden", "load_golden"),
    "goldens.custom_golden": ("golden_of",),
    "candidates.layouts": ("Layout", "fused", "interleaved", "per_head", "permuted", "stacked", "tied", "transposed"),
    "suite.parametrize": ("example", "parametrize_with_checks"),
    "results.result": ("Result",),
    "results.file": ("read_results",),
    "checks.run_check": ("check",),
    "checks.trace": ("Trace", "trace"),
    "candidates.registry": ("Implementation", "ModuleRunner", "load_implementation"),
    "candidates.recorded_trace": ("RecordedTrace",),
    "model.pretraining": ("PretrainingConventions", "PretrainingCorpus", "PretrainingData"),
    "model.training": ("Training", "decays"),
    "candidates.tables": ("OutputMap",),
    "candidates.torch_implementation": ("TorchImplementation",),
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
    "Implementation",
    "Layout",
    "ModuleRunner",
    "OutputMap",
    "PretrainingConventions",
    "PretrainingCorpus",
    "PretrainingData",
    "RecordedTrace",
    "RegistrationError",
    "Result",
    "Showing",
    "Tap",
    "TorchBatch",
    "TorchImplementation",
    "Trace",
    "Training",
    "Unavailable",
    "Unsupported",
    "UsageError",
    "captured",
    "captured_step",
    "captured_with_gradients",
    "check",
    "decays",
    "example",
    "fused",
    "golden_of",
    "interleaved",
    "load_directory",
    "load_golden",
    "load_implementation",
    "parametrize_with_checks",
    "per_head",
    "permuted",
    "read_results",
    "stacked",
    "tied",
    "trace",
    "transposed",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import and return a public name on first access.

    Raises:
        AttributeError: the name is not public.
    """
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    return getattr(import_module(f"conformance.{_MODULE_OF[name]}"), name)
