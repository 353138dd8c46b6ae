"""What a check, or an activation, can come to, and how each is reported. The one table of it; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["error", "crash", "timeout", "fail", "xpass", "not_observed", "skip", "xfail", "pass"]
Tone = Literal["good", "odd", "bad"]


@dataclass(frozen=True)
class Telling:
    """How an outcome is reported.

    Attributes:
        said: of a check.
        seen: of an activation.
        sign: of a check, in a matrix.
        tone: `bad` where a run with it does not conform, `odd` where it says neither.
        junit: the element of JUnit's that a test case with it has; None: it has none.
    """

    said: str
    seen: str
    sign: str
    tone: Tone
    junit: Literal["error", "failure", "skipped"] | None


OUTCOME_TEXT: Mapping[Outcome, Telling] = {
    "error": Telling("error", "wrong", "!", "bad", "error"),
    "crash": Telling("crash", "wrong", "✗", "bad", "error"),
    "timeout": Telling("timeout", "wrong", "✗", "bad", "error"),
    "fail": Telling("does not conform", "wrong", "✗", "bad", "failure"),
    "xpass": Telling("passes, against what is known", "right, against what is known", "!", "bad", "failure"),
    "not_observed": Telling("not observed", "not observed", "–", "odd", "skipped"),
    "skip": Telling("skipped", "not observed", "–", "odd", "skipped"),
    "xfail": Telling("known failure", "known to fail", "≈", "odd", "skipped"),
    "pass": Telling("conforms", "right", "✓", "good", None),
}
"""The most severe first."""

ORDER: tuple[Outcome, ...] = tuple(OUTCOME_TEXT)
FAILING = frozenset(outcome for outcome, rendered in OUTCOME_TEXT.items() if rendered.tone == "bad")


def severity(outcome: Outcome) -> int:
    """How severe: 0 for a pass."""
    return len(ORDER) - 1 - ORDER.index(outcome)
