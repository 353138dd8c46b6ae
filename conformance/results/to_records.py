"""Conversion of results to records. Pure functions; everything that is shown is made from the records."""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import starmap
from typing import Any

import msgspec

from conformance.faults.fitted import DESCRIPTIONS
from conformance.judge.evidence import Error, FilterResult, LocalJudgement, Verdict
from conformance.judge.number_words import figure
from conformance.results.example import Example
from conformance.results.outcomes import FAILING
from conformance.results.records import (
    ActivationRecord,
    CaseRecords,
    CheckRecord,
    CounterexampleRecord,
    FaultRecord,
    Footer,
    PlaceRecord,
    Results,
    Sensitivity,
)
from conformance.results.result import Counterexample, Result

MOST_LOCATED = 6  # failing activations of a check for which the location of the error is stored
LARGEST = sys.float_info.max


def results_of(results: Sequence[Result]) -> Results:
    """Return results as they would be read from a file without a header."""
    cases = tuple(records_of(r) for r in results)
    return Results((), cases, footer(case.check for case in cases))


def records_of(result: Result) -> CaseRecords:
    """Return the records of a case."""
    return CaseRecords(check_record(result), tuple(activation_records(result)))


def check_record(result: Result) -> CheckRecord:
    """Return the record of the check."""
    judged, activations = result.coverage
    same: dict[str, Any] = {f.name: getattr(result, f.name) for f in fields(result) if f.name in CheckRecord.__struct_fields__}
    of_search = {"tried": result.searched.tried, "worst": _finite(result.searched.worst)} if result.searched else {}
    same |= vars(result.case) | of_search | {"counterexample": _counterexample(result), "median_rms": result.median_rms}
    judge_seconds = result.seconds - result.candidate_seconds
    return CheckRecord(
        **same, judged=judged, activations=activations, excludes=excludes(result.verdicts), judge_seconds=judge_seconds
    )


def _counterexample(result: Result) -> CounterexampleRecord | None:
    found = result.counterexample
    if found is None:
        return None
    plain = found.example.plain()
    runs = [Example(run.batch).plain()["batch"] for run in found.runs.values()]
    words = None if found.words is None else [list(row) for row in found.words]
    return CounterexampleRecord(
        found.network, plain["batch"], plain["variation"], runs, found.script, found.origin, words, _place(found)
    )


def _place(found: Counterexample) -> PlaceRecord | None:
    broken = found.broken
    if broken is None or broken.place is None or not math.isfinite(broken.allowed):
        return None
    made, expected = (float(v) if math.isfinite(v) else None for v in broken.place.values)
    return PlaceRecord(broken.place.activation, broken.place.first, made, expected, broken.allowed)


def activation_records(result: Result) -> list[ActivationRecord]:
    """Return a record for each activation and batch."""
    places, kinds = _shown(result.verdicts), {verdict.activation: verdict.kind for verdict in result.verdicts}
    return [_activation(result, verdict, kinds, places=id(verdict) in places) for verdict in result.verdicts]


def _shown(verdicts: Iterable[Verdict]) -> set[int]:
    """Return the ids of the failing verdicts for which the location of the error is stored: the first one and the worst ones."""
    failed = [v for v in verdicts if v.outcome in ("fail", "xfail") and v.local]
    worst = sorted(failed, key=lambda v: -(v.local.excess if v.local else 0.0))[:MOST_LOCATED]
    return {id(v) for v in (*failed[:1], *worst)}


def _activation(result: Result, v: Verdict, kinds: Mapping[str, str], *, places: bool) -> ActivationRecord:
    local, spread = v.local, v.local.distribution if v.local else None
    same = {name: getattr(v, name) for name in ("batch", "activation", "outcome", "role", "reason", "backward_of")}
    same |= {name: value for name, value in vars(result.case).items() if name != "check"}
    limits = {"rms": local.rms_threshold, "max": local.max_threshold, "filter": local.filter_threshold} if local else {}
    return ActivationRecord(
        **same,
        local=_error(local.error if local else None),
        global_error=_error(v.global_error),
        faults=[_fault(f, kinds) for f in local.named] if local else [],
        arithmetic=local.hypothesis if local else None,
        limits=limits,
        excess=local.excess if local and math.isfinite(local.excess) else None,
        alternatives=[[_fault(f, kinds) for f in e.faults] for e in local.alternatives] if local else [],
        anatomy=[*v.residual_description, *(_closed_forms(local) if local else ())],
        spread=spread if spread is None or places else replace(spread, strips=(), tokens=()),
        rests_on=local.rests_on if local else "",
    )


