"""What the judge concludes, as frozen values."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from conformance.judge.error_distribution import ErrorDistribution
from conformance.judge.statistics import SEPARABLE_Z

UNKNOWN = "unknown"  # the kind of an activation that is in no table
BY_OPERATIONS = "operation by operation"  # the arithmetic of one step that is written by hand, whatever that of its like
UNJUDGED = "not judged: it is computed from"  # how the reason of an activation begins whose parent is not finite
WIDEST = "native"  # the arithmetic of the largest sigma


@dataclass(frozen=True)
class Error:
    """An error of an activation: RMS and largest in sigma, largest absolute, and where that is.

    `rms` and `max` are None for exact activations, where there is no sigma.
    """

    rms: float | None
    max: float | None
    max_abs: float
    index: tuple[int, ...]


@dataclass(frozen=True)
class Estimate:
    """What the residual says that a fault's parameter is.

    Attributes:
        parameter: its name.
        right, wrong: its value in the checkpoint, and the fault's usual one.
        value, deviation: where the residual leads, and the standard deviation of that; the usual one where nothing was found.
        bound: the most that deterministic errors can move the value by; `deviation` counts it as uniform, bound/√3.
    """

    parameter: str
    right: float
    wrong: float
    value: float
    deviation: float
    bound: float = 0.0

    def is_wrong(self, threshold: float) -> bool:
        """Whether the value differs from the right one by more than rounding can move it."""
        return abs(self.value - self.right) > self.room(threshold)

    def room(self, threshold: float) -> float:
        """The most that random errors of `threshold` deviations and deterministic ones can move the value by."""
        return threshold * math.sqrt(max(self.deviation**2 - self.bound**2 / 3.0, 0.0)) + self.bound


@dataclass(frozen=True)
class FilterResult:
    """A fault's matched filter on one local residual.

    Attributes:
        name: the fault's.
        step: the activation on whose step it acts.
        amplitude: <r,d>/<d,d>: 1 where the fault is present, 0 where it is not.
        z: <r,d> in standard deviations of the noise's own projection, less what deterministic errors can add.
        expected_z: what z would be if the fault were present.
        detected: the residual is no noise, by this filter.
        estimate: for a fault that is a number got wrong.
    """

    name: str
    step: str
    amplitude: float
    z: float
    expected_z: float
    detected: bool = False
    estimate: Estimate | None = None

    @property
    def separable(self) -> bool:
        """Whether the fault, were it there, could be distinguished from noise here."""
        return self.expected_z >= SEPARABLE_Z

    def as_detected(self, detected: bool, estimate: Estimate | None = None) -> "FilterResult":
        """The same, with what the filter concludes."""
        return replace(self, detected=detected, estimate=estimate)


@dataclass(frozen=True)
class Explanation:
    """A set of faults with which the oracle accounts for the candidate's array.

    Attributes:
        faults: each with its own evidence, all the others in place.
        free: how many numbers were fitted.
        nll: −ln of the residual's likelihood with them, as `Local.nll`.
        is_usual: whether each number is, within its error, what people usually have it wrong by.
    """

    faults: tuple[FilterResult, ...]
    free: int
    nll: float
    is_usual: bool = False

    @property
    def fitting(self) -> float:
        """The cost of its fitted numbers, in nats.

        By Laplace's approximation of the likelihood each costs ln of the prior's width in deviations of the estimate. The width
        is taken from the data: the distance of the number from the expected one.
        """
        estimates = [fault.estimate for fault in self.faults if fault.estimate]
        return sum(math.log(max(abs(e.value - e.right) / e.deviation, 1.0)) for e in estimates if e.deviation > 0.0)


@dataclass(frozen=True)
class Local:
    """The local judgement under one hypothesis.

    Attributes:
        hypothesis, arithmetic: in words, and the arithmetic's name.
        error: the residual in sigma, once the deterministic bound is taken off.
        nll: −ln of its likelihood, were it normal, up to a constant: ν/N Σ (e²/2 + ln σ), N elements of ν independent rows.
        rms_threshold, max_threshold, filter_threshold: the largest that the statistics may be.
        filters: every fault that was looked for.
        explanations: where it fails, what accounts for it, best first.
        spread: how the residual is spread, to be shown.
        hides_steps: whether the candidate hides steps between the activation and those that it is computed from.
    """

    hypothesis: str
    arithmetic: str
    error: Error
    nll: float
    rms_threshold: float
    max_threshold: float
    filter_threshold: float
    filters: tuple[FilterResult, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    spread: ErrorDistribution | None = field(default=None, repr=False)
    hides_steps: bool = False

    @property
    def evidence_threshold(self) -> float:
        """How much evidence a false alarm of one statistic is worth, in nats: ln 2/α, half the filters' threshold squared."""
        return self.filter_threshold**2 / 2.0

    @property
    def detected(self) -> tuple[FilterResult, ...]:
        """The faults whose filters say that the residual is no noise."""
        return tuple(f for f in self.filters if f.detected)

    @property
    def named(self) -> tuple[FilterResult, ...]:
        """The faults of the best explanation."""
        return self.explanations[0].faults if self.explanations else ()

    @property
    def alternatives(self) -> tuple[Explanation, ...]:
        """Explanations that cannot be distinguished from the best on this batch.

        They have as many faults, no more fitted numbers that are not usual, and the residual is less likely under them by less
        than what a false alarm is worth.
        """
        if not self.explanations:
            return ()
        best, *others = self.explanations
        rendered = {tuple(f.name for f in best.faults)}
        alike = []
        for other in others:
            names = tuple(f.name for f in other.faults)
            if (
                names not in rendered
                and (other.free == best.free or other.is_usual)
                and other.nll - best.nll < self.evidence_threshold
            ):
                rendered.add(names)
                alike.append(other)
        return tuple(alike)

    @property
    def passes(self) -> bool:
        """Whether every statistic stays below its threshold; an exact activation has no room at all."""
        rms, largest = self.error.rms, self.error.max
        if rms is None or largest is None:
            return self.error.max_abs == 0.0
        return rms <= self.rms_threshold and largest <= self.max_threshold and not self.detected

    @property
    def fails_by_filters_alone(self) -> bool:
        """Whether RMS and largest error are within their thresholds, and a filter's z is not."""
        return bool(self.detected) and replace(self, filters=()).passes

    @property
    def excess(self) -> float:
        """How many times the nearest threshold; the order of worst first."""
        rms, largest = self.error.rms, self.error.max
        if rms is None or largest is None:
            return float("inf") if self.error.max_abs else 0.0
        filtered = [abs(f.z) / self.filter_threshold for f in self.detected]
        return max(rms / self.rms_threshold, largest / self.max_threshold, *filtered)


