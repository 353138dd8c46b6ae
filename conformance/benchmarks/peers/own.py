"""bert-conformance itself, which needs no reference run, since the candidate is judged against the oracle."""

from pathlib import Path

from conformance.benchmarks.subject import Subject


def full(_: Subject, candidate: Subject, __: Path) -> str | None:
    """Return the first activation that fails."""
    return next((v.activation for v in candidate.verdicts() if v.outcome == "fail"), None)


def screen(_: Subject, candidate: Subject, __: Path) -> str | None:
    """Return the first activation that fails at depth screen."""
    return next((v.activation for v in candidate.verdicts("screen") if v.outcome == "fail"), None)
