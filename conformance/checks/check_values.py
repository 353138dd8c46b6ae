"""Run a candidate on a golden: prepare it once, call it with each batch and judge the activations; side effects are undone."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from conformance.candidates.arrays import NOTES, UNCOMPARED, Stream, Unreadable, pairs
from conformance.candidates.registry import Implementation, load_implementation, name_of
from conformance.candidates.torch_state import restored
from conformance.checks.candidate_device import functions_of, require_place
from conformance.checks.contract import guarded
from conformance.checks.integrity import unaltered
from conformance.checks.passes import Pass, Passes, forward_passes
from conformance.checks.search.subject import fixed_size
from conformance.diagnosis.unexposed_layers import UnexposedLayersSearch
from conformance.errors import CandidateError, FixtureError, UsageError
from conformance.goldens.custom_golden import open_golden
from conformance.goldens.golden import Golden
from conformance.judge import Depth, cache
from conformance.judge.backward_of_wrong_steps import with_forward_steps, without_gradients_through_wrong_steps
from conformance.judge.disambiguation import disambiguated
from conformance.judge.evidence import LocalJudgement, Verdict
from conformance.judge.further_rows import named_on_further_rows
from conformance.judge.judge import Judge
from conformance.judge.layer_order import with_one_origin
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.batch import Batch
from conformance.model.gradients import is_gradient
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.formats import format_named
from conformance.numerics.function_error_bounds import FunctionErrorBounds
from conformance.numerics.machine import measure_early
from conformance.oracle import Network
from conformance.progress import part, report_progress
from conformance.results.candidate_time import waiting
from conformance.results.case import Case
from conformance.results.example import Size, largest_sizes
from conformance.results.result import Result
from conformance.results.termination import Termination, run_guarded

_Notes = dict[str, str]  # the last note of each of `NOTES`
_Judgement = tuple[Verdict, tuple[LocalJudgement, ...]]  # a verdict, and the local judgement under each hypothesis


def check_values(
    implementation: str | Any,
    golden: str | os.PathLike[str] | Golden = "tiny",
    device: str = "cpu",
    dtype: str = "float32",
    *,
    require: Sequence[str] = (),
    runs: int = 1,
    depth: Depth = "full",
    passes: Passes = forward_passes,
) -> Result:
    """Judge every activation that one implementation exposes on one golden; arguments as in `checks.run_check.check`.

    `passes` returns the passes to run, for example a forward pass of each batch, or backward passes as well.
    """
    golden = os.fspath(golden) if isinstance(golden, os.PathLike) else golden
    case = Case(name_of(implementation), getattr(golden, "name", str(golden)), str(device), str(dtype))
    verdicts: list[Verdict] = []
    sizes: list[Size] = []

    def judged() -> Termination:
        candidate, opened = _opened(implementation, golden, case, require)
        sizes.extend((batch.size, batch.length) for batch in opened.batches.values())
        try:
            with unaltered(opened, candidate):
                return _judge_passes(candidate, opened, case, require, runs, depth, passes, verdicts)
        except FixtureError:
            verdicts.clear()  # of a golden that was altered
            raise

    with restored():
        termination = run_guarded(judged)
    # A violation of the contract before the first verdict is a result of running the candidate, too.
    executed = termination.outcome == "fail" or any(v.outcome in ("pass", "fail") for v in verdicts)
    return termination.result(case, executed=executed, verdicts=tuple(verdicts), sizes=largest_sizes(sizes) if executed else ())


def _opened(implementation: str | Any, golden: str | Golden, case: Case, require: Sequence[str]) -> tuple[Implementation, Golden]:
    """Return the candidate and the golden; raise `UsageError` for invalid arguments."""
    format_named(case.dtype)
    if isinstance(require, str):
        raise UsageError(f"require is a list of patterns: [{require!r}]")
    golden = open_golden(golden) if isinstance(golden, str) else golden
    if not isinstance(golden, Golden):
        raise UsageError(f"a golden is a name or what golden_of() makes, not {golden!r}")
    measure_early(case.device)
    with waiting():
        return load_implementation(implementation), golden


def _judge_passes(
    candidate: Implementation,
    golden: Golden,
    case: Case,
    require: Sequence[str],
    runs: int,
    depth: Depth,
    passes: Passes,
    verdicts: list[Verdict],
) -> Termination:
    """Judge the candidate in each pass and append the verdicts to `verdicts`."""
    require_place(candidate, case.device)
    functions = functions_of(candidate, case.device)
    judged: list[_Judgement] = []
    notes: _Notes = {}
    terminations = {}
    requested = passes(candidate, golden, case)
    unexposed_layers = UnexposedLayersSearch(case.dtype, case.device, functions)
    try:
        for number, one in enumerate(requested):
            judge = _judge_of(one, golden, case, runs * len(requested), depth, functions, unexposed_layers)
            label = _label(one, requested)
            with part(number, len(requested)):
                terminations[one.label] = run_guarded(partial(_pass, label, one, judge, require, judged, notes))
    finally:
        verdicts += _first_mistakes(select_arithmetic(judged), {_label(one, requested): one.network for one in requested})
    on_batch = requested[-1].on_batch
    if on_batch is not None and depth != "screen" and all(termination.outcome == "pass" for termination in terminations.values()):
        again = partial(_verdicts_on_batch, on_batch, case, functions, unexposed_layers)
        named = named_on_further_rows(verdicts, {_label(one, requested): one.network for one in requested}, again)
        verdicts[:] = disambiguated(named, requested[-1].network, case.dtype, again)
    termination = _together(terminations, verdicts, golden.batches)
    if termination.outcome == "pass":  # then values confirm the mapping
        return replace(termination, note=notes.get(UNCOMPARED, ""))
    return replace(termination, note="; ".join(notes[name] for name in NOTES if name in notes))


def _judge_of(
    one: Pass,
    golden: Golden,
    case: Case,
    runs: int,
    depth: Depth,
    functions: FunctionErrorBounds,
    unexposed_layers: UnexposedLayersSearch,
) -> Judge:
    """Return the judge of a pass on the golden's own batch, one of `runs` judgements that share the false-alarm probability."""
    arithmetic = representative_hypothesis(case.dtype, case.device, functions).arithmetic
    return Judge(
        one.network,
        case.dtype,
        case.device,
        runs,
        golden.activations.get(one.batch),
        functions=functions,
        depth="screen" if one.only_parameter_gradients else depth,
        sigma=cache.cached_sigma(one.network, arithmetic, golden.checkpoint),
        reasons_by_activation=one.reasons_by_activation,
        unexposed_layers=unexposed_layers,
    )