@dataclass(frozen=True)
class Verdict:
    """One activation's judgement.

    Attributes:
        outcome: `pass`, `fail`, `not_observed`, or `xfail` for a failure that is known.
        batch: the name of the golden's batch, where it has several.
        role: `origin`, `amplifier`, `attenuator` or None.
        local: the local judgement under the hypothesis that was chosen; None where not judged.
        overall: the global error; None where not judged.
        padded: largest absolute local difference at padded rows, reported and not judged.
        reason: what broke the contract, how an exact activation differs, or why none of it is judged, in words.
        anatomy: what can be said of an error that nothing explains, in words.
    """

    activation: str
    kind: str
    outcome: Literal["pass", "fail", "not_observed", "xfail"]
    role: str | None = None
    local: Local | None = None
    overall: Error | None = None
    padded: float | None = None
    reason: str = ""
    batch: str = ""
    anatomy: tuple[str, ...] = ()

    @property
    def unjudged(self) -> bool:
        """Whether the candidate exposes it, and an activation before it that is not finite leaves nothing to judge it by."""
        return self.outcome == "not_observed" and self.reason.startswith(UNJUDGED)

    @property
    def hidden(self) -> bool:
        """Whether the candidate does not expose it (and not only that none of it is to be judged)."""
        return self.outcome == "not_observed" and not self.reason

    @property
    def place(self) -> str:
        """The activation, and the batch where there are several."""
        return f"{self.activation} [{self.batch}]" if self.batch else self.activation
