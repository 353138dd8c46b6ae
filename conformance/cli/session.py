"""One run from the command line: cases, progress, the results file, the report, the exit code."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from conformance.candidates.registry import load, registered, require_known
from conformance.checks.apply_known_failures import apply_known_failures, expected
from conformance.checks.catalogue import CHECKS, SMALL_GOLDENS
from conformance.checks.check import Check
from conformance.checks.known_failures import KnownFailure, matched
from conformance.checks.published import CHECK, Published, check_published, published_of
from conformance.checks.recording import Recording, header_of
from conformance.checks.run_check import run
from conformance.checks.search.plan import Plan
from conformance.cli.output import show_results
from conformance.cli.progress import progress
from conformance.cli.worker import WorkerProcess
from conformance.errors import ConformanceError, UsageError
from conformance.goldens.golden import Golden
from conformance.goldens.manifest import located
from conformance.names import unknown
from conformance.numerics.devices import is_lost, require_name
from conformance.numerics.formats import format_named
from conformance.numerics.machine import measure_early
from conformance.report.views import TEXTS
from conformance.results.case import Case
from conformance.results.result import Result


@dataclass(frozen=True)
class Session:
    """What is to be run.

    Attributes:
        implementations: names; none: every one that is registered.
        goldens: a name to a golden of one's own, or to None for the one that is stored under the name.
        chosen: whether the goldens were asked for by name; else each check has its usual ones.
        checks: patterns of checks' names; none: the values.
        shard: which of how many shares of the cases: `(1, 3)` is the first of three.
        timeout: seconds after which a case is ended; with one, cases run in another process.
    """

    implementations: Sequence[str]
    goldens: Mapping[str, Golden | None]
    device: str
    dtypes: Sequence[str]
    chosen: bool = True
    checks: Sequence[str] = ()
    require: Sequence[str] = ()
    known: Sequence[KnownFailure] = ()
    plan: Plan = field(default_factory=Plan)
    shard: tuple[int, int] = (1, 1)
    timeout: float | None = None


class Work:
    """The cases of a session, and what comes of each."""

    def __init__(self, session: Session) -> None:
        """Every check that is asked for, once, of every candidate on every golden in every dtype."""
        self._session = session
        self._published = {g: published_of(own) for g, own in session.goldens.items() if own}
        self.cases = _cases(session, self._published)
        self._known = matched(session.known, self.cases)

    @classmethod
    def of(cls, prepare: Callable[[], Session]) -> "Work":
        """Of a session that is made where it is worked on."""
        return cls(prepare())

    def result(self, case: Case) -> Result:
        """In the light of what is known to fail."""
        known = self._known.get(case, ())
        return apply_known_failures(self._made(case), case.implementation, known)

    def known(self, result: Result) -> Result:
        """The same, of how a case ended that could not say so itself: with its process, or not at all."""
        return expected(result, self._known.get(result.case, ())) if result.outcome in ("crash", "timeout") else result

    def _made(self, case: Case) -> Result:
        session, own = self._session, self._session.goldens[case.golden]
        published = self._published.get(case.golden)
        if case.check == CHECK and own and published:
            return check_published(case.implementation, own, published, case.device, case.dtype, len(self.cases))
        check, subject, runs = CHECKS[case.check], own or case.golden, len(self.cases)
        return run(check, case.implementation, subject, case.device, case.dtype, runs, session.plan, require=session.require)


def run_all(prepare: Callable[[], Session], out: Path, how: str) -> int:
    """Run every case, write `results.jsonl` and `report.html` into `out`, print the report; returns the exit code.

    `prepare` makes the session, here, and in another process where the device is lost to this one.
    """
    session = prepare()
    _require_names(session)
    measure_early(session.device)
    work = Work(session)
    which, shards = session.shard
    cases = work.cases[which - 1 :: shards]
    path = out / "results.jsonl"
    share = f"{which}/{shards}"
    header = header_of(
        session.device, session.goldens, session.plan, share, _digest(work.cases), session.implementations, len(cases)
    )
    there = WorkerProcess(partial(Work.of, prepare), session.timeout)
    with Recording(path, header) as recording, progress(len(cases)) as underway, there:
        for case in cases:
            apart = session.timeout is not None or is_lost(session.device)
            # What candidates print is no part of a report that is read by programs.
            with underway.case(case), redirect_stdout(sys.stdout if how == "pretty" else sys.stderr):
                result = work.known(there.result(case)) if apart else work.result(case)
                recording.add(result, session.goldens[case.golden], session.require)
            underway.came_of_it(result.outcome)
    results = recording.results
    show_results(results, how)
    page = out / "report.html"
    page.write_text(TEXTS["html"](results), "utf-8")
    if how == "pretty":
        print(f"\nresults: {path}\nas a page: {page}")
    assert results.footer
    return results.footer.exit_code


def _require_names(session: Session) -> None:
    """Raise `UsageError` where nothing can be run, since no name of a kind is right."""
    _require_any(session.implementations, require_known)
    _require_any(session.dtypes, format_named)
    _require_any([session.device], require_name)
    _require_any([name for name, own in session.goldens.items() if own is None], located)


def _require_any(names: Sequence[str], require: Callable[[str], object]) -> None:
    """Raise what is wrong with the first name where no name is right: a slip of the pen must not overwrite earlier results."""
    errors = []
    for name in names:
        try:
            require(name)
        except UsageError as error:
            errors.append(error)
    if names and len(errors) == len(names):
        raise errors[0]


def _digest(cases: Sequence[Case]) -> str:
    """By which shards that were run apart know each other: of what all of them together are to run."""
    return hashlib.sha256("\n".join(map(str, cases)).encode()).hexdigest()


def _cases(session: Session, published: Mapping[str, Published | None]) -> list[Case]:
    """Every check that is asked for, once, of every candidate on every golden in every dtype: candidate by candidate on each."""
    names = session.implementations or [r.name for r in registered()]
    checks = _checks(session.checks)
    found = []
    for golden, own in session.goldens.items():
        usual = [c for c in checks if session.chosen or own or c.every_golden or golden in SMALL_GOLDENS]
        for name in names:
            asked = [c.name for c in usual]
            # To look into an exported program may change how it is run: its outputs are judged as it is, too.
            if "values" in asked and "outputs" not in asked and _has_an_unobserved_self(name):
                asked.append("outputs")
            asked += [CHECK] if published.get(golden) else []
            found += [Case(name, golden, session.device, dtype, check) for dtype in session.dtypes for check in asked]
    return list(dict.fromkeys(found))


def _checks(patterns: Sequence[str]) -> list[Check]:
    """Those that a pattern matches, in the catalogue's order; `UnknownNameError` for a pattern that matches none."""
    idle = [p for p in patterns if not any(fnmatchcase(name, p) for name in CHECKS)]
    if idle:
        raise unknown("check", idle[0], CHECKS)
    return [c for name, c in CHECKS.items() if any(fnmatchcase(name, p) for p in patterns or ("values",))]


def _has_an_unobserved_self(implementation: str) -> bool:
    try:
        return hasattr(load(implementation), "unobserved")
    except ConformanceError:  # reported when it is run
        return False


def shard_of(text: str) -> tuple[int, int]:
    """`K/N` as numbers; `UsageError` unless 1 ≤ K ≤ N."""
    which, slash, count = text.partition("/")
    if not slash or not which.isdecimal() or not count.isdecimal() or not 1 <= int(which) <= int(count):
        raise UsageError(f"--shard {text}: expected K/N, as 1/3 for the first of three")
    return int(which), int(count)
