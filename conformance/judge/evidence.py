"""What the judge concludes, as frozen values."""

import math
from dataclasses import dataclass

from conformance.judge.statistics import SEPARABLE_Z


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
class Filtered:
    """A fault's matched filter on one local residual.

    Attributes:
        name: the fault's.
        step: the activation whose step it strikes.
        amplitude: <r,d>/<d,d>: 1 where the fault is present, 0 where it is not.
        z: <r,d> in standard deviations of the noise's own projection.
        expected_z: what z would be if the fault were present.
        amplitude_sd, amplitude_bound: standard deviation of the amplitude, and what deterministic errors can add to it.
        parameter, right, wrong: the number that it gets wrong, its value and the fault's; or None.
    """

    name: str
    step: str
    amplitude: float
    z: float
    expected_z: float
    amplitude_sd: float
    amplitude_bound: float
    parameter: str | None = None
    right: float | None = None
    wrong: float | None = None

    @property
    def estimate(self) -> float | None:
        """What the residual says the parameter is."""
        if self.right is None or self.wrong is None:
            return None
        return self.right + self.amplitude * (self.wrong - self.right)

    @property
    def separable(self) -> bool:
        """Whether the fault, were it there, could be told from noise here."""
        return self.expected_z >= SEPARABLE_Z

    def detects(self, threshold: float) -> bool:
        """z beyond its threshold, and the residual nearer to the fault than to no fault: |r − d| < |r|, so amplitude > 1/2."""
        return self.z > threshold and self.amplitude > 0.5

    def names(self, threshold: float) -> bool:
        """Detected, with an amplitude within its error of 1: random, up to the threshold, and deterministic, up to its bound."""
        room = threshold * self.amplitude_sd + self.amplitude_bound
        return self.detects(threshold) and abs(self.amplitude - 1.0) <= room


@dataclass(frozen=True)
class Local:
    """The local judgement under one hypothesis."""

    hypothesis: str
    arithmetic: str
    error: Error
    rows: int
    rms_threshold: float
    max_threshold: float
    filter_threshold: float
    filters: tuple[Filtered, ...] = ()

    @property
    def detected(self) -> tuple[Filtered, ...]:
        """The faults whose filters say that the residual is no noise."""
        return tuple(f for f in self.filters if f.detects(self.filter_threshold))

    @property
    def named(self) -> tuple[Filtered, ...]:
        """Of those, the ones that the residual is: nearest to amplitude 1 first."""
        accepted = [f for f in self.filters if f.names(self.filter_threshold)]
        return tuple(sorted(accepted, key=lambda f: abs(f.amplitude - 1.0)))

    @property
    def misfit(self) -> float:
        """How badly sigma fits the residual, in nats: ν/2 · (ρ² − 1 − ln ρ²), ρ the RMS in sigma over ν independent rows.

        The log-likelihood of normal errors of that RMS, against a sigma that fits them; too wide a sigma costs as well. A step
        that fails costs what a failure is worth, ln 1/α, and no more: it is a fault, whatever the arithmetic.
        """
        ceiling = self.filter_threshold**2 / 2.0
        if self.error.rms is None or not self.passes:
            return ceiling
        square = max(self.error.rms**2, math.exp(-ceiling))
        return min(self.rows / 2.0 * (square - 1.0 - math.log(square)), ceiling)

    @property
    def passes(self) -> bool:
        """Whether every statistic stays below its threshold; an exact activation has no room at all."""
        rms, largest = self.error.rms, self.error.max
        if rms is None or largest is None:
            return self.error.max_abs == 0.0
        return rms <= self.rms_threshold and largest <= self.max_threshold and not self.detected

    @property
    def excess(self) -> float:
        """How many times the nearest threshold; the order of worst first."""
        rms, largest = self.error.rms, self.error.max
        if rms is None or largest is None:
            return float("inf") if self.error.max_abs else 0.0
        named = [f.z / self.filter_threshold for f in self.detected]
        return max(rms / self.rms_threshold, largest / self.max_threshold, *named)


@dataclass(frozen=True)
class Verdict:
    """One activation's judgement.

    Attributes:
        outcome: `pass`, `fail` or `not_observed`.
        role: `origin`, `amplifier`, `attenuator` or None.
        local: the local judgement under the hypothesis chosen for this kind of step; None where not judged.
        overall: the global error; None where not judged.
        padded: largest absolute local difference at padded rows, reported and not judged.
        reason: what broke the contract, or how an exact activation differs, in words.
    """

    activation: str
    kind: str
    outcome: str
    role: str | None = None
    local: Local | None = None
    overall: Error | None = None
    padded: float | None = None
    reason: str = ""
