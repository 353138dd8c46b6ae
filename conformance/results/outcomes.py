"""The table of all outcomes of checks and activations, and how each is reported. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["error", "crash", "timeout", "fail", "xpass", "not_observed", "skip", "xfail", "pass"]
Tone = Literal["good", "odd", "bad"]


@dataclass(frozen=True)
class OutcomeText:
    """How an outcome is reported.

    Attributes:
        of_check, of_activation: description of a check or an activation with this outcome.
        symbol: symbol of a check in a matrix.
        tone: `bad` if a run with this outcome does not conform, `odd` if the outcome decides nothing.
        junit: element that a JUnit test case with this outcome contains, or None.
        meaning, remedy: what happened and what to do, for `bert-conformance explain`.
    """

    of_check: str
    of_activation: str
    symbol: str
    tone: Tone
    junit: Literal["error", "failure", "skipped"] | None
    meaning: str
    remedy: str


OUTCOME_TEXT: Mapping[Outcome, OutcomeText] = {
    "error": OutcomeText(
        "error",
        "wrong",
        "!",
        "bad",
        "error",
        "The check could not be made: a name does not exist, a registration does not fit its module, or the harness or a fixture "
        "is broken.",
        "Read the reason in the report. The cause lies in the call, in the registration or in the harness; a known failure cannot "
        "excuse it.",
    ),
    "crash": OutcomeText(
        "crash",
        "wrong",
        "✗",
        "bad",
        "error",
        "The candidate's own code raised an exception, or ended its process.",
        "Read the traceback in the reason; the script in `failures/` repeats the call without the suite.",
    ),
    "timeout": OutcomeText(
        "timeout",
        "wrong",
        "✗",
        "bad",
        "error",
        "The check took longer than `--timeout` allows, and its process was ended.",
        "Allow more time, or run the script in `failures/` to see where it hangs.",
    ),
    "fail": OutcomeText(
        "does not conform",
        "wrong",
        "✗",
        "bad",
        "failure",
        "The candidate computes a result that rounding does not explain, or breaks the contract.",
        "Begin at the first origin: the report names the step, the size of the error and, where one fits, the mistake.",
    ),
    "xpass": OutcomeText(
        "passes, although a known failure",
        "right, although a known failure",
        "!",
        "bad",
        "failure",
        "The check passes, although an entry of the known failures says that it fails. This fails the run (exit code 1).",
        "Remove the entry from the file of known failures.",
    ),
    "not_observed": OutcomeText(
        "not exposed",
        "not exposed",
        "–",
        "odd",
        "skipped",
        "The candidate does not expose the activation, so that it was not judged by itself.",
        "Expose it (`activations` of a TorchImplementation), or demand it with --require-activations.",
    ),
    "skip": OutcomeText(
        "skipped",
        "not exposed",
        "–",
        "odd",
        "skipped",
        "The check was not run; the reason says why: the candidate does not support it, or something is not installed.",
        "Nothing, or provide what the reason names.",
    ),
    "xfail": OutcomeText(
        "known failure",
        "known to fail",
        "≈",
        "odd",
        "skipped",
        "The check fails as an entry of the known failures says.",
        "Nothing; the entry gives the reason and the issue.",
    ),
    "pass": OutcomeText(
        "conforms",
        "right",
        "✓",
        "good",
        None,
        "Nothing that was judged differs from a correct BERT by more than rounding explains.",
        "Nothing. The report lists what the pass excludes, and what it cannot see.",
    ),
}
"""Texts by outcome, the most severe outcome first."""

ORDER: tuple[Outcome, ...] = tuple(OUTCOME_TEXT)
FAILING = frozenset(outcome for outcome, text in OUTCOME_TEXT.items() if text.tone == "bad")


def severity(outcome: Outcome) -> int:
    """Return the severity of an outcome; 0 for a pass, larger is worse."""
    return len(ORDER) - 1 - ORDER.index(outcome)
