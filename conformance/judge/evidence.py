"""The judge's conclusions, as frozen values."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from conformance.judge.error_distribution import ErrorDistribution
from conformance.numerics.formats import Format
from conformance.numerics.thresholds import SEPARABLE_Z, evidence_threshold

UNKNOWN = "unknown"  # kind of an activation that is not in the table
BY_OPERATIONS = "operation by operation"  # arithmetic of a step that is judged as a sequence of elementary operations
DIFFERENTIATED = "not judged: it is differentiated through"  # prefix of that reason, by which reports of results files find it
WIDEST_ARITHMETIC = "native"  # name of the arithmetic with the largest sigma

Basis = Literal["every element", "a lower bound of sigma", "projections"]  # of what is not tested exactly (`judge.gate`)


@dataclass(frozen=True)
class Error:
    """The error of an activation.

    Attributes:
        rms: RMS in sigma; None for exact activations, which have no sigma.
        max: largest error in sigma; None for exact activations.
        max_abs: largest absolute error.
        index: index of the largest error.
    """

    rms: float | None
    max: float | None
    max_abs: float
    index: tuple[int, ...]


@dataclass(frozen=True)
class Estimate:
    """The estimate of a fault's parameter from the residual.

    Attributes:
        parameter: name of the parameter.
        right, wrong: its value in the checkpoint, and its usual value under the fault.
        value, deviation: the estimate and its standard deviation; the usual faulty value if no estimate was found.
        bound: largest shift of `value` by deterministic errors; `deviation` counts it as uniform, bound/√3.
        closed_form: roots and sizes of the network that the value equals, as `1/√32 = 1/√(the hidden size)`; empty if unknown.
    """

    parameter: str
    right: float
    wrong: float
    value: float
    deviation: float
    bound: float = 0.0
    closed_form: str = ""

    def is_wrong(self, threshold: float) -> bool:
        """Return whether the estimate differs from the correct value by more than rounding explains."""
        return abs(self.value - self.right) > self.room(threshold)

    def is_usual(self, storage: Format, threshold: float) -> bool:
        """Return whether the estimate is the usual wrong value, which the candidate may have rounded to its format."""
        room = threshold * self.deviation + storage.unit_roundoff * abs(self.wrong)
        return abs(self.value - self.wrong) <= room

    def room(self, threshold: float) -> float:
        """Return the largest shift of the estimate by random errors of `threshold` deviations plus deterministic errors."""
        return threshold * math.sqrt(max(self.deviation**2 - self.bound**2 / 3.0, 0.0)) + self.bound


@dataclass(frozen=True)
class Confirmed:
    """The correct value of a fault's parameter, and the smallest deviation from it that the fault's filter would detect.

    Attributes:
        parameter: name of the parameter.
        right: its value in the checkpoint.
        deviation: the deviation, with the sign of the usual one, at which the expected z is `SEPARABLE_Z`; infinite if it is beyond
            the usual one.
    """

    parameter: str
    right: float
    deviation: float


@dataclass(frozen=True)
class FilterResult:
    """The result of a fault's matched filter on one local residual.

    Attributes:
        name: name of the fault.
        step: activation whose step the fault changes.
        amplitude: <r,d>/<d,d>: 1 where the fault is present, 0 where it is not.
        z: <r,d> in standard deviations of the noise's own projection, minus the largest contribution of deterministic errors.
        expected_z: the value of z if the fault were present.
        detected: whether this filter finds that the residual is not noise.
        estimate: estimate of the parameter of a fault that explains the residual; None for a fault without a parameter.
        confirmed: what the filter of small deviations of a parameter confirms if it detects nothing; None for other filters.
    """

    name: str
    step: str
    amplitude: float
    z: float
    expected_z: float
    detected: bool = False
    estimate: Estimate | None = None
    confirmed: Confirmed | None = None

    @property
    def separable(self) -> bool:
        """Whether the fault, if present, could be distinguished from noise at this step."""
        return self.expected_z >= SEPARABLE_Z


@dataclass(frozen=True)
class Explanation:
    """A set of faults under which the oracle reproduces the candidate's array.

    Attributes:
        faults: the filter result of each fault, evaluated with all the other faults applied.
        free: number of fitted parameters.
        nll: −ln of the residual's likelihood under these faults, as `LocalJudgement.nll`.
        is_usual: whether each fitted parameter equals, within its error, the usual faulty value.
        draw_count: number ν of independent draws of the noise that `nll` counts.
        incomplete: whether a part of a fault's effect is left that only the errors explain that the fault allows.
    """

    faults: tuple[FilterResult, ...]
    free: int
    nll: float
    is_usual: bool = False
    draw_count: int = 1
    incomplete: bool = False

    @property
    def cost_of_parameters(self) -> float:
        """The cost of the fitted parameters, in nats.

        By Laplace's approximation of the likelihood, each parameter costs ln of the prior's width in standard deviations of the
        estimate. The width is taken from the data: the distance of the estimate from the correct value. A parameter without a
        standard deviation costs (ln ν) / 2, as in the Bayesian information criterion (Schwarz 1978); ν draws determine at most ν
        of them.
        """
        estimates = [fault.estimate for fault in self.faults if fault.estimate and fault.estimate.deviation > 0.0]
        estimated = sum(math.log(max(abs(e.value - e.right) / e.deviation, 1.0)) for e in estimates)
        others = min(max(self.free - len(estimates), 0), self.draw_count)
        return estimated + others * math.log(self.draw_count) / 2.0

    @property
    def cost(self) -> float:
        """−ln of the evidence, in nats: `nll`, which counts independent roundings, and the cost of the fitted parameters.

        It has the form of the Bayesian information criterion, whose (ln ν) / 2 per parameter is `cost_of_parameters` for a
        deviation that falls as 1/√ν. Parameters with usual values are not fitted: these were known before the array was seen.
        """
        return self.nll + (0.0 if self.is_usual else self.cost_of_parameters)


@dataclass(frozen=True)
class LocalJudgement:
    """The local judgement of an activation under one hypothesis.

    Attributes:
        hypothesis, arithmetic: description of the hypothesis, and name of its arithmetic.
        error: the residual in sigma, after subtracting the deterministic bound.
        nll: −ln of the residual's likelihood, taken as normal, up to a constant: ν/N Σ (e²/2 + ln σ), with N elements in ν
            independent rows.
        rms_threshold, max_threshold, filter_threshold: largest values that the statistics may take.
        filters: the result for every fault that was tested.
        explanations: if the judgement fails, the sets of faults that account for the residual, best first.
        distribution: if the judgement fails, the distribution of the residual, for display.
        has_unexposed_steps: whether steps between the activation and the captured ones it is computed from are not exposed.
        rests_on: what shows that the elements pass that are not tested exactly; `error` and `nll` are then those of a sample.
        row_nll: −ln of the likelihood of the rows' projections on a mistake (`row_nlls`), up to a constant; 0 unless
            only that mistake's filter fails and steps are not exposed.
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
    distribution: ErrorDistribution | None = field(default=None, repr=False)
    has_unexposed_steps: bool = False
    row_nll: float = 0.0
    rests_on: Basis = "every element"

    @property
    def evidence_threshold(self) -> float:
        """The evidence that corresponds to the false-alarm probability α of one statistic, in nats: ln 2/α.

        It is half the square of the filters' threshold.
        """
        return evidence_threshold(self.filter_threshold)

    @property
    def detected(self) -> tuple[FilterResult, ...]:
        """The results of the filters that find that the residual is not noise."""
        return tuple(f for f in self.filters if f.detected)

    @property
    def named(self) -> tuple[FilterResult, ...]:
        """The faults of the best explanation; empty if there is none."""
        return self.explanations[0].faults if self.explanations else ()

    @property
    def alternatives(self) -> tuple[Explanation, ...]:
        """The explanations that cannot be distinguished from the best one on this batch.

        They have as many faults as the best one and no additional fitted parameters with unusual values, and their nll exceeds the
        best one's by less than the evidence threshold.
        """
        if not self.explanations:
            return ()
        best, *others = self.explanations
        named = {tuple(f.name for f in best.faults)}
        alike = []
        for other in others:
            names = tuple(f.name for f in other.faults)
            if (
                names not in named
                and (other.free == best.free or other.is_usual)
                and other.nll - best.nll < self.evidence_threshold
            ):
                named.add(names)
                alike.append(other)
        return tuple(alike)

    @property
    def passes(self) -> bool:
        """Whether no statistic exceeds its threshold; an exact activation passes only if it is equal everywhere."""
        rms, largest = self.error.rms, self.error.max
        if rms is None or largest is None:
            return self.error.max_abs == 0.0
        return rms <= self.rms_threshold and largest <= self.max_threshold and not self.detected

    @property
    def fails_by_filters_alone(self) -> bool:
        """Whether RMS and maximum are within their thresholds while a filter's z exceeds its own."""
        return bool(self.detected) and replace(self, filters=()).passes

    @property
    def excess(self) -> float:
        """The largest ratio of a statistic to its threshold, used to sort failures; infinite if an exact activation differs."""
        rms, largest = self.error.rms, self.error.max
        if rms is None or largest is None:
            return float("inf") if self.error.max_abs else 0.0
        filtered = [abs(f.z) / self.filter_threshold for f in self.detected]
        return max(rms / self.rms_threshold, largest / self.max_threshold, *filtered)


