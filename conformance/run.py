"""Running a candidate on a golden: prepare it once, call it with each batch, judge what it yields. Effects end here."""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

from conformance.batch import Batch
from conformance.candidates.registry import Implementation, Runner, as_implementation, load, name_of
from conformance.candidates.shelter import restored
from conformance.case import Case
from conformance.checkpoint import Checkpoint, rounded_weights
from conformance.errors import CandidateError, ConformanceError, DependencyMissingError
from conformance.goldens.golden import Golden
from conformance.goldens.own import open_golden
from conformance.judge.evidence import Local, Verdict
from conformance.judge.judge import Judge
from conformance.judge.settle import settle
from conformance.numerics.formats import format_named
from conformance.oracle import Network
from conformance.result import Outcome, Result

T = TypeVar("T")
Judged = list[tuple[Verdict, tuple[Local, ...]]]


def check(
    implementation: str | Any,
    golden: str | Golden = "tiny",
    device: str = "cpu",
    dtype: str = "float32",
    *,
    require: Sequence[str] = (),
    runs: int = 1,
) -> Result:
    """Judge one implementation on one golden; a frozen value, nothing is printed and nothing is raised.

    Args:
        implementation: a registered name, `module:object`, an object with `prepare`, or a function that serves as `prepare`.
        golden: a name, or a golden of one's own (`golden_of`).
        device: what the candidate is asked for: a torch device string.
        dtype: and a format's name.
        require: patterns of activations (as in a shell) that must be observed.
        runs: among how many such calls the false-alarm probability of 1e-6 is shared.
    """
    case = Case(name_of(implementation), golden if isinstance(golden, str) else golden.name, device, dtype)
    start = time.perf_counter()
    verdicts: list[Verdict] = []
    with restored():
        ending = _attempt(lambda: _run(implementation, golden, case, require, runs, verdicts))
    seconds = time.perf_counter() - start
    executed = any(v.outcome in ("pass", "fail") for v in verdicts)
    return Result(case, ending.outcome, ending.reason, ending.exit_code, ending.declared, executed, seconds, tuple(verdicts))


def ending_of(work: Callable[[], object]) -> Result | None:
    """None when `work` succeeds; else how a case that needs it ends."""

    def attempt() -> _Ending:
        work()
        return _Ending("pass")

    ending = _attempt(attempt)
    if ending.outcome == "pass":
        return None
    return Result(Case("", ""), ending.outcome, ending.reason, ending.exit_code, ending.declared)


@dataclass(frozen=True)
class _Ending:
    """How a case, or one batch of it, ended; graver ones have a higher rank."""

    outcome: Outcome
    reason: str = ""
    exit_code: int = 0
    declared: bool = True

    def __post_init__(self) -> None:
        # A surrogate in somebody's message must not keep it from being written down.
        object.__setattr__(self, "reason", self.reason.encode("utf-8", "backslashreplace").decode())

    @property
    def rank(self) -> int:
        return ("pass", "skip", "fail", "crash", "error").index(self.outcome)


class _Unsupported(Exception):
    """The candidate does not support the case; not counted as declared."""


class _Unavailable(Exception):
    """The machine lacks something; declared, and a counted skip."""


class _Crash(Exception):
    """The candidate's own code raised; the text has its traceback."""


def _attempt(work: Callable[[], _Ending]) -> _Ending:
    """Every way in which a case can end, with its exit code: what is not the candidate's doing is the harness's (3)."""
    try:
        return work()
    except _Unsupported as why:
        return _Ending("skip", str(why), declared=False)
    except (_Unavailable, DependencyMissingError) as why:
        return _Ending("skip", str(why))
    except CandidateError as error:
        return _Ending("fail", str(error), 1)
    except _Crash as error:
        return _Ending("crash", str(error), 1)
    except ConformanceError as error:
        return _Ending("error", str(error), error.exit_code)
    except Exception as error:
        text = f"the harness itself failed, please report it: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        return _Ending("error", text, 3)