def _closed_forms(local: LocalJudgement) -> Iterator[str]:
    """Yield `0.1767767 = 1/√32 = 1/√(the hidden size)` for each number of the best explanation that has a closed form."""
    for fault in local.named:
        if fault.estimate and fault.estimate.closed_form:
            yield f"{figure(fault.estimate.value, fault.estimate.deviation)} = {fault.estimate.closed_form}"


def _error(error: Error | None) -> Error | None:
    return Error(_finite(error.rms), _finite(error.max), min(error.max_abs, LARGEST), error.index) if error else None


def _finite(value: float | None) -> float | None:
    """Return a value limited to the largest finite number, since JSON has no infinity."""
    return None if value is None else min(value, LARGEST)


def _fault(f: FilterResult, kinds: Mapping[str, str]) -> FaultRecord:
    e = f.estimate
    return FaultRecord(
        f.name,
        f.step,
        f.amplitude,
        min(f.z, LARGEST),
        parameter=e.parameter if e else None,
        estimate=e.value if e else None,
        deviation=e.deviation if e else None,
        right=e.right if e else None,
        kind=kinds.get(f.step, ""),
        is_description=f.name in DESCRIPTIONS,
    )


def excludes(verdicts: Iterable[Verdict]) -> list[Sensitivity]:
    """Return the sensitivity to each fault, in the order of its expected z at the place where it is least visible.

    This states which faults a pass excludes and which it cannot. A pass confirms a number to within the deviation that would have
    been separable at the place where the number is least visible, and not at all if that is beyond the usual deviation.
    """
    places: defaultdict[str, dict[tuple[int, str], list[FilterResult]]] = defaultdict(dict)
    for i, verdict in enumerate(verdicts):
        for f in verdict.local.filters if verdict.local else ():
            places[f.name].setdefault((i, f.step), []).append(f)
    return sorted(starmap(_sensitivity, places.items()), key=lambda s: s.expected_z)


def _sensitivity(name: str, places: Mapping[tuple[int, str], Sequence[FilterResult]]) -> Sensitivity:
    """Return the sensitivity to a fault, given its filters at each place: of the usual mistake, and of small deviations."""
    clearest = [max(filters, key=lambda f: f.expected_z) for filters in places.values()]
    weakest, separable = min(clearest, key=lambda f: f.expected_z), sum(f.separable for f in clearest)
    found = Sensitivity(name, weakest.step, weakest.expected_z, separable, len(places))
    numbers = [(f.confirmed, f.step) for filters in places.values() for f in filters if f.confirmed]
    if not numbers:
        return found
    least, at = max(numbers, key=lambda number: abs(number[0].deviation))
    smallest = least.right + least.deviation if separable == len(places) and math.isfinite(least.deviation) else None
    return msgspec.structs.replace(found, parameter=least.parameter, right=least.right, smallest=smallest, at=at)


def exit_code_of(check: CheckRecord) -> int:
    """Return the exit code of a check's outcome, independently of the recorded one, except that an error may be the caller's."""
    if check.outcome == "error":
        return check.exit_code if check.exit_code in (1, 2) else 3
    return 1 if check.outcome in FAILING else 0


def footer(checks: Iterable[CheckRecord]) -> Footer:
    """Return the counts and the exit code of a run.

    The exit code is the highest of 3 (harness), 2 (usage) and 1 (does not conform, or nothing judged), otherwise 0.
    """
    checks = list(checks)
    code = max(map(exit_code_of, checks), default=1)
    if not any(c.executed for c in checks):
        code = max(code, 1)
    return Footer(sum(c.declared for c in checks), sum(c.executed for c in checks), dict(Counter(c.outcome for c in checks)), code)
