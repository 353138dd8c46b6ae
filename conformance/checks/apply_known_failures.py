"""Apply known failures to a result: what is declared to fail must fail, and nothing else may."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from conformance.candidates.registry import Implementation, load
from conformance.checks.known_failures import KnownFailure, read, require_existing
from conformance.errors import ConformanceError, UsageError
from conformance.judge.evidence import Verdict
from conformance.results.result import Result

Load = Callable[[Any], Implementation]


def apply_known_failures(result: Result, implementation: str | Any, entries: Sequence[KnownFailure], load: Load = load) -> Result:
    """`expected` by these entries and by those of the candidate's own file; an `error` where that file cannot be used.

    `load` returns a candidate by its name; of an object, itself.
    """
    try:
        brought = declared(implementation, load)
        require_existing(brought, [result.case])
        return expected(result, [*entries, *brought])
    except UsageError as error:
        return replace(result, outcome="error", reason=str(error), exit_code=error.exit_code)


def declared(implementation: str | Any, load: Load = load) -> list[KnownFailure]:
    """Those of the file that a candidate's attribute `known_failures` names.

    None where the candidate cannot be loaded, which is reported when it is run.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        candidate = load(implementation)
    except ConformanceError:
        return []
    path = getattr(candidate, "known_failures", None)
    return [] if path is None else read(Path(path))


def expected(result: Result, entries: Sequence[KnownFailure]) -> Result:
    """The result with the known failures of its case applied.

    It is `xfail` where all that fails is declared, and `xpass` where something is declared and does not fail. An entry with an
    activation applies to that activation alone, in every batch; one without applies to the whole check. A search that draws other
    examples each time and finds no failure stays a pass.
    """
    entries = [e for e in entries if e.matches(result.case)]
    if not entries or result.outcome not in ("pass", "fail", "crash", "timeout"):
        return result
    placed, whole = [e for e in entries if e.activation], [e for e in entries if not e.activation]
    marked = replace(result, verdicts=tuple(_marked(v, placed) for v in result.verdicts))
    if result.outcome != "pass" and not result.by_values:  # the contract is broken, or it crashes: no matter of activations
        return replace(result, outcome="xfail", exit_code=0, reason="; ".join(map(str, whole))) if whole else result
    if result.outcome == "pass" and result.searched and not result.searched.repeatable:
        return result  # other examples may fail as it is declared
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
    """A failing verdict that is declared, as `xfail` with its reasons."""
    known = [e for e in entries if _is_at(e, verdict)]
    if verdict.outcome != "fail" or not known or not _is_covered(verdict, known):
        return verdict
    return replace(verdict, outcome="xfail", reason="; ".join(filter(None, (*map(str, known), verdict.reason))))


def _is_at(entry: KnownFailure, verdict: Verdict) -> bool:
    return fnmatchcase(verdict.activation, entry.activation)


def _is_covered(verdict: Verdict, entries: Sequence[KnownFailure]) -> bool:
    """Whether the entries account for a failing verdict: one names no fault, or an explanation has none but theirs."""
    names = {e.fault for e in entries}
    return "" in names or any(found <= names for found in _explanations(verdict))


def _is_idle(entry: KnownFailure, result: Result) -> bool:
    """Whether what it speaks of is judged, and the failure is nowhere found."""
    judged = [v for v in result.verdicts if _is_at(entry, v) and v.outcome in ("pass", "fail")]
    failed = [v for v in judged if v.outcome == "fail"]
    if entry.fault:
        failed = [v for v in failed if any(entry.fault in found for found in _explanations(v))]
    return bool(judged) and not failed


def _explanations(verdict: Verdict) -> list[set[str]]:
    """The mistakes of each explanation."""
    return [{f.name for f in e.faults} for e in verdict.local.explanations] if verdict.local else []


def _rendered(verdicts: Sequence[Verdict], entries: Sequence[KnownFailure]) -> str:
    """Each reason, with the places where it holds."""
    failing = [v for v in verdicts if v.outcome == "xfail"]
    places = ((e, [v.place for v in failing if _is_at(e, v)]) for e in entries)
    return "; ".join(f"{', '.join(where)}: {e}" for e, where in places if where)
