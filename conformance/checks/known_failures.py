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
`conformance.checks.apply_known_failures` applies the entries to a result. A candidate may provide its own file, whose path is its
attribute `known_failures`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from conformance.checks.validate_patterns import missing
from conformance.errors import UsageError
from conformance.model.files import read_toml, reading
from conformance.results.case import Case

_PATTERNS = ("check", "implementation", "golden", "device", "dtype")


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
    remain without a match.

    Args:
        entries: the known failures.
        cases: the cases of this run.
        named: whether every candidate is loaded by its name; if one is an object, others may be objects unknown to this run.

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
