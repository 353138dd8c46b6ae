"""Apply known failures to a result: declared failures must occur, and no other failure may."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from conformance.candidates.registry import Implementation, load_implementation
from conformance.checks.known_failures import KnownFailure, read, require_existing
from conformance.errors import ConformanceError, UsageError
from conformance.judge.evidence import Verdict
from conformance.results.result import Result

Load = Callable[[Any], Implementation]


def apply_known_failures(
    result: Result, implementation: str | Any, entries: Sequence[KnownFailure], load: Load = load_implementation
) -> Result:
    """Return the result after applying these entries and those of the candidate's own file of known failures.

    The outcome is `error` if the candidate's file cannot be read or names something that does not exist.

    Args:
        result: the result of one check.
        implementation: the candidate, as a name or an object.
        entries: the known failures of the run.
        load: returns the candidate for a name, and returns an object unchanged.
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
