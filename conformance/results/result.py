"""The result of a case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from conformance.judge.evidence import UNKNOWN, Verdict
from conformance.results.case import Case
from conformance.results.example import Example
from conformance.results.late import late
from conformance.results.law_broken import Location, Run
from conformance.results.outcomes import Outcome

_findings, _text = late("report.findings:findings_of"), late("report.views:case_text")


@dataclass(frozen=True)
class Searched:
    """How far a search went.

    Attributes:
        tried: examples.
        worst: the largest error over its limit among those that hold.
        repeatable: whether the same examples are drawn each time.
    """

    tried: int = 0
    worst: float = 0.0
    repeatable: bool = True


@dataclass(frozen=True)
class NamedFinding:
    """One mistake, in words.

    Attributes:
        name: of the fault; None where no mistake that has a name explains the failures.
        sentence: where, what, and what it cannot be distinguished from.
        evidence: amplitude, z, and the number that is wrong with its standard deviation.
        cause: how it usually comes about, with the source.
        steps: where it acts.
        activations: the activations that it explains.
        others: names of mistakes that cannot be distinguished from it.
        anatomy: of one without a name, what can be said of it.
    """

    name: str | None
    sentence: str
    evidence: str
    cause: str
    steps: tuple[str, ...]
    activations: tuple[str, ...]
    others: tuple[str, ...]
    anatomy: tuple[str, ...]


@dataclass(frozen=True)
class Counterexample:
    """The smallest example on which a check does not hold.

    Attributes:
        example: the inputs.
        runs: what was run on it, by name and in that order.
        place: where it shows, in the first run and the last.
        allowed: how far its two values may be apart there.
        watch, lines: what changes while it runs, and lines that show it otherwise, as in `LawBroken`.
        raises: whether the last run was to raise, and did not.
        crashes: whether the last run raised, and was not to.
        claim: what is to be true of the runner by itself, as in `LawBroken`.
        origin: `module:name` of the candidate, where it is loaded by that and not by its own name.
        network: the golden whose weights it is of, or `checkpoint:DIR`.
        script: Python that shows it, with nothing of the checks.
        words: the tokens of the example's batch, where there is a tokenizer.
    """

    example: Example
    runs: Mapping[str, Run] = field(default_factory=dict, repr=False)
    place: Location | None = None
    allowed: float = 0.0
    watch: str = ""
    lines: tuple[str, ...] = ()
    raises: bool = False
    crashes: bool = False
    claim: str = ""
    network: str = ""
    origin: str = ""
    script: str = ""
    words: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True)
class Result:
    """The result of a case.

    Attributes:
        outcome: `pass`, `fail`, `error` (input that cannot be used, or a broken harness), `crash` (the candidate raised) or `skip`.
        reason: why, where it is no pass.
        exit_code: this result's share of the run's exit code.
        declared: whether the case counts as declared; one that the candidate does not support does not.
        executed: whether the candidate was run and judged.
        seconds: how long it took.
        candidate_seconds: those of them that were waited for the candidate; the others are the judge's.
        by_values: whether it fails by its verdicts alone, and the contract is kept.
        verdicts: an activation of a batch each, in the order of computation; those judged before a crash are kept.
        searched: for a check that draws its batches, how far it went; else None.
        counterexample: what it found.
        require: patterns of the activations that had to be observed.

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
    searched: Searched | None = None
    counterexample: Counterexample | None = None
    require: tuple[str, ...] = ()
    candidate_seconds: float = 0.0

    @property
    def origins(self) -> tuple[Verdict, ...]:
        """Activations at which an error begins, in the order of computation."""
        return tuple(v for v in self.verdicts if v.role == "origin")

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """Activations that fail; one that fails for another reason than its values has a `reason`."""
        return tuple(v for v in self.verdicts if v.outcome == "fail")

    @property
    def findings(self) -> "tuple[NamedFinding, ...]":
        """The mistakes that explain the failures, worst first, in words."""
        found: tuple[NamedFinding, ...] = _findings(self)
        return found

    def __str__(self) -> str:
        """The report, as the terminal shows it, without colours."""
        return str(_text(self))

    @property
    def conforms(self) -> bool:
        """Whether everything that was observed passed."""
        return self.outcome == "pass"

    @property
    def coverage(self) -> tuple[int, int]:
        """How many activations were judged, in every batch that has them, and how many there are."""
        names = {v.activation for v in self.verdicts if v.kind != UNKNOWN}
        hidden = {v.activation for v in self.verdicts if v.hidden}
        return len(names - hidden), len(names)

    _repr_html_ = late("report.views:result_fragment")

    @property
    def median_rms(self) -> float | None:
        """Median over activations of the local RMS in sigma: how well the arithmetic model fits a correct candidate."""
        values = [v.local.error.rms for v in self.verdicts if v.local and v.local.error.rms is not None]
        return float(np.median(values)) if values else None
