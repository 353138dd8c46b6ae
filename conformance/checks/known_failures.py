"""Known failures: a TOML file that declares which checks of which candidates fail, and why.

    [[known-failure]]
    check = "values"
    reason = "the norm's epsilon is 1e-5 until the next release"
    issue = "https://…/17"
    activation = "encoder.layer.*.LayerNorm"    # optional: where the check fails; other activations must pass
    fault = "epsilon"                           # optional, with an activation: the fault that must be found there
    device = "cuda"       # optional shell-style pattern, like check, implementation, golden and dtype

A check, a format and a fault must exist, and so must an activation of the check `values` in the network of some golden. An entry
that matches nothing is an error, unless it is of another run: of a device that is not used, or of a registered candidate, a stored
golden, a path or an object that is not run.

A known failure that fails is reported as xfail. One that passes is reported as xpass, which is a failure if the check is
deterministic. All checks are deterministic except searches that draw different examples on each run.
`apply_known_failures` applies the entries to a result. A candidate may provide its own file, whose path is its
attribute `known_failures`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from conformance.candidates.lookup import registered
from conformance.checks.catalogue import CHECKS
from conformance.checks.check import Request
from conformance.errors import ConformanceError, UsageError
from conformance.faults import BY_NAME
from conformance.faults.fitted import FITTED
from conformance.goldens.manifest import manifest
from conformance.judge.evidence import Verdict
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.files import read_toml, reading
from conformance.names import nearest
from conformance.numerics.formats import FORMATS
from conformance.results.case import PATTERNS, Case, KnownFailure
from conformance.results.result import Result
from conformance.results.termination import Termination, call_candidate, run_guarded


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
    allowed = ("check", "reason", "issue", "activation", "fault", *PATTERNS[1:])
    unknown = sorted(set(entry) - set(allowed))
    lacking = [key for key in ("check", "reason") if not entry.get(key)]
    lacking += ["activation, which its fault is found at"] if entry.get("fault") and not entry.get("activation") else []
    wrong = [key for key, value in entry.items() if not isinstance(value, str)]
    if unknown or lacking or wrong:
        rendered = [
            f"{what} {', '.join(keys)}" for what, keys in (("unknown", unknown), ("lacks", lacking), ("no text:", wrong)) if keys
        ]
        raise UsageError(f"{where}: {'; '.join(rendered)}; an entry may have {', '.join(allowed)}")
    for what, names in _existing().items():
        pattern = entry.get(what, "")
        if pattern and pattern not in names and (what == "fault" or not any(fnmatchcase(name, pattern) for name in names)):
            raise UsageError(f"{where}: no {what} {pattern!r}; {nearest(pattern, names, _MANY.get(what, ''))}")
    place = _in_first_layer(entry.get("activation", ""))
    if place and fnmatchcase("values", entry["check"]) and not any(fnmatchcase(name, place) for name in _activations()):
        raise UsageError(f"{where}: no activation {entry['activation']!r}; {nearest(place, _activations(), _MANY['activation'])}")
    return KnownFailure(**entry, where=where)


# How to list all names, of those that are too many to report.
_MANY = {
    "fault": "`bert-conformance golden power` prints those that there are",
    "activation": "`bert-conformance trace NAME` prints those that there are",
}


@cache
def _activations() -> Collection[str]:
    """Return the names of the activations of the goldens' networks, in their first layer."""
    tables = (table(Architecture.from_config(entry.architecture)) for entry in manifest().values())
    return dict.fromkeys(_in_first_layer(name) for names in tables for name in names)


def _in_first_layer(name: str) -> str:
    return re.sub(r"\.layer\.\d+\.", ".layer.0.", name)


def _existing() -> Mapping[str, Collection[str]]:
    """Return the names of each kind whose names are all known: those of checks and formats are patterns in an entry."""
    return {"check": CHECKS, "dtype": FORMATS, "fault": (*BY_NAME, *(fault.name for fault in FITTED))}


def require_matches(entries: Sequence[KnownFailure], cases: Sequence[Case], *, named: bool = True) -> None:
    """Raise `UsageError` with the entries that match none of a run's cases and are not of another run.

    `named` says whether every candidate is loaded by its name; an object may have any.
    """
    wrong = [f"{entry.where}: {why}" for entry in entries if (why := _why_idle(entry, cases, named))]
    if wrong:
        raise UsageError(f"known failures that match nothing: {'; '.join(wrong)}")


def _why_idle(entry: KnownFailure, cases: Sequence[Case], named: bool) -> str:
    """Return why an entry matches nothing in any run; an empty text if it may match something."""
    other = {what: getattr(entry, what) for what in PATTERNS}
    if any(entry.matches(case) for case in cases):
        return ""
    of_run = [what for what, pattern in other.items() if any(fnmatchcase(getattr(case, what), pattern) for case in cases)]
    if len(of_run) == len(PATTERNS):
        return f"check {entry.check!r} of {entry.implementation} on {entry.golden}, {entry.device}, {entry.dtype} is not run"
    names = {"golden": manifest(), **({"implementation": {r.name for r in registered()}} if named else {})}
    for what in names.keys() - of_run:
        if other[what] not in names[what] and not any(c in other[what] for c in "*?[:./"):
            return f"no {what} {other[what]!r}; {nearest(other[what], names[what])}"
    return ""


def apply_known_failures(result: Result, request: Request) -> Result:
    """Return the result after applying the request's known failures and those of the candidate's own file.

    The outcome is `error` if the candidate's file cannot be read or names something that does not exist.
    """
    try:
        candidate = request.candidate
    except ConformanceError:  # it cannot be loaded, as its result says
        candidate = None
    found = run_guarded(lambda: expected(result, [*(request.known_failures or ()), *declared(candidate)]))
    return replace(result, **vars(found)) if isinstance(found, Termination) else found


def declared(candidate: Any) -> list[KnownFailure]:
    """Return the entries of the file to which a candidate's attribute `known_failures` points, if it has one.

    Raises:
        UsageError: if the file cannot be read.
        CandidateCrash: if the attribute is no path, or raises an exception.
    """
    path = call_candidate(lambda: None if (found := getattr(candidate, "known_failures", None)) is None else Path(found))
    return [] if path is None else read(path)


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
