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

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.util import find_spec
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
from conformance.model.activations import parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.model.files import read_toml, reading
from conformance.names import nearest
from conformance.numerics.devices import USUAL, not_a_device
from conformance.numerics.formats import FORMATS
from conformance.results.case import PATTERNS, Case, KnownFailure
from conformance.results.result import Result

_LAYERS = 100  # layers of the table against which patterns are matched: covers all numbers of one or two digits
# How to list all names, of those that are too many to report.
_MANY = {
    "device": "torch knows it nowhere",
    "activation": "`bert-conformance trace golden:tiny` prints those that there are",
    "fault": "`bert-conformance golden power` prints those that there are",
}


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
    return any(not any(fnmatchcase(getattr(case, name), getattr(entry, name)) for case in cases) for name in PATTERNS)


def require_existing(entries: Iterable[KnownFailure], cases: Sequence[Case], *, named: bool = True) -> None:
    """Raise `UsageError` with all entries that have a pattern that matches nothing, neither in these cases nor elsewhere."""
    run = {what: {getattr(case, what) for case in cases} for what in PATTERNS}

    @cache  # most entries share patterns
    def wrong(what: str, pattern: str) -> str | None:
        return missing(what, pattern, run.get(what, ()))

    patterns = [what for what in (*PATTERNS, "activation", "fault") if named or what != "implementation"]
    found = [(e, wrong(what, pattern)) for e in entries for what in patterns if (pattern := getattr(e, what))]
    rendered = [f"{e.where}: {text}".removeprefix(": ") for e, text in found if text]
    if rendered:
        raise UsageError("entries that name something unknown: " + "; ".join(rendered))


@lru_cache(maxsize=64)
def _existing(what: str) -> Sequence[str]:
    """Return the names of a kind that exist regardless of the run."""
    names: Mapping[str, Any] = {
        "check": lambda: CHECKS,
        "implementation": lambda: (r.name for r in registered()),
        "golden": manifest,
        "device": lambda: USUAL,
        "dtype": lambda: FORMATS,
        "activation": lambda: (name for a in _architectures() for name in table(a)),
        "fault": lambda: (*BY_NAME, *(fault.name for fault in FITTED)),
    }
    return tuple(dict.fromkeys(names[what]()))


def missing(what: str, pattern: str, run: Iterable[str] = ()) -> str | None:
    """Return a message with the nearest names if a pattern matches no existing name; None if it matches one.

    `what` is `check`, `implementation`, `golden`, `device`, `dtype`, `activation`, or `fault`, which takes a name, not a pattern.
    The names of this kind in the `run` count as existing.
    """
    names = [*run, *_existing(what)]
    if pattern in names or (what != "fault" and any(fnmatchcase(name, pattern) for name in names)) or _is_elsewhere(what, pattern):
        return None
    return f"no {what} {pattern!r}; {nearest(pattern, () if what == 'activation' else dict.fromkeys(names), _MANY.get(what, ''))}"


def _is_elsewhere(what: str, pattern: str) -> bool:
    """Return whether a pattern may match a name that is not among the existing ones; nothing is imported."""
    is_pattern = any(c in pattern for c in "*?[")
    try:
        match what:
            case "implementation":  # `module:name` of a package found here, a file, or a pattern of these
                package = pattern.partition(":")[0].partition(".")[0] if ":" in pattern else ""
                named = package and (Path(package).is_dir() or Path(f"{package}.py").is_file() or find_spec(package))
                return bool(named) or (is_pattern and any(c in pattern for c in ":./")) or Path(pattern).is_file()
            case "golden":
                return pattern.startswith("checkpoint:") or Path(pattern).exists()
            case "device":  # of a type that torch has on any platform; a type with a wildcard may be any
                kind = pattern.partition(":")[0]
                return any(c in kind for c in "*?[") or not_a_device(kind) is None
            case "activation":
                return _is_of_training(pattern)
    except (ValueError, ImportError, OSError):  # __main__ has no spec, and a name may be too long for a path
        return pattern.startswith("__main__:")
    return False


def _architectures() -> tuple[Architecture, ...]:
    """Return architectures with every part that only some have."""
    normed = Architecture(2, 1, _LAYERS, 1, 1, 1, heads=("masked_lm", "next_sentence", "classification"))
    return (
        normed,
        normed.with_(embedding_norm=False, heads=("plain_masked_lm", "plain_next_sentence")),
        normed.with_(heads=("question_answering",), pooling="mean", normalize=True),
        normed.with_(heads=("token_classification",), position_embedding_type="relative_key_query"),
        normed.with_(heads=("multiple_choice",), is_decoder=True, add_cross_attention=True),
    )


def _is_of_training(pattern: str) -> bool:
    """Return whether a pattern matches a gradient, or a tensor in a step of training, whatever the number of the step."""
    first = re.sub(r"^step\.\d+\.", "step.1.", pattern)
    names = (*_existing("activation"), *(name for a in _architectures() for name in parameter_shapes(a)))
    return any(fnmatchcase(form.format(name), first) for name in names for form in ("{}.grad", "step.1.{}", "step.1.{}.grad"))


def apply_known_failures(result: Result, request: Request) -> Result:
    """Return the result after applying the request's known failures and those of the candidate's own file.

    The outcome is `error` if the candidate's file cannot be read or names something that does not exist.
    """
    try:
        try:
            own = declared(request.candidate)
        except ConformanceError:  # it cannot be loaded, as its result says
            own = []
        require_existing(own, [result.case])
        return expected(result, [*(request.known_failures or ()), *own])
    except UsageError as error:
        return replace(result, outcome="error", reason=str(error), exit_code=error.exit_code)


def declared(candidate: Any) -> list[KnownFailure]:
    """Return the entries of the file to which a candidate's attribute `known_failures` points, if it has one.

    Raises:
        UsageError: if the file cannot be read.
    """
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
