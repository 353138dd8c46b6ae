"""Checks that judge all activations that a candidate exposes on a golden, or a part of them: prepare it, call it, judge.

The candidate is prepared once and called with each batch; side effects on the process are undone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from conformance.candidates.arrays import CALLED, NOTES, UNCOMPARED, Stream, Unreadable, pairs
from conformance.candidates.torch_state import restored
from conformance.checks.candidate_device import functions_of, require_place
from conformance.checks.check import Check, Request
from conformance.checks.contract import guarded
from conformance.checks.integrity import unaltered
from conformance.checks.passes import Pass, Passes, forward_passes, viewed
from conformance.checks.search.subject import fixed_size
from conformance.diagnosis.unexposed_layers import UnexposedLayersSearch
from conformance.errors import CandidateError, FixtureError, UsageError
from conformance.judge import cache
from conformance.judge.backward_of_wrong_steps import with_forward_steps, without_gradients_through_wrong_steps
from conformance.judge.evidence import LocalJudgement, Verdict
from conformance.judge.further_batches import disambiguated, named_on_further_rows
from conformance.judge.judge import Judge
from conformance.judge.layer_order import with_one_origin
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.activations import is_layer_output, last_hidden
from conformance.model.activations import outputs as outputs_of
from conformance.model.batch import Batch
from conformance.model.gradients import is_gradient
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.formats import format_named
from conformance.numerics.function_error_bounds import FunctionErrorBounds
from conformance.numerics.machine import measure_early
from conformance.oracle import Network
from conformance.progress import part, report_progress
from conformance.results.example import Size, largest_sizes
from conformance.results.result import Result
from conformance.results.termination import Termination, run_guarded

_Judgement = tuple[Verdict, tuple[LocalJudgement, ...]]  # a verdict, and the local judgement under each hypothesis


@dataclass(frozen=True)
class Judgement(Check):
    """A check that judges activations; its function returns the passes of a request.

    Attributes:
        whole: whether all exposed activations are judged; only then are the required activations enforced.
    """

    whole: bool = False

    def run(self, request: Request) -> Result:
        """Judge the passes and return the result; no exception is raised."""
        judged = request if self.whole else replace(request, require=())
        return replace(check_values(judged, self.function), require=tuple(judged.require))


def check_values(request: Request, passes: Passes = forward_passes) -> Result:
    """Judge every activation of some passes, for example a forward pass of each batch; no exception is raised."""
    verdicts: list[Verdict] = []
    sizes: list[Size] = []

    def judged() -> Termination:
        format_named(request.case.dtype)
        if isinstance(request.require, str):
            raise UsageError(f"require is a list of patterns: [{request.require!r}]")
        golden = request.golden
        measure_early(request.case.device)
        candidate = request.candidate
        sizes.extend((batch.size, batch.length) for batch in golden.batches.values())
        try:
            with unaltered(golden, candidate):
                return _judge_passes(request, passes, verdicts)
        except FixtureError:
            verdicts.clear()  # of a golden that was altered
            raise

    with restored():
        termination = run_guarded(judged)
    # A violation of the contract before the first verdict is a result of running the candidate, too.
    executed = termination.outcome == "fail" or any(v.outcome in ("pass", "fail") for v in verdicts)
    further = {"verdicts": tuple(verdicts), "sizes": largest_sizes(sizes) if executed else ()}
    return termination.result(request.case, executed=executed, **further)


@dataclass
class _Judged:
    """What the passes of a request have yielded so far.

    Attributes:
        request: what is judged.
        functions: error bounds of the candidate's library functions.
        unexposed_layers: the search for mistakes in layers that the candidate does not expose.
        judgements: those of the activations, in the order in which they were yielded.
        notes: the last note of each of `NOTES`.
    """

    request: Request
    functions: FunctionErrorBounds
    unexposed_layers: UnexposedLayersSearch
    judgements: list[_Judgement] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def judge(self, one: Pass, passes: int) -> Judge:
        """Return the judge of one of several passes, which share the false-alarm probability."""
        case, golden = self.request.case, self.request.golden
        arithmetic = representative_hypothesis(case.dtype, case.device, self.functions).arithmetic
        return Judge(
            one.network,
            case.dtype,
            case.device,
            self.request.runs * passes,
            golden.activations.get(one.batch),
            functions=self.functions,
            depth="screen" if one.only_parameter_gradients else self.request.plan.depth,
            sigma=cache.cached_sigma(one.network, arithmetic, golden.checkpoint),
            reasons_by_activation=one.reasons_by_activation,
            unexposed_layers=self.unexposed_layers,
        )

    def on_batch(
        self, on_batch: Callable[[Batch], Pass], batch: Batch, weights_of: Collection[str] | None = None
    ) -> Sequence[Verdict]:
        """Return the verdicts on one additional batch; with `weights_of`, those on the weights of some linear layers (`Judge`)."""
        one, case = on_batch(batch), self.request.case
        judge = Judge(
            one.network,
            case.dtype,
            case.device,
            functions=self.functions,
            unexposed_layers=self.unexposed_layers,
            weights_of=weights_of,
        )
        return select_arithmetic(judge.judge(_without_notes(_called(one, judge), {})))


def _judge_passes(request: Request, passes: Passes, verdicts: list[Verdict]) -> Termination:
    """Judge the candidate in each pass and append the verdicts to `verdicts`."""
    case, candidate = request.case, request.candidate
    require_place(candidate, case.device)
    functions = functions_of(candidate, case.device)
    requested = passes(request)
    labels = [one.label if len(requested) > 1 else "" for one in requested]  # in verdicts
    judged = _Judged(request, functions, UnexposedLayersSearch(case.dtype, case.device, functions))
    terminations: dict[str, Termination] = {}
    networks = {label: one.network for label, one in zip(labels, requested, strict=True)}
    try:
        for number, one in enumerate(requested):
            judge = judged.judge(one, len(requested))
            with part(number, len(requested)):
                terminations[one.label] = run_guarded(partial(_judge_pass, labels[number], one, judge, judged))
    finally:
        verdicts += _first_mistakes(select_arithmetic(judged.judgements), networks)
    last = requested[-1]
    if last.on_batch and request.plan.depth != "screen" and all(end.outcome == "pass" for end in terminations.values()):
        again = partial(judged.on_batch, last.on_batch)
        named = named_on_further_rows(verdicts, networks, again)
        verdicts[:] = disambiguated(named, last.network, case.dtype, again)
    termination, notes = _together(terminations, verdicts, request.golden.batches), judged.notes
    kept = (UNCOMPARED, CALLED) if termination.outcome == "pass" else NOTES  # values of a pass confirm what was guessed
    return replace(termination, note="; ".join(notes[name] for name in kept if name in notes))


def _first_mistakes(verdicts: Sequence[Verdict], networks: Mapping[str, Network]) -> Iterator[Verdict]:
    """Yield the verdicts of each pass, without failures that are consequences of a wrong forward step or of the layers' order."""
    for label, network in networks.items():
        of_pass = with_one_origin([v for v in verdicts if v.batch == label], network.architecture.num_hidden_layers)
        if network.source:
            of_pass = list(with_forward_steps(without_gradients_through_wrong_steps(of_pass, network), network))
        yield from of_pass


