"""One run from the command line: cases, progress, the results file, the report, the exit code."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from pathlib import Path

from conformance.candidates.registry import load, registered, require_known
from conformance.checks.apply_known_failures import apply_known_failures, expected
from conformance.checks.catalogue import CHECKS, SMALL_GOLDENS
from conformance.checks.check import Check
from conformance.checks.known_failures import KnownFailure, matched
from conformance.checks.published import CHECK, check_published, published_of
from conformance.checks.recording import Recording, header_of
from conformance.checks.run_check import run
from conformance.checks.search.plan import Plan
from conformance.cli.output import show_results
from conformance.cli.progress import progress
from conformance.cli.worker import Limits, WorkerEndedError, WorkerProcess
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

INTERRUPTED = 130  # the exit code of shells after SIGINT


@dataclass(frozen=True)
class Session:
    """What is to be run.

    Attributes:
        implementations: names; none: every one that is registered.
        goldens: a name to a golden of one's own, or to None for the one that is stored under the name.
        chosen: whether the goldens were asked for by name; else each check has its usual ones.
        checks: patterns of checks' names; none: the values.
        shard: which of how many shares of the cases: `(1, 3)` is the first of three.
        limits: of the process in which a candidate runs.
        in_process: whether candidates run in this process, for a debugger; nothing limits them there.
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
    limits: Limits = field(default_factory=Limits)
    in_process: bool = False


class Work:
    """What a worker does for a session: a case's result, or a candidate's traits. Candidates are imported here."""

    def __init__(self, session: Session, runs: int) -> None:
        """`runs`: among how many cases the false-alarm probability is shared."""
        self._session, self._runs = session, runs
        measure_early(session.device)

    @classmethod
    def of(cls, prepare: Callable[[], Session], runs: int = 1) -> "Work":
        """Of a session that is made where it is worked on."""
        return cls(prepare(), runs)

    @property
    def is_whole(self) -> bool:
        """Whether the device still works."""
        return not is_lost(self._session.device)

    def answer(self, question: Case | str) -> Result | bool:
        """The result of a case; of an implementation's name, whether to look into it may change how it is run."""
        return _is_instrumented(question) if isinstance(question, str) else self.result(question)

    def result(self, case: Case) -> Result:
        """The result of a case, known failures applied."""
        known = [entry for entry in self._session.known if entry.matches(case)]
        return apply_known_failures(self._result(case), case.implementation, known)

    def _result(self, case: Case) -> Result:
        session, own = self._session, self._session.goldens[case.golden]
        published = published_of(own) if own else None
        if case.check == CHECK and own and published:
            return check_published(case.implementation, own, published, case.device, case.dtype, self._runs)
        subject = own or case.golden
        require = session.require
        return run(
            CHECKS[case.check], case.implementation, subject, case.device, case.dtype, self._runs, session.plan, require=require
        )


def run_all(prepare: Callable[[], Session], out: Path, how: str) -> int:
    """Run every case, write `results.jsonl` and `report.html` into `out`, print the report; returns the exit code.

    `prepare` makes the session, here and in each worker. No candidate is imported here, unless the session is `in_process`.
    """
    session = prepare()
    _require_names(session)
    measure_early(session.device)
    everything = _cases(session, partial(_asked_to_be_instrumented, prepare, session))
    known = matched(session.known, everything)
    which, shards = session.shard
    cases = everything[which - 1 :: shards]
    path, page = out.resolve() / "results.jsonl", out.resolve() / "report.html"
    share = f"{which}/{shards}"
    header = header_of(
        session.device, session.goldens, session.plan, share, _digest(everything), session.implementations, len(cases)
    )
    page.unlink(missing_ok=True)  # it shows an earlier run
    recording = Recording(path, header)
    try:
        with recording, progress(len(cases)) as underway:
            for case, result_of in _running(prepare, session, cases, len(everything)):
                # What candidates print is no part of a report that is read by programs.
                with underway.case(case), redirect_stdout(sys.stdout if how == "pretty" else sys.stderr):
                    result = _with_known(result_of(case), known.get(case, ()))
                    recording.add(result, session.goldens[case.golden], session.require)
                underway.came_of_it(result.outcome)
    except KeyboardInterrupt:
        show_results(recording.results, how)
        print(f"interrupted: {len(recording.results.cases)} of {len(cases)} checks were run; results: {path}", file=sys.stderr)
        return INTERRUPTED
    results = recording.results
    show_results(results, how)
    page.write_text(TEXTS["html"](results), "utf-8")
    if how == "pretty":
        print(f"\nresults: {out / path.name}\nas a page: {out / page.name}")
    assert results.footer
    return results.footer.exit_code


def _running(
    prepare: Callable[[], Session], session: Session, cases: Sequence[Case], runs: int
) -> Iterator[tuple[Case, Callable[[Case], Result]]]:
    """Each case with what makes its result: the candidate's own worker, or this process, until it has lost the device."""
    for _, theirs in groupby(cases, lambda case: case.implementation):
        with WorkerProcess(partial(Work.of, prepare, runs), session.limits) as worker:
            here = Work(session, runs)
            for case in theirs:
                yield case, here.result if session.in_process and here.is_whole else worker.result


def _asked_to_be_instrumented(prepare: Callable[[], Session], session: Session, implementation: str) -> bool:
    """Of the candidate itself, in a worker; one that ends it is not, and its cases say why."""
    if session.in_process:
        return _is_instrumented(implementation)
    with WorkerProcess(partial(Work.of, prepare), session.limits) as worker, suppress(TimeoutError, WorkerEndedError):
        return bool(worker.ask(implementation))
    return False


def _with_known(result: Result, known: Sequence[KnownFailure]) -> Result:
    """Known failures applied to a case that could not say so itself: that ended with its process, or not at all."""
    return expected(result, known) if result.outcome in ("crash", "timeout") else result


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


def _cases(session: Session, is_instrumented: Callable[[str], bool]) -> list[Case]:
    """Every check that is asked for, once, of every candidate on every golden in every dtype: candidate by candidate."""
    names = session.implementations or [r.name for r in registered()]
    checks = _checks(session.checks)
    published = {name for name, own in session.goldens.items() if own and published_of(own)}
    found = []
    for name in names:
        alone = _judges_outputs_alone(checks) and is_instrumented(name)
        for golden, own in session.goldens.items():
            asked = [c.name for c in checks if session.chosen or own or c.every_golden or golden in SMALL_GOLDENS]
            asked += ["outputs"] if alone and "values" in asked else []
            asked += [CHECK] if golden in published else []
            found += [Case(name, golden, session.device, dtype, check) for dtype in session.dtypes for check in asked]
    return list(dict.fromkeys(found))


def _judges_outputs_alone(checks: Sequence[Check]) -> bool:
    """Whether the values are asked for and the outputs are not, which are judged too where looking changes what runs."""
    names = {check.name for check in checks}
    return "values" in names and "outputs" not in names


def _checks(patterns: Sequence[str]) -> list[Check]:
    """Those that a pattern matches, in the catalogue's order; `UnknownNameError` for a pattern that matches none."""
    idle = [p for p in patterns if not any(fnmatchcase(name, p) for name in CHECKS)]
    if idle:
        raise unknown("check", idle[0], CHECKS)
    return [c for name, c in CHECKS.items() if any(fnmatchcase(name, p) for p in patterns or ("values",))]


def _is_instrumented(implementation: str) -> bool:
    """Whether to look into the candidate may change how it is run, as of an exported program."""
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