@dataclass(frozen=True)
class Verdict:
    """The judgement of one activation.

    Attributes:
        activation: name of the activation.
        kind: kind of its step.
        outcome: `pass`, `fail`, `not_observed`, or `xfail` for a known failure.
        role: `origin`, `amplifier`, `attenuator` or None.
        local: the local judgement under the selected hypothesis; None if not judged.
        global_error: the global error; None if not judged.
        reason: in words, the violation of the contract, the difference of an exact activation, or why nothing is judged.
        batch: name of the golden's batch, if it has several.
        residual_description: sentences that describe an unexplained residual.
        backward_of: for a gradient of an activation, the forward step whose backward pass yields it; empty for a sum of gradients.
        why_unjudged: for an exposed activation that is not judged because of another one, whether a parent is not finite, its
            wrong inputs make it overflow, or a forward step is wrong; otherwise empty.
        computed_after: for an activation that arrives after the output of a later layer, the index of that layer.
    """

    activation: str
    kind: str
    outcome: Literal["pass", "fail", "not_observed", "xfail"]
    role: str | None = None
    local: LocalJudgement | None = None
    global_error: Error | None = None
    reason: str = ""
    batch: str = ""
    residual_description: tuple[str, ...] = ()
    backward_of: str = ""
    why_unjudged: Literal["", "non-finite parent", "overflow of wrong inputs", "wrong forward step"] = ""
    computed_after: int | None = None

    @property
    def unjudged(self) -> bool:
        """Whether the candidate exposes the activation, but it is not finite because of an activation before it."""
        return self.outcome == "not_observed" and self.why_unjudged in ("non-finite parent", "overflow of wrong inputs")

    @property
    def is_through_wrong_step(self) -> bool:
        """Whether this is a gradient that is not judged because the forward step that it is differentiated through is wrong."""
        return self.outcome == "not_observed" and self.why_unjudged == "wrong forward step"

    @property
    def is_unexposed(self) -> bool:
        """Whether the candidate does not expose the activation; False for an exposed activation without a judged element."""
        return self.outcome == "not_observed" and not self.reason

    @property
    def place(self) -> str:
        """The name of the activation, followed by the batch's name in brackets if there are several batches."""
        return f"{self.activation} [{self.batch}]" if self.batch else self.activation
