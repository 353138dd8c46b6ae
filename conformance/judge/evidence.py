"""What the judge concludes, as frozen values."""

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
        parameter, right, wrong: the number that it gets wrong, its value and the fault's; or None.

    """

    name: str
    step: str
    amplitude: float
    z: float
    expected_z: float
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

    def accepted(self, threshold: float) -> bool:
        """Z beyond its threshold, and the residual nearer to the fault than to no fault: |r − d| < |r|, so amplitude > 1/2."""
        return self.z > threshold and self.amplitude > 0.5


@dataclass(frozen=True)
class Local:
    """The local judgement under one hypothesis."""

    hypothesis: str
    error: Error
    rms_threshold: float
    max_threshold: float
    filter_threshold: float
    filters: tuple[Filtered, ...] = ()

    @property
    def named(self) -> tuple[Filtered, ...]:
        """The faults that the filters accept, strongest first."""
        accepted = [f for f in self.filters if f.accepted(self.filter_threshold)]
        return tuple(sorted(accepted, key=lambda f: abs(f.amplitude - 1.0)))

    @property
    def passes(self) -> bool:
        """Whether every statistic stays below its threshold; an exact activation has no room at all."""
        rms, largest = self.error.rms, self.error.max
        if rms is None or largest is None:
            return self.error.max_abs == 0.0
        return rms <= self.rms_threshold and largest <= self.max_threshold and not self.named

    @property
    def excess(self) -> float:
        """How many times the nearest threshold; the order of worst first."""
        rms, largest = self.error.rms, self.error.max
        if rms is None or largest is None:
            return float("inf") if self.error.max_abs else 0.0
        named = [f.z / self.filter_threshold for f in self.named]
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
