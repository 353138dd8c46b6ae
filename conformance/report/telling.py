"""From results to records: what the file says of a pair. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from conformance.judge.evidence import Error, Filtered, Verdict
from conformance.judge.statistics import SEPARABLE_Z
from conformance.records import ActivationRecord, CheckRecord, Fault, Footer, Sensitivity
from conformance.records import Error as ErrorRecord
from conformance.run import Result, median_rms


def check_record(result: Result) -> CheckRecord:
    """The pair's record."""
    pair = result.pair
    return CheckRecord(
        pair.implementation, pair.golden, pair.device, pair.dtype, "values", result.outcome,  # type: ignore[arg-type]
        result.reason, result.seconds, result.judged, len(result.verdicts), median_rms(result.verdicts), excludes(result.verdicts),
    )  # fmt: skip


def activation_records(result: Result) -> list[ActivationRecord]:
    """A record an activation."""
    return [_activation(result, verdict) for verdict in result.verdicts]


def _activation(result: Result, v: Verdict) -> ActivationRecord:
    pair, local = result.pair, v.local
    limits = {"rms": local.rms_threshold, "max": local.max_threshold, "filter": local.filter_threshold} if local else {}
    return ActivationRecord(
        pair.implementation, pair.golden, pair.device, pair.dtype, v.activation, v.outcome, v.role,  # type: ignore[arg-type]
        _error(local.error if local else None), _error(v.overall),
        [_fault(f) for f in local.named] if local else [],
        local.hypothesis if local else None, limits, local.excess if local and math.isfinite(local.excess) else None, v.reason,
    )  # fmt: skip


def _error(error: Error | None) -> ErrorRecord | None:
    return ErrorRecord(error.rms, error.max, error.max_abs, error.index) if error else None


def _fault(f: Filtered) -> Fault:
    return Fault(f.name, f.step, f.amplitude, f.z, f.parameter, f.estimate)


def excludes(verdicts: Iterable[Verdict]) -> list[Sensitivity]:
    """Each fault's sensitivity at the place where it would have shown least; what a pass excludes and what it cannot.

    For a fault with a parameter, the smallest value that would have been separable there: the direction is linear in it, so
    z grows with its distance from the right value.
    """
    places: defaultdict[str, list[Filtered]] = defaultdict(list)
    for verdict in verdicts:
        for f in verdict.local.filters if verdict.local else ():
            places[f.name].append(f)
    told = []
    for name, filters in places.items():
        weakest = min(filters, key=lambda f: f.expected_z)
        separable = sum(f.separable for f in filters)
        told.append(
            Sensitivity(name, weakest.step, weakest.expected_z, separable, len(filters), weakest.parameter, _smallest(filters))
        )
    return sorted(told, key=lambda s: s.expected_z)


def _smallest(filters: list[Filtered]) -> float | None:
    """The smallest wrong value of the fault's parameter that shows at the best place; None without a parameter."""
    best = max(filters, key=lambda f: f.expected_z)
    if best.parameter is None or best.right is None or best.wrong is None or best.expected_z == 0.0:
        return None
    return best.right + (best.wrong - best.right) * SEPARABLE_Z / best.expected_z


def footer(results: Iterable[Result]) -> Footer:
    """The counts of a run and its exit code: the gravest of 3 (harness), 2 (usage), 1 (does not conform, or nothing judged)."""
    results = list(results)
    codes = {r.exit_code for r in results}
    code = max(codes, default=1)
    if not any(r.ran for r in results):
        code = max(code, 1)
    return Footer(sum(r.declared for r in results), sum(r.ran for r in results), dict(Counter(r.outcome for r in results)), code)
