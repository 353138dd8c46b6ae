"""Known failures: a TOML file that declares which checks of which candidates fail, and why.

    [[known-failure]]
    check = "values"
    reason = "the norm's epsilon is 1e-5 until the next release"
    issue = "https://…/17"
    activation = "encoder.layer.*.LayerNorm"    # optional: where the check fails; other activations must pass
    fault = "epsilon"                           # optional, with an activation: the fault that must be found there
    device = "cuda"       # optional shell-style pattern, like check, implementation, golden and dtype

Every name in an entry must exist: in this run or, if the entry is for another run, as a registered candidate, a stored golden or
another known name. An unregistered candidate or a custom checkpoint that is not part of the run cannot be distinguished from a
misspelling; put its entries into a separate file.

A known failure that fails is reported as xfail. One that passes is reported as xpass, which is a failure if the check is
deterministic. All checks are deterministic except searches that draw different examples on each run.
`apply_known_failures` applies the entries to a result. A candidate may provide its own file, whose path is its
attribute `known_failures`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from conformance.candidates.registry import Implementation, load_implementation
from conformance.checks.validate_patterns import missing
from conformance.errors import ConformanceError, UsageError
from conformance.judge.evidence import Verdict
from conformance.model.files import read_toml, reading
from conformance.results.case import Case
from conformance.results.result import Result

_PATTERNS = ("check", "implementation", "golden", "device", "dtype")
Load = Callable[[Any], Implementation]


@dataclass(frozen=True)
class KnownFailure:
    """One entry of the file; `where` is the location of the entry in it."""

    check: str
    reason: str
    issue: str = ""
    activation: str = ""
    fault: str = ""
    implementation: str = "*"
    golden: str = "*"
    device: str = "*"
    dtype: str = "*"
    where: str = field(default="", compare=False)

    def matches(self, case: Case) -> bool:
        """Return whether the patterns of the entry match a case."""
        return all(fnmatchcase(getattr(case, name), getattr(self, name)) for name in _PATTERNS)

    def __str__(self) -> str:
        """Return the reason, followed by the issue in parentheses if there is one."""
        return f"{self.reason} ({self.issue})" if self.issue else self.reason


def read(path: Path) -> list[KnownFailure]:
    """Return the entries of a file; raise `UsageError`, with the entry and what is wrong with it, if the file is not valid."""
    with reading(path, "known failures", UsageError):
        found = read_toml(path)
        entries = found.get("known-failure", [])
        if set(found) - {"known-failure"} or not isinstance(entries, list):
            raise UsageError(f"{path} holds {', '.join(found)}; expected [[known-failure]] tables alone")
        return [_entry(entry, f"{path}, entry {i}") for i, entry in enumerate(entries, 1)]


def _entry(entry: object, where: str) -> KnownFailure:
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is no table: {entry!r:.40}")
    allowed = ("check", "reason", "issue", "activation", "fault", *_PATTERNS[1:])
    unknown = sorted(set(entry) - set(allowed))
    lacking = [key for key in ("check", "reason") if not entry.get(key)]
    lacking += ["activation, which its fault is found at"] if entry.get("fault") and not entry.get("activation") else []
    wrong = [key for key, value in entry.items() if not isinstance(value, str)]
    if unknown or lacking or wrong:
        rendered = [
            f"{what} {', '.join(keys)}" for what, keys in (("unknown", unknown), ("lacks", lacking), ("no text:", wrong)) if keys
        ]
        raise UsageError(f"{where}: {'; '.join(rendered)}; an entry may have {', '.join(allowed)}")
    return KnownFailure(**entry, where=where)


def matched(entries: Sequence[KnownFailure], cases: Iterable[Case], *, named: bool = True) -> dict[Case, list[KnownFailure]]:
    """Return the entries of each case that has any.

    An entry for a check, device, dtype, golden or candidate that exists but is not part of this run belongs to another run and may
    remain without a match. `named` says whether every candidate is loaded by its name; if one is an object, others may be objects
    unknown to this run.

    Raises:
        UsageError: if an entry names something that does not exist, or matches no case and does not belong to another run.
    """
    cases = list(cases)
    require_existing(entries, cases, named=named)
    idle = [e for e in entries if not any(e.matches(case) for case in cases) and not _is_of_another_run(e, cases)]
    if idle:
        rendered = "; ".join(
            f"{e.where}: check {e.check!r} of {e.implementation} on {e.golden}, {e.device}, {e.dtype}".removeprefix(": ")
            for e in idle
        )
        raise UsageError(f"known failures that match nothing that is run: {rendered}")
    return {case: found for case in cases if (found := [e for e in entries if e.matches(case)])}


def _is_of_another_run(entry: KnownFailure, cases: Sequence[Case]) -> bool:
    """Return whether one pattern of the entry matches nothing in the cases of this run."""
    return any(not any(fnmatchcase(getattr(case, name), getattr(entry, name)) for case in cases) for name in _PATTERNS)


def require_existing(entries: Iterable[KnownFailure], cases: Sequence[Case], *, named: bool = True) -> None:
    """Raise `UsageError` with all entries that have a pattern that matches nothing, neither in these cases nor elsewhere."""
    run = {what: {getattr(case, what) for case in cases} for what in _PATTERNS}

    @cache  # most entries share patterns
    def wrong(what: str, pattern: str) -> str | None:
        return missing(what, pattern, run.get(what, ()))

    patterns = [what for what in (*_PATTERNS, "activation", "fault") if named or what != "implementation"]
    found = [(e, wrong(what, pattern)) for e in entries for what in patterns if (pattern := getattr(e, what))]
    rendered = [f"{e.where}: {text}".removeprefix(": ") for e, text in found if text]
    if rendered:
        raise UsageError("entries that name something unknown: " + "; ".join(rendered))


def apply_known_failures(
    result: Result, implementation: str | Any, entries: Sequence[KnownFailure], load: Load = load_implementation
) -> Result:
    """Return the result after applying these entries and those of the candidate's own file of known failures.

    The outcome is `error` if the candidate's file cannot be read or names something that does not exist. `load` returns the
    candidate for a name, and returns an object unchanged.
    """
    try:
        own_entries = declared(implementation, load)
        require_existing(own_entries, [result.case])
        return expected(result, [*entries, *own_entries])
    except UsageError as error:
        return replace(result, outcome="error", reason=str(error), exit_code=error.exit_code)


def declared(implementation: str | Any, load: Load = load_implementation) -> list[KnownFailure]:
    """Return the entries of the file to which a candidate's attribute `known_failures` points.

    The list is empty if the candidate has no such attribute, or cannot be loaded, which is reported when it is run.

    Raises:
        UsageError: if the file cannot be read.
    """
    try:
        candidate = load(implementation)
    except ConformanceError:
        return []
    path = getattr(candidate, "known_failures", None)
    return [] if path is None else read(Path(path))


def expected(result: Result, entries: Sequence[KnownFailure]) -> Result:
    """Return the result after applying the known failures that match its case.

    The outcome is `xfail` if every failure is declared, and `xpass` if a declared failure does not occur. An entry with an
    activation applies to that activation only, in every batch; an entry without one applies to the whole check. A search that draws
    different examples on each run and finds no failure remains a pass.
    """
    entries = [e for e in entries if e.matches(result.case)]
    if not entries or result.outcome not in ("pass", "fail", "crash", "timeout"):
        return result
    placed, whole = [e for e in entries if e.activation], [e for e in entries if not e.activation]
    marked = replace(result, verdicts=tuple(_marked(v, placed) for v in result.verdicts))
    if result.outcome != "pass" and not result.by_values:  # a broken contract or a crash concerns no activation
        return replace(result, outcome="xfail", exit_code=0, reason="; ".join(map(str, whole))) if whole else result
    if result.outcome == "pass" and result.searched and not result.searched.repeatable:
        return result  # other examples may fail as declared
    idle = [e for e in placed if _is_idle(e, result)] + (whole if result.outcome == "pass" else [])
    if idle:
        rendered = "; ".join(f"{e.activation or e.check}: {e}" for e in idle)
        return replace(
            marked, outcome="xpass", exit_code=1, reason=f"known failures that do not fail, to be taken off the list: {rendered}"
        )
    if whole:
        return replace(marked, outcome="xfail", exit_code=0, reason="; ".join(map(str, whole)))
    undeclared = [v.place for v in marked.verdicts if v.outcome == "fail"]
    unjudged = [v.place for v in marked.verdicts if v.unjudged and not any(_is_at(e, v) for e in placed)]
    if unjudged and not undeclared:
        return replace(marked, reason=f"{marked.reason}; {len(unjudged)} activations are not judged: {', '.join(unjudged)}")
    if undeclared:
        return replace(marked, reason=f"{len(undeclared)} activations fail that are not declared: {', '.join(undeclared)}")
    if result.outcome == "pass":
        return result
    return replace(marked, outcome="xfail", exit_code=0, reason=_rendered(marked.verdicts, placed))


def _marked(verdict: Verdict, entries: Sequence[KnownFailure]) -> Verdict:
    """Return a verdict whose failure is declared as `xfail` with the reasons, and any other verdict unchanged."""
    known = [e for e in entries if _is_at(e, verdict)]
    if verdict.outcome != "fail" or not known or not _is_covered(verdict, known):
        return verdict
    return replace(verdict, outcome="xfail", reason="; ".join(filter(None, (*map(str, known), verdict.reason))))


def _is_at(entry: KnownFailure, verdict: Verdict) -> bool:
    return fnmatchcase(verdict.activation, entry.activation)


def _is_covered(verdict: Verdict, entries: Sequence[KnownFailure]) -> bool:
    """Return whether one entry names no fault, or all faults of one explanation of the verdict are named by the entries."""
    names = {e.fault for e in entries}
    return "" in names or any(found <= names for found in _explanations(verdict))


def _is_idle(entry: KnownFailure, result: Result) -> bool:
    """Return whether activations that match the entry are judged, and none of them has the declared failure."""
    judged = [v for v in result.verdicts if _is_at(entry, v) and v.outcome in ("pass", "fail")]
    failed = [v for v in judged if v.outcome == "fail"]
    if entry.fault:
        failed = [v for v in failed if any(entry.fault in found for found in _explanations(v))]
    return bool(judged) and not failed


def _explanations(verdict: Verdict) -> list[set[str]]:
    """Return the set of fault names of each explanation."""
    return [{f.name for f in e.faults} for e in verdict.local.explanations] if verdict.local else []


def _rendered(verdicts: Sequence[Verdict], entries: Sequence[KnownFailure]) -> str:
    """Return the reasons as text, each with the places to which it applies."""
    failing = [v for v in verdicts if v.outcome == "xfail"]
    places = ((e, [v.place for v in failing if _is_at(e, v)]) for e in entries)
    return "; ".join(f"{', '.join(where)}: {e}" for e, where in places if where)