def _label(one: Pass, requested: Sequence[Pass]) -> str:
    """Return the name of a pass in verdicts, which is empty if it is the only one."""
    return one.label if len(requested) > 1 else ""


def _first_mistakes(verdicts: Sequence[Verdict], networks: Mapping[str, Network]) -> Iterator[Verdict]:
    """Yield the verdicts of each pass, without failures that are consequences of a wrong forward step or of the layers' order."""
    for label, network in networks.items():
        of_pass = with_one_origin([v for v in verdicts if v.batch == label], network.architecture.num_hidden_layers)
        if network.source:
            of_pass = list(with_forward_steps(without_gradients_through_wrong_steps(of_pass, network), network))
        yield from of_pass


def _verdicts_on_batch(
    on_batch: Callable[[Batch], Pass],
    case: Case,
    functions: FunctionErrorBounds,
    unexposed_layers: UnexposedLayersSearch,
    batch: Batch,
    weights_of: Collection[str] | None = None,
) -> Sequence[Verdict]:
    """Return the verdicts on one additional batch; with `weights_of`, those on the weights of some linear layers (`Judge`)."""
    one = on_batch(batch)
    judge = Judge(
        one.network, case.dtype, case.device, functions=functions, unexposed_layers=unexposed_layers, weights_of=weights_of
    )
    return select_arithmetic(_judgements(one, judge, {}))


def _judgements(one: Pass, judge: Judge, notes: _Notes) -> Iterator[_Judgement]:
    """Call the runner for one pass, and return the judgements of its activations, each judged as it is yielded.

    Its notes are added to `notes`.
    """
    return judge.judge(_without_notes(guarded(pairs(one.call(), judge.order, notes=True)), notes))


def _without_notes(stream: Stream, notes: _Notes) -> Stream:
    """Yield the activations of a stream; add its notes to `notes`."""
    for name, value in stream:
        if name in NOTES and isinstance(value, Unreadable):
            notes[name] = value.reason
        else:
            yield name, value


