"""Several runs read as one: each case is reported once, and notes list what is missing or contradictory. Pure functions.

A case that has the same outcome in several runs is counted once. If its outcomes differ, they contradict each other, and the worst
one counts. A skip is no judgement of a candidate: if another run judged the case, that outcome counts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.errors import UsageError
from conformance.results.case import Case
from conformance.results.outcomes import ORDER
from conformance.results.records import CaseRecords, Footer, GoldenRecord, Header, Note, Results


@dataclass(frozen=True)
class RunRecords:
    """The records of a run, from its header to its footer.

    Attributes:
        header, footer: None if missing.
        source: where the run is stored, for display; may be empty.
    """

    header: Header | None
    cases: tuple[CaseRecords, ...]
    footer: Footer | None
    source: str = ""


_OfCase = Sequence[tuple[CaseRecords, str]]  # the records of a case in each run that has it, and the source of the run


def merged(runs: Sequence[RunRecords]) -> Results:
    """Return the runs merged into one.

    Raises:
        UsageError: two runs used different versions of a golden.
    """
    _require_one_version(runs)
    reported: dict[Case, list[tuple[CaseRecords, str]]] = {}
    for run in runs:
        for records in run.cases:
            reported.setdefault(records.check.case, []).append((records, run.source))
    cases = tuple(map(_counted, reported.values()))
    notes = (*_contradictions(reported), *_cut_short(runs), *_duplicates(reported.values()))
    as_it_stands = len(runs) == 1 and cases == runs[0].cases
    return Results(tuple(run.header for run in runs if run.header), cases, runs[0].footer if as_it_stands else None, notes)


def _judged(reported: _OfCase) -> _OfCase:
    return [each for each in reported if each[0].check.outcome != "skip"]


def _counted(reported: _OfCase) -> CaseRecords:
    """Return the worst of the reports, and the first of several equally bad ones."""
    return min((records for records, _ in _judged(reported) or reported), key=_severity)


def _severity(records: CaseRecords) -> tuple[int, int, int]:
    """Return a sort key; smaller values are worse."""
    check, activations = records.check, records.activations
    return ORDER.index(check.outcome), -check.exit_code, -sum(a.outcome == "fail" for a in activations)


def _contradictions(reported: Mapping[Case, _OfCase]) -> Iterator[Note]:
    for case, of_case in reported.items():
        sources: dict[str, dict[str, None]] = {}
        for records, source in _judged(of_case):
            sources.setdefault(records.check.outcome, {})[source] = None
        if len(sources) > 1:
            said = ", ".join(what + (f" in {' and '.join(by)}" if all(by) else "") for what, by in sources.items())
            yield Note("contradiction", f"{case}: {said}; {_counted(of_case).check.outcome} counts")


def _cut_short(runs: Iterable[RunRecords]) -> Iterator[Note]:
    for run in runs:
        if run.footer is None:
            after = f" after {len(run.cases)} of {run.header.cases} checks" if run.header and run.header.cases else ""
            yield Note("missing", f"the end of {run.source or 'this run'}: it was cut short{after}, and has no footer")


def _duplicates(reported: Iterable[_OfCase]) -> Iterator[Note]:
    several = [of_case for of_case in reported if len(of_case) > 1]
    alike = sum(len({records.check.outcome for records, _ in of_case}) == 1 for of_case in several)
    skipped = sum(0 < len(_judged(of_case)) < len(of_case) for of_case in several)
    if alike:
        yield Note("duplicate", f"{_checks(alike)}, with the same outcome each time; counted once")
    if skipped:
        yield Note("duplicate", f"{_checks(skipped)}, skipped in one run and not in another; what ran counts")


def _checks(n: int) -> str:
    return f"{n} check{'' if n == 1 else 's'}"


def _require_one_version(runs: Iterable[RunRecords]) -> None:
    """Raise `UsageError` if two runs used different versions of a golden, since their verdicts are not comparable."""
    seen: dict[str, tuple[GoldenRecord, RunRecords]] = {}
    for run in runs:
        for name, golden in (run.header.goldens if run.header else {}).items():
            first, other = seen.setdefault(name, (golden, run))
            if first.identity != golden.identity:
                versions = (first.version, golden.version)
                what = "{} and {}".format(*versions) if versions[0] != versions[1] else f"{versions[0]}, with other digests"
                where = f" ({other.source}; {run.source})" if other.source and run.source else ""
                rendered = f"the runs are on different versions of the golden {name}: {what}{where}"
                raise UsageError(f"{rendered}; report them apart, or run them again on one")