def _candidates(call: Callable[[], T]) -> T:
    """Call the candidate's code. What it raises is its crash, and it may not end the process."""
    try:
        return call()
    except (CandidateError, DependencyMissingError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _Crash("".join(traceback.format_exception(error)[-1:] + traceback.format_exception(error)[:-1])) from error


def _run(
    implementation: str | Any, golden: str | Golden, case: Case, require: Sequence[str], runs: int, verdicts: list[Verdict]
) -> _Ending:
    format_named(case.dtype)
    golden = open_golden(golden) if isinstance(golden, str) else golden
    candidate = load(implementation) if isinstance(implementation, str) else as_implementation(implementation)
    checkpoint = golden.checkpoint
    _require_device(case.device)
    _require_support(candidate, checkpoint, case)
    runner = _candidates(lambda: candidate.prepare(checkpoint, case.device, case.dtype))
    weights = rounded_weights(checkpoint, case.dtype)
    judged: Judged = []
    endings = {}
    try:
        for name, batch in golden.batches.items():
            network = Network(checkpoint.architecture, weights, batch)
            judge = Judge(network, case.dtype, case.device, runs * len(golden.batches), golden.activations.get(name))
            label = name if len(golden.batches) > 1 else ""
            endings[name] = _attempt(partial(_batch, label, batch, judge, runner, case, require, judged))
    finally:
        verdicts += settle(judged)
    return _together(endings, verdicts)


def _batch(label: str, batch: Batch, judge: Judge, runner: Runner, case: Case, require: Sequence[str], judged: Judged) -> _Ending:
    """One call of the runner, judged as it yields."""
    before = len(judged)
    output = _candidates(lambda: runner(batch.on(case.device)))
    for verdict, locals_ in judge.judge(_pairs(output, judge.order)):
        judged.append((replace(verdict, batch=label), locals_))
    hidden = [v.activation for v, _ in judged[before:] if v.hidden]
    missing = [n for n in hidden if any(fnmatchcase(n, pattern) for pattern in require)]
    if missing:
        raise CandidateError(f"required activations are not observed: {', '.join(missing)}")
    if set(judge.outputs) <= set(hidden):
        raise CandidateError(f"no output is exposed: a candidate yields at least one of {', '.join(judge.outputs)}")
    return _Ending("pass")


def _together(endings: Mapping[str, _Ending], verdicts: Sequence[Verdict]) -> _Ending:
    """The gravest of the batches' endings; where all of them ran to their end, whether an activation fails."""
    batch, worst = max(endings.items(), key=lambda item: item[1].rank)
    if worst.outcome != "pass":
        where = f"batch {batch}: " if len(endings) > 1 else ""
        others = sum(e.outcome == worst.outcome for e in endings.values()) - 1
        more = f" (and {others} more batches)" if others else ""
        return replace(worst, reason=f"{where}{worst.reason}{more}")
    failed = [v for v in verdicts if v.outcome == "fail"]
    if failed:
        judged = sum(v.outcome in ("pass", "fail") for v in verdicts)
        return _Ending("fail", f"{len(failed)} of {judged} judged activations fail, the first at {failed[0].place}", 1)
    return _Ending("pass")


def _pairs(output: Any, order: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    """A mapping in the order of computation (unknown names last), or the iterable's pairs as they come."""
    if isinstance(output, Mapping):
        items = _candidates(lambda: list(output.items()))
        yield from sorted(items, key=lambda item: order.get(item[0], len(order)))
        return
    if not isinstance(output, Iterable):
        raise CandidateError(f"a runner returns a mapping or an iterable of pairs, not {type(output).__name__}")
    iterator, end = iter(output), object()
    while (item := _candidates(lambda: next(iterator, end))) is not end:
        if not isinstance(item, tuple) or len(item) != 2:
            raise CandidateError(f"a runner yields pairs of a name and an array, not {type(item).__name__}")
        yield item


def _require_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise _Unavailable(f"device {device!r} is not to be had here: {first}") from error


def _require_support(candidate: Implementation, checkpoint: Checkpoint, case: Case) -> None:
    supports = getattr(candidate, "supports", None)
    if supports is None:
        return
    reason = _candidates(lambda: supports(checkpoint.architecture, case.device, case.dtype))
    if reason is None:
        return
    if not isinstance(reason, str) or not reason:
        raise CandidateError(f"supports() returns None or a reason, not {reason!r}")
    raise _Unsupported(reason)