def _pass(label: str, one: Pass, judge: Judge, require: Sequence[str], judged: list[_Judgement], notes: _Notes) -> Termination:
    """Call the runner for one pass, judge each activation as it is yielded, and append the judgements to `judged`.

    Its notes are added to `notes`.
    """
    before = len(judged)
    for verdict, judgements in _reported(_judgements(one, judge, notes), judge.order):
        if not (verdict.is_unexposed and one.only_parameter_gradients):
            judged.append((replace(verdict, batch=label), judgements))
    if one.describe_failure and any(v.outcome == "fail" and not v.reason for v, _ in judged[before:]):
        failure = one.describe_failure()
        judged[before:] = [(replace(v, reason=v.reason or failure) if v.outcome == "fail" else v, of) for v, of in judged[before:]]
    unexposed = [v.activation for v, _ in judged[before:] if v.is_unexposed]
    idle = [p for p in require if not any(fnmatchcase(n, p) for n in judge.order)]
    if idle:
        raise UsageError(f"required activations that match nothing: {', '.join(idle)}")
    missing = [n for n in unexposed if any(fnmatchcase(n, pattern) for pattern in require)]
    if missing:
        raise CandidateError(f"required activations are not exposed: {', '.join(missing)}")
    if not one.only_parameter_gradients and judge.outputs and set(judge.outputs) <= set(unexposed):
        raise CandidateError(f"no output is exposed: a candidate yields at least one of {', '.join(judge.outputs)}")
    if one.network.source and not any(is_gradient(v.activation) and not v.is_unexposed for v, _ in judged[before:]):
        raise CandidateError("no gradient is exposed: a backward pass yields NAME.grad for activations and parameters")
    return Termination("pass")


def _together(terminations: Mapping[str, Termination], verdicts: Sequence[Verdict], batches: Mapping[str, Batch]) -> Termination:
    """Return the most severe of the passes' terminations or, if all passes completed, whether an activation fails."""
    batch, worst = max(terminations.items(), key=lambda item: item[1].rank)
    if worst.outcome != "pass":
        where = f"batch {batch}: " if len(terminations) > 1 else ""
        others = sum(e.outcome == worst.outcome for e in terminations.values()) - 1
        more = f" (and {others} more batch{'es' * (others > 1)})" if others else ""
        return replace(worst, reason=f"{where}{_only_size_that_runs(terminations, batches)}{worst.reason}{more}")
    failed = [v for v in verdicts if v.outcome == "fail"]
    if failed:
        return Termination("fail", _counted(failed, sum(v.outcome in ("pass", "fail") for v in verdicts)), 1, by_values=True)
    return Termination("pass")


def _counted(failed: Sequence[Verdict], observed: int) -> str:
    """Return how many activations fail and where the first is; those that break the contract are not judged."""
    wrong = [v for v in failed if v.local is not None]
    refused, judged, first = len(failed) - len(wrong), observed - len(failed) + len(wrong), failed[0].place
    if observed == 1:
        return f"the {'judged' if wrong else 'exposed'} activation {'fails' if wrong else 'breaks the contract'}: {first}"
    breaks = f"{refused} of {observed} exposed activations break{'s' * (refused == 1)} the contract" if refused else ""
    fails = f"{len(wrong)} of {judged} judged activations fail{'s' * (len(wrong) == 1)}" if wrong else ""
    return f"{', '.join(filter(None, (fails, breaks)))}{', the first at' if len(failed) > 1 else ':'} {first}"


def _only_size_that_runs(terminations: Mapping[str, Termination], batches: Mapping[str, Batch]) -> str:
    """Return a message if batches of one size run and all batches of other sizes crash; otherwise an empty text."""
    ran = [batches[name] for name, termination in terminations.items() if termination.outcome == "pass" and name in batches]
    others = [batches[name] for name, termination in terminations.items() if termination.outcome == "crash" and name in batches]
    if not others or len(ran) + len(others) < len(batches):
        return ""
    for what, axis in (("length", 1), ("batch size", 0)):
        sizes = {batch.input_ids.shape[axis] for batch in ran}
        if len(sizes) == 1 and not sizes & {batch.input_ids.shape[axis] for batch in others}:
            return fixed_size(what, sizes.pop())
    return ""


def _reported(verdicts: Iterable[_Judgement], order: Mapping[str, int]) -> Iterator[_Judgement]:
    """Yield the verdicts, and report to the progress watcher which activation is judged next."""
    names = list(order)
    report_progress(names[0], 0.0)
    for verdict, judgements in verdicts:
        done = order.get(verdict.activation, -1) + 1
        if 0 < done < len(names):
            report_progress(names[done], done / len(names))
        yield verdict, judgements
