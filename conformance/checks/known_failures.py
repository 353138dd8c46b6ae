"""Known failures: a TOML file that says which checks of which candidate fail, and why.

    [[known-failure]]
    check = "values"
    reason = "the norm's epsilon is 1e-5 until the next release"
    issue = "https://…/17"
    activation = "encoder.layer.*.LayerNorm"    # optional: where the check fails; elsewhere it must not
    fault = "epsilon"                           # optional, with an activation: the mistake that must be found there
    device = "cuda"       # optional; * and ? as in a shell, like check, implementation, golden and dtype

A known failure that fails is told as xfail, one that passes as xpass, which is a failure where a check is deterministic: all are,
but searches that draw other examples each time. What `expected` makes of a result is in `conformance.checks.expected`. A candidate
may bring its own: an attribute `known_failures`, the path of such a file.
"""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from conformance.case import Case
from conformance.checks.catalogue import CHECKS
from conformance.errors import UsageError

_PATTERNS = ("check", "implementation", "golden", "device", "dtype")


@dataclass(frozen=True)
class KnownFailure:
    """One entry."""

    check: str
    reason: str
    issue: str = ""
    activation: str = ""
    fault: str = ""
    implementation: str = "*"
    golden: str = "*"
    device: str = "*"
    dtype: str = "*"

    def matches(self, case: Case) -> bool:
        """Whether it speaks of that case."""
        return all(fnmatchcase(getattr(case, name), getattr(self, name)) for name in _PATTERNS)

    def __str__(self) -> str:
        """The reason, and where it is followed."""
        return f"{self.reason} ({self.issue})" if self.issue else self.reason


def read(path: Path) -> list[KnownFailure]:
    """The entries of a file; `UsageError` says which entry lacks what."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    entries = found.get("known-failure", [])
    if set(found) - {"known-failure"} or not isinstance(entries, list):
        raise UsageError(f"{path} holds {', '.join(found)}; expected [[known-failure]] tables alone")
    return [_entry(entry, f"{path}, entry {i}") for i, entry in enumerate(entries, 1)]


def _entry(entry: dict[str, object], where: str) -> KnownFailure:
    allowed = ("check", "reason", "issue", "activation", "fault", *_PATTERNS[1:])
    unknown = sorted(set(entry) - set(allowed))
    missing = [key for key in ("check", "reason") if not entry.get(key)]
    missing += ["activation, which its fault is found at"] if entry.get("fault") and not entry.get("activation") else []
    wrong = [key for key, value in entry.items() if not isinstance(value, str)]
    if unknown or missing or wrong:
        told = [
            f"{what} {', '.join(keys)}" for what, keys in (("unknown", unknown), ("lacks", missing), ("no text:", wrong)) if keys
        ]
        raise UsageError(f"{where}: {'; '.join(told)}; an entry may have {', '.join(allowed)}")
    return KnownFailure(**entry)  # type: ignore[arg-type]


def matched(entries: Sequence[KnownFailure], cases: Iterable[Case]) -> dict[Case, list[KnownFailure]]:
    """Each case's entries; `UsageError` for entries that match no case.

    An entry for a check, device, dtype, golden or candidate that is not run at all is another run's, and not idle.
    """
    cases = list(cases)
    idle = [e for e in entries if not any(e.matches(case) for case in cases) and not _is_of_another_run(e, cases)]
    if idle:
        told = "; ".join(f"check {e.check!r} of {e.implementation} on {e.golden}, {e.device}, {e.dtype}" for e in idle)
        raise UsageError(f"known failures that match nothing that is run: {told}")
    return {case: found for case in cases if (found := [e for e in entries if e.matches(case)])}


def _is_of_another_run(entry: KnownFailure, cases: Sequence[Case]) -> bool:
    """Whether it speaks of what there is, and what is not run here."""
    if not any(fnmatchcase(name, entry.check) for name in CHECKS):
        return False
    return any(not any(fnmatchcase(getattr(case, name), getattr(entry, name)) for case in cases) for name in _PATTERNS)