def _called(one: Pass, judge: Judge) -> Stream:
    """Call the runner for a pass and yield its activations and notes."""
    return guarded(pairs(one.call(), judge.order, notes=True))


def _without_notes(stream: Stream, notes: dict[str, str]) -> Stream:
    """Yield the activations of a stream; add its notes to `notes`."""
    for name, value in stream:
        if name in NOTES and isinstance(value, Unreadable):
            notes[name] = value.reason
        else:
            yield name, value


def _judge_pass(label: str, one: Pass, judge: Judge, judged: _Judged) -> Termination:
    """Call the runner for one pass, judge each activation as it is yielded, and append the judgements to those of `judged`."""
    before, found, require = len(judged.judgements), judged.judgements, judged.request.require
    for verdict, judgements in _reported(judge.judge(_without_notes(_called(one, judge), judged.notes)), judge.order):
        if not (verdict.is_unexposed and one.only_parameter_gradients):
            found.append((replace(verdict, batch=label), judgements))
    if one.describe_failure and any(v.outcome == "fail" and not v.reason for v, _ in found[before:]):
        failure = one.describe_failure()
        found[before:] = [(replace(v, reason=v.reason or failure) if v.outcome == "fail" else v, of) for v, of in found[before:]]
    unexposed = [v.activation for v, _ in found[before:] if v.is_unexposed]
    idle = [p for p in require if not any(fnmatchcase(n, p) for n in judge.order)]
    if idle:
        raise UsageError(f"required activations that match nothing: {', '.join(idle)}")
    missing = [n for n in unexposed if any(fnmatchcase(n, pattern) for pattern in require)]
    if missing:
        raise CandidateError(f"required activations are not exposed: {', '.join(missing)}")
    if not one.only_parameter_gradients and judge.outputs and set(judge.outputs) <= set(unexposed):
        raise CandidateError(f"no output is exposed: a candidate yields at least one of {', '.join(judge.outputs)}")
    if one.network.source and not any(is_gradient(v.activation) and not v.is_unexposed for v, _ in found[before:]):
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


