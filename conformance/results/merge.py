"""Merging of several runs into one: each case is reported once, and notes list what is missing or contradictory. Pure functions.

A case that has the same outcome in several runs is counted once. If its outcomes differ, they contradict each other, and the worst
one counts. A skip is no judgement of a candidate: if another run judged the case, that outcome counts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from conformance.results.case import Case
from conformance.results.outcomes import ORDER
from conformance.results.records import CaseRecords, Note, Results
from conformance.results.shards import RunRecords, by_source, differing, incomplete, require_one_version, sources


def merged(runs: Sequence[RunRecords]) -> Results:
    """Return the runs merged into one.

    Raises:
        UsageError: two runs used different versions of a golden.
    """
    require_one_version(runs)
    reported = _by_case(runs)
    cases = tuple(_counted(of_case) for of_case in reported.values())
    notes = tuple(chain(_contradictions(reported), differing(runs), incomplete(runs), _duplicates(reported.values())))
    as_it_stands = len(runs) == 1 and cases == runs[0].cases
    return Results(tuple(run.header for run in runs if run.header), cases, runs[0].footer if as_it_stands else None, notes)


@dataclass(frozen=True)
class _Report:
    """A case as reported by one run."""

    records: CaseRecords
    source: str

    @property
    def outcome(self) -> str:
        return self.records.check.outcome

    @property
    def severity(self) -> tuple[int, int, int]:
        """A sort key; smaller values are worse."""
        check, activations = self.records.check, self.records.activations
        return ORDER.index(check.outcome), -check.exit_code, -sum(a.outcome == "fail" for a in activations)


_OfCase = Sequence[_Report]


def _by_case(runs: Iterable[RunRecords]) -> Mapping[Case, _OfCase]:
    found: dict[Case, list[_Report]] = {}
    for run in runs:
        for records in run.cases:
            found.setdefault(records.check.case, []).append(_Report(records, run.source))
    return found


def _judged(reported: _OfCase) -> _OfCase:
    return [t for t in reported if t.outcome != "skip"]


def _counted(reported: _OfCase) -> CaseRecords:
    """Return the worst of the reports, and the first of several equally bad ones."""
    return min(_judged(reported) or reported, key=lambda t: t.severity).records


def _contradictions(reported: Mapping[Case, _OfCase]) -> Iterator[Note]:
    for case, of_case in reported.items():
        outcomes = by_source((t.outcome, t.source) for t in _judged(of_case))
        if len(outcomes) > 1:
            yield Note("contradiction", f"{case}: {sources(outcomes)}; {_counted(of_case).check.outcome} counts")


def _duplicates(reported: Iterable[_OfCase]) -> Iterator[Note]:
    several = [of_case for of_case in reported if len(of_case) > 1]
    alike = sum(len({t.outcome for t in of_case}) == 1 for of_case in several)
    skipped = sum(0 < len(_judged(of_case)) < len(of_case) for of_case in several)
    if alike:
        yield Note("duplicate", f"{_checks(alike)}, with the same outcome each time; counted once")
    if skipped:
        yield Note("duplicate", f"{_checks(skipped)}, skipped in one run and not in another; what ran counts")


def _checks(n: int) -> str:
    return f"{n} check{'' if n == 1 else 's'}"
