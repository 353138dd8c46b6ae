"""Conformance tests for BERT implementations: is it right, and if not, where, by how much and which mistake is it.

The way of one batch, from the command line to the report; each call is made by the one before it, but for those of one number:

1.  `cli.main` parses the arguments; `cli.run.run_all` makes the cases (`cli.cases`) and opens `checks.recording.Recording`.
2.  `cli.work.IsolatedWork.result` runs one case: the candidate is an `isolation.remote.RemoteCandidate`, whose module is in the
    worker (`isolation.process`, `isolation.serve`); `checks.run_check.run` opens it and the golden, and calls the entry point.
3.  `checks.judged.Judged`, the check `values`, calls `checks.run.check_values`, as the public function
    `checks.check_candidate.check` does; `checks.passes`, `checks.backward`, `checks.training` and `checks.optimizer` list what
    is asked: forward passes, backward ones, both in training mode, or steps of an optimizer.
4.  `checks.session.prepared` asks the candidate for a runner; the runner is called with the batch and yields activations: in the
    worker by `candidates.capture` (with gradients `candidates.backward`) and `candidates.stream.pairs`, here each as it is sent
    (`isolation.link`).
5.  `judge.judge.Judge.judge` takes each activation as it comes; `judge.validate.accepted_array` checks shape, dtype and finiteness.
6.  `judge.observation.Observation` cuts it into blocks; `judge.local_error.locally` judges it under each legal arithmetic:
    `judge.sweep.swept` sums errors and fault effects over blocks, with the value and the roundings of `oracle` equations
    (`judge.segment.Segment`, `judge.noise.of_segment`).
7.  Where that fails, `judge.explain_failure.explained` runs every filter, and `judge.explain.explanations` finds the faults; of
    several hidden layers `diagnosis.hidden_layers.HiddenLayersSearch` does.
8.  `judge.select_arithmetic.select_arithmetic` decides under which arithmetic each step is judged, and returns the verdicts.
9.  `judge.disambiguation.disambiguated` runs one batch more where several explanations remain.
10. `results.to_records.records_of` makes records of the result, and `results.file.Writer` writes them.
11. `report.run.run_document.document` makes a document of the records, which `report.terminal`, `report.markdown` and
    `report.html.page` render.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any
from warnings import warn

__version__ = "0.1.0"

if TYPE_CHECKING:
    from conformance.candidates.archives import Archive
    from conformance.candidates.backward import captured_with_gradients
    from conformance.candidates.capture import Showing, Tap, captured
    from conformance.candidates.command import Command
    from conformance.candidates.layouts import Layout, fused, interleaved, per_head, permuted, stacked, tied, transposed
    from conformance.candidates.module_runner import ModuleRunner
    from conformance.candidates.output_map import OutputMap
    from conformance.candidates.recorded import RecordedTrace
    from conformance.candidates.registry import Implementation
    from conformance.candidates.steps import captured_step
    from conformance.candidates.torch_implementation import TorchImplementation
    from conformance.checks.check_candidate import check
    from conformance.checks.examples import example
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

# Where each public name lives; imported when first asked for, so that the command line answers without torch.
_PUBLIC = {
    "model.architecture": ("Architecture",),
    "candidates.archives": ("Archive",),
    "model.batch": ("Batch", "TorchBatch"),
    "candidates.backward": ("captured_with_gradients",),
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
    "checks.examples": ("example",),
    "suite.parametrize": ("parametrize_with_checks",),
    "results.result": ("Result",),
    "results.file": ("read_results",),
    "checks.check_candidate": ("check",),
    "checks.trace": ("Trace", "trace"),
    "candidates.module_runner": ("ModuleRunner",),
    "candidates.registry": ("Implementation",),
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
    """The public names."""
    return sorted(__all__)


# Public names of before, kept for one release.
_DEPRECATED = {"Running": "ModuleRunner", "Seen": "OutputMap"}


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name in _DEPRECATED:
        warn(f"conformance.{name} is now conformance.{_DEPRECATED[name]}", DeprecationWarning, stacklevel=2)
        name = _DEPRECATED[name]
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    return getattr(import_module(f"conformance.{_MODULE_OF[name]}"), name)