@Judgement.of(
    "values",
    proves="every exposed activation is one that a correct BERT could have computed",
    catches="any mistake, whether or not the suite has a name for it",
    remedy="Take the first origin and the mistake named there, and look the mistake up with `bert-conformance explain`.",
    every_golden=True,
    whole=True,
)
def values(request: Request) -> Sequence[Pass]:
    """Each activation is compared with the oracle's result of its step on the candidate's own inputs: the local error.

    The global error compares it with the oracle's forward pass from the token ids. A failure is explained by the sets of mistakes
    with which the oracle reproduces the candidate's array.
    """
    return forward_passes(request)


@Judgement.of(
    "outputs",
    proves="the outputs agree with a correct BERT's, judged from the token ids alone: the same output after copying the weights",
    catches="a mistake in a step that is not exposed; an export or a compiled module that is correct only while its activations "
    "are exposed",
    remedy="Run the check `values` with more activations exposed; it names the step.",
    every_golden=True,
)
def outputs(request: Request) -> Sequence[Pass]:
    """Only the outputs are looked at; a program that is modified to expose activations is run unmodified."""
    unobserved = request.of_candidate(getattr(request.candidate, "unobserved", request.candidate))
    return viewed(forward_passes(unobserved), partial(_only, _is_output))


@Judgement.of(
    "stages",
    proves="the results of the embedding and of every layer are correct, each judged from the previous one",
    catches="a mistake anywhere in a layer, located to that layer",
    remedy="Run the check `values` with more activations of that layer exposed; it names the step.",
)
def stages(request: Request) -> Sequence[Pass]:
    """Only the results of the embedding, the outputs of the layers and those of the network are looked at."""
    return viewed(forward_passes(request), partial(_only, _is_stage))


def _only(wanted: Callable[[str, Any], bool], network: Network, stream: Stream) -> Stream:
    """Yield the activations for which `wanted(name, architecture)` is true.

    Layer outputs that come after that of the last layer are yielded as well: layers are then out of order.
    """
    last, is_after_last = last_hidden(network.architecture), False
    for name, value in stream:
        if wanted(name, network.architecture) or (is_after_last and isinstance(name, str) and is_layer_output(name)):
            yield name, value
        is_after_last |= name == last


def _is_output(name: str, architecture: Any) -> bool:
    return name in outputs_of(architecture)


def _is_stage(name: str, architecture: Any) -> bool:
    return name in ("embeddings.LayerNorm", "embeddings.sum") or is_layer_output(name) or _is_output(name, architecture)
