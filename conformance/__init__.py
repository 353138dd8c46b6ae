"""Conformance tests for BERT implementations: is an implementation correct, and if not, which step is wrong, and by which mistake?

The path of one batch, from the command line to the report. Each step is called from an earlier one, as its indentation says, and
runs in this process unless it says `worker`. `conformance/tests/test_call_chain.py` follows a run by its calls and compares them
with this list.

1.  `cli.main` parses the arguments (`cli.arguments.parsed`) and calls `cli.commands.run`, which makes the options
      (`cli.commands._run_options`).
2.    `cli.run.run_all` lists the cases (`cli.cases.cases_of`), for which it may already ask a candidate's worker process
      (`isolation.worker_process.WorkerProcess`), and opens `checks.recording.Recording`.
3.      `cli.work.Work.result` runs one case; `cli.work.IsolatedWork` supplies the candidate as an
        `isolation.remote.RemoteCandidate`. Outputs that a checkpoint's folder publishes are compared by
        `checks.published.check_published`; everything else takes the next step.
4.        `checks.run_check.run_check` opens the candidate and the golden and calls the check's entry point, named in the catalogue
          by a string `module:function` (`checks.run_check.entry_point`): for `values`, a
          `checks.activation_checks.ActivationCheck`. A law is run by `checks.execute_law.execute`.
5.          `checks.check_values.check_values` judges the candidate in each pass. The public function `checks.public_check.check`
            calls it for `values`, and step 4 for every other check.
6.            `checks.forward_passes.forward_passes` prepares the candidate (`checks.passes.opened`) and lists the passes: it
              calls `checks.contract.require_support` and `checks.contract.prepared`, which ask the candidate, here
              `isolation.remote.RemoteCandidate.prepare`. Other checks list their passes in `checks.backward_passes`,
              `checks.training_passes` and `checks.optimizer_passes`.
7.              Worker: `isolation.worker_process._serve` receives each question, and
                `isolation.candidate_work.CandidateWork.answer` answers it. `isolation.candidate_work.CandidateWork.prepare`
                calls `checks.contract.prepared` too, now on the candidate.
8.            `checks.check_values._judge_of` makes the judge of a pass. It hands over the stored activations of the golden, the
              accumulated sigma (`judge.cache.cached_sigma`) and the number of judgements in the run, among whose activations
              `judge.judge.Judge.__init__` shares the false-alarm probability.
9.            `checks.check_values._pass` runs a pass and collects the judgements (`checks.check_values._judgements`). The runner
              (`isolation.remote.RemoteRunner.__call__`) is called through `checks.forward_passes._called` and
              `results.termination.call_candidate`.
10.             Worker: `isolation.candidate_work.CandidateWork.call` calls the candidate's runner, and
                `isolation.candidate_work.CandidateWork.next` returns one activation; a large array follows when it is needed
                (`isolation.candidate_work.CandidateWork.read`).
                The runner, for a torch module the `candidates.module_runner.ModuleRunner` that
                `candidates.torch_implementation.TorchImplementation.prepare` makes, calls `candidates.capture.captured`. It yields
                copies of what the hooks of `candidates.module_hooks.listening` see; with gradients,
                `candidates.capture_gradients.captured_with_gradients` does.
11.             `judge.judge.Judge.judge` takes each activation as it arrives (`isolation.remote.RemoteRunner._pairs`, then
                `candidates.stream.pairs`); in `checks.candidate_stream.guarded`, an exception of the candidate becomes its crash.
                `judge.validate.accepted_array` checks shape, dtype and finiteness.
12.               `judge.judge.Judge._judge_up_to` judges activations in the table's order once the output of their layer has
                  arrived, since a later one may be a mistaken step's input, and then releases them.
13.                 `judge.judge.Judge._verdict` judges one activation with those before it (`judge.observation.Observation`):
                    first the entries that must be zero (`judge.exact_requirements.violation`). If all its steps are exact,
                    `judge.failing_activation.judge_exact_steps` and `judge.exact_requirements.difference_from_exact` compare every
                    entry; with `--depth screen`, `judge.screen.screened_locally` judges it; else the next step does.
14.                   `judge.local_error.judge_locally` judges it under each legal arithmetic.
15.                     `judge.block_totals.block_totals` accumulates errors and effects of faults over the blocks: local errors
                        and, in units of the accumulated sigma, global ones. Values and rounding errors are those of the
                        `oracle` equations (`judge.segment.Segment`, `judge.noise.of_segment`).
16.                     `judge.failing_activation.judge_whole` looks for mistakes in the whole activation if it fails under an
                        arithmetic: under each, from these totals (`judge.whole_activation.WholeActivation.judge`), then as written
                        operation by operation, without a mistake (`judge.by_hand.passing_by_hand`) and with one
                        (`judge.by_hand.mistaken_by_hand`).
17.                       `judge.explanation_search.explanations` finds the faults; for segments of several unexposed layers,
                          `diagnosis.unexposed_layers.UnexposedLayersSearch.explanations` does first. Both, and `diagnose`, search
                          by `judge.search.fault_sets.explaining_sets`.
18.                     `diagnosis.unexposed_layers.UnexposedLayersSearch.with_layer_filters` adds the filters of unexposed layers
                        to judgements that pass.
19.                   `judge.judge.Judge._residual_sentences` describes a residual that no fault explains
                      (`judge.residual_description.describe_residual`). After a failure, `judge.error_role.error_role` states
                      whether a passing step amplifies the arriving error.
20.           `judge.select_arithmetic.select_arithmetic` selects the arithmetic of each kind of step, when all passes are judged,
              and returns the verdicts. `checks.check_values._first_mistakes` leaves gradients unjudged that are wrong because a
              forward step is.
21.           `judge.disambiguation.disambiguated` runs another batch for each set of explanations that remain tied, at most four,
              if every pass was complete. `checks.check_values._together` makes one outcome of all passes.
22.         `checks.repro.artifacts.with_repro` runs a failing candidate again and attaches what reproduces the failure.
23.       `checks.apply_known_failures.apply_known_failures` marks the declared failures.
24.     `checks.recording.Recording.add` converts the result to records (`results.to_records.records_of`), and
        `results.file.Writer.write` writes them: those of activations, then the files that reproduce a failure
        (`checks.repro.artifacts.write_repro`), then that of the check.
25.     `report.output_formats.REPORT_FORMATS` has the formats of a report, each with its function as a string `module:function`;
        step 2 writes the HTML page (`report.html.page.page`). Then `cli.output.show_results` builds a document from the records
        (`report.run.run_document.document`) and prints it (`report.terminal.show`), or prints another of the formats.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from conformance.candidates.archives import Archive
    from conformance.candidates.capture import Showing, Tap, captured
    from conformance.candidates.capture_gradients import captured_with_gradients
    from conformance.candidates.capture_step import captured_step
    from conformance.candidates.command import Command
    from conformance.candidates.layouts import Layout, fused, interleaved, per_head, permuted, stacked, tied, transposed
    from conformance.candidates.module_runner import ModuleRunner
    from conformance.candidates.output_map import OutputMap
    from conformance.candidates.recorded import RecordedTrace
    from conformance.candidates.registry import Implementation, load_implementation
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
    "candidates.capture_step": ("captured_step",),
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


def __getattr__(name: str) -> Any:
    """Import and return a public name on first access.

    Raises:
        AttributeError: the name is not public.
    """
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    return getattr(import_module(f"conformance.{_MODULE_OF[name]}"), name)
