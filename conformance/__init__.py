"""Conformance tests for BERT implementations: is an implementation correct, and if not, which step is wrong, and by which mistake?

The path of one batch, from the command line to the report. Each step is called from the previous one; the functions named within
one step are listed in no such order.

1.  `cli.main` parses the arguments; `cli.run.run_all` builds the cases (`cli.cases`) and opens `checks.recording.Recording`.
2.  `cli.work.IsolatedWork.result` runs one case. The candidate is an `isolation.remote.RemoteCandidate`, whose module lives in the
    worker process (`isolation.process`, `isolation.serve`); `checks.run_check.run` opens the candidate and the golden and calls the
    entry point of the check.
3.  `checks.activation_checks.ActivationCheck`, the check `values`, calls `checks.check_values.check_values`, as the public function
    `checks.public_check.check` does. `checks.passes`, `checks.backward_passes`, `checks.training_passes` and
    `checks.optimizer_passes` list the requested passes: forward, backward, both in training mode, or optimizer steps.
4.  `checks.contract.prepared` asks the candidate for a runner. The runner is called with the batch and yields activations: in the
    worker through `candidates.capture` (with gradients `candidates.capture_gradients`) and `candidates.stream.pairs`, and in this
    process as each one arrives over the link (`isolation.link`).
5.  `judge.judge.Judge.judge` receives each activation; `judge.validate.accepted_array` checks its shape, dtype and finiteness.
6.  `judge.observation.Observation` splits it into blocks; `judge.local_error.locally` judges it under each legal arithmetic:
    `judge.sweep.swept` accumulates errors and fault effects over blocks, using the value and the rounding errors of the `oracle`
    equations (`judge.segment.Segment`, `judge.noise.of_segment`).
7.  If the activation fails, `judge.failing_activation.explained` runs every filter, and
    `judge.explanation_search.explanations` finds the faults; for segments of several hidden layers,
    `diagnosis.hidden_layers.HiddenLayersSearch` does so.
8.  `judge.select_arithmetic.select_arithmetic` selects the arithmetic of each step and returns the verdicts.
9.  `judge.disambiguation.disambiguated` runs one more batch if several explanations remain.
10. `results.to_records.records_of` converts the result to records, and `results.file.Writer` writes them.
11. `report.run.run_document.document` builds a document from the records; `report.terminal`, `report.markdown` and
    `report.html.page` render it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any
from warnings import warn

__version__ = "0.1.0"

if TYPE_CHECKING:
    from conformance.candidates.archives import Archive
    from conformance.candidates.capture import Showing, Tap, captured
    from conformance.candidates.capture_gradients import captured_with_gradients
    from conformance.candidates.command import Command
    from conformance.candidates.layouts import Layout, fused, interleaved, per_head, permuted, stacked, tied, transposed
    from conformance.candidates.module_runner import ModuleRunner
    from conformance.candidates.output_map import OutputMap
    from conformance.candidates.recorded import RecordedTrace
    from conformance.candidates.registry import Implementation, load_implementation
    from conformance.candidates.steps import captured_step
    from conformance.candidates.torch_implementation import TorchImplementation
    from conformance.checks.attached_examples import example
    from conformance.checks.public_check import check
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
    from conformance.suite.parametrize import parametrize_with_checks

# Module of each public name. Names are imported on first access, so that the command line starts without importing torch.
_PUBLIC = {
    "model.architecture": ("Architecture",),
    "candidates.archives": ("Archive",),
    "model.batch": ("Batch", "TorchBatch"),
    "candidates.capture_gradients": ("captured_with_gradients",),
    "candidates.capture": ("Showing", "Tap", "captured"),
    "model.checkpoint": ("Checkpoint",),
    "candidates.command": ("Command",),
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
    "checks.attached_examples": ("example",),
    "suite.parametrize": ("parametrize_with_checks",),
    "results.result": ("Result",),
    "results.file": ("read_results",),
    "checks.public_check": ("check",),
    "checks.trace": ("Trace", "trace"),
    "candidates.module_runner": ("ModuleRunner",),
    "candidates.registry": ("Implementation", "load_implementation"),
    "candidates.recorded": ("RecordedTrace",),
    "candidates.steps": ("captured_step",),
    "model.pretraining": ("PretrainingConventions", "PretrainingCorpus", "PretrainingData"),
    "model.training": ("Training", "decays"),
    "candidates.output_map": ("OutputMap",),
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
    "Command",
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


# Former public names, kept for one release.
_DEPRECATED = {"Running": "ModuleRunner", "Seen": "OutputMap"}


def __getattr__(name: str) -> Any:
    """Import and return a public name on first access.

    Raises:
        AttributeError: the name is not public.
    """
    if name in _DEPRECATED:
        warn(f"conformance.{name} is now conformance.{_DEPRECATED[name]}", DeprecationWarning, stacklevel=2)
        name = _DEPRECATED[name]
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    return getattr(import_module(f"conformance.{_MODULE_OF[name]}"), name)
