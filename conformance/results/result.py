"""The result of a case, with its verdicts, findings and counterexample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from conformance.judge.evidence import UNKNOWN, Verdict
from conformance.results.case import Case
from conformance.results.deferred_import import deferred
from conformance.results.example import Example, LawBroken, Run, Size
from conformance.results.outcomes import Outcome

if TYPE_CHECKING:
    from conformance.report.finding import Finding

_findings, _text = deferred("report.findings:findings_of"), deferred("report.representations:case_text")


@dataclass(frozen=True)
class Searched:
    """The extent of a search.

    Attributes:
        tried: number of examples.
        worst: largest ratio of an error to its limit among the examples that pass.
        repeatable: whether every run generates the same examples.
    """

    tried: int = 0
    worst: float = 0.0
    repeatable: bool = True


@dataclass(frozen=True)
class Counterexample:
    """The smallest example for which a check does not hold.

    Attributes:
        example: the inputs.
        runs: the runs by name, in order.
        broken: what the runs show, and at which element; None if the failure is not that of a law or of an activation.
        crashes: whether the last run raised an exception that it should not have raised.
        network: name of the golden with the weights, or `checkpoint:DIR`.
        origin: `module:name` of the candidate, if it is loaded by that instead of its own name.
        script: Python script that shows the failure without using the checks.
        words: tokens of the example's batch, if there is a tokenizer.
    """

    example: Example
    runs: Mapping[str, Run] = field(default_factory=dict, repr=False)
    broken: LawBroken | None = None
    crashes: bool = False
    network: str = ""
    origin: str = ""
    script: str = ""
    words: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True)
class Result:
    """The result of a case.

    Attributes:
        outcome: `pass`, `fail`, `error` (unusable input, or a broken harness), `crash` (the candidate raised) or `skip`.
        reason: the reason, if the outcome is not `pass`.
        exit_code: exit code of this result; the run's exit code is derived from those of all results.
        declared: whether the case is counted as declared; cases that the candidate does not support are not.
        executed: whether the candidate was run and judged.
        seconds: duration of the case.
        candidate_seconds: the part of `seconds` spent waiting for the candidate; the rest is the judge's.
        note: what of the returned value was not compared with activations and, unless the outcome is `pass`, what of the
            candidate's mapping no value confirms.
        by_values: whether the case fails only because of its verdicts, without a violation of the contract.
        verdicts: one verdict for each batch and activation, in the order of computation; those before a crash are kept.
        sizes: the largest sizes of the judged batches, each as rows and tokens per row.
        searched: the extent of the search, for a check that generates its batches; otherwise None.
        counterexample: the counterexample found by the search, or None.
        require: patterns of the activations that had to be observed.
        runs: number of checks of the run, among which the false-alarm probability is shared.
        examples: number of examples that each search was to try, among which that of the check is shared.

    Example:
        >>> result = check("hf-eager", "tiny")
        >>> result.conforms, result.origins, result.findings
        (True, (), ())
    """

    case: Case
    outcome: Outcome
    reason: str = ""
    exit_code: int = 0
    declared: bool = True
    executed: bool = False
    seconds: float = 0.0
    verdicts: tuple[Verdict, ...] = field(default=(), repr=False)
    by_values: bool = False
    sizes: tuple[Size, ...] = ()
    searched: Searched | None = None
    counterexample: Counterexample | None = None
    require: tuple[str, ...] = ()
    runs: int = 1
    examples: int = 0
    candidate_seconds: float = 0.0
    note: str = ""

    @property
    def origins(self) -> tuple[Verdict, ...]:
        """The verdicts on activations in which an error originates, in the order of computation."""
        return tuple(v for v in self.verdicts if v.role == "origin")

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts on activations that fail; a verdict has a `reason` if it fails for another reason than its values."""
        return tuple(v for v in self.verdicts if v.outcome == "fail")

    @property
    def findings(self) -> "tuple[Finding, ...]":
        """The mistakes that explain the failures, worst first."""
        findings: tuple[Finding, ...] = _findings(self)
        return findings

    def __str__(self) -> str:
        """Return the report as shown in the terminal, without colours."""
        return str(_text(self))

    @property
    def conforms(self) -> bool:
        """Whether everything that was observed passed."""
        return self.outcome == "pass"

    @property
    def coverage(self) -> tuple[int, int]:
        """The number of activations that were judged in every batch that has them, and the number of all activations."""
        names = {v.activation for v in self.verdicts if v.kind != UNKNOWN}
        unjudged = {v.activation for v in self.verdicts if v.is_unexposed or v.is_through_wrong_step}
        return len(names - unjudged), len(names)

    _repr_html_ = deferred("report.representations:displayed")

    @property
    def median_rms(self) -> float | None:
        """The median over activations of the local RMS in sigma: how well the arithmetic model fits a correct candidate."""
        values = [v.local.error.rms for v in self.verdicts if v.local and v.local.error.rms is not None]
        return float(np.median(values)) if values else None
