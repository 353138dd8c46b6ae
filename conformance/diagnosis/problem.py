"""The search for faults in the outputs of a black box: the printed numbers under every pooling, with the network's sigma.

Filters on the outputs of the correct network say which faults are in them, and which would have been detected if present.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from conformance.diagnosis.black_box import BlackBoxSegment
from conformance.diagnosis.inputs import OtherInputs
from conformance.diagnosis.judgement import PROMISING, Agreement, JudgedForward
from conformance.judge.evidence import Estimate
from conformance.judge.filters import GROSS, expected_z, is_detected, is_gross, largest_element, project
from conformance.judge.search.parameters import estimates, fitted
from conformance.judge.search.placements import FaultPlacement, with_faults
from conformance.judge.search.problem import FittedFaults, Problem, Trial
from conformance.numerics.formats import NUDGE, Array

TOKENS = 32  # number of tokens in the rows on which sets are compared; the cost of a pass is proportional to it
NUMBERS = 64  # how many numbers these rows should have; fewer suffice to distinguish some hundred sets
# A set that exceeds an explanation's distance on a part of the batch by this multiple of the evidence threshold (distances are
# twice the negative log-likelihood) cannot be tied with the explanation.
TIES = 8.0
# The RMS of correct runs is 0.3 to 2 sigma; an error with a smaller RMS is not explained by another format's noise.
LEAST_RMS = 0.3
NO_FAULTS = FittedFaults((), np.zeros(1))  # the fit of a trial without faults of the network, whose distance is not compared
WIDER = 2.0  # multiple of the correct network's sigma beyond which an explanation consists mostly of noise


@dataclass(frozen=True, eq=False, kw_only=True)
class PrintedTrial(Trial):
    """A judged set of faults, or another hypothesis about the system.

    Attributes:
        agreement: the agreement of the numbers with the network that has these faults.
        dtype: name of the format in which the network is computed.
        inputs: the inputs that were read instead of the batch; None for the batch.
    """

    agreement: Agreement
    dtype: str
    inputs: OtherInputs | None = None

    @property
    def complexity(self) -> int:
        """The number of faults, free parameters and other inputs."""
        return len(self.fit.placements) + self.fit.free + (self.inputs is not None)


class Filtered(NamedTuple):
    """The result of the filter of a fault under one pooling.

    Attributes:
        name: name of the fault.
        expected_z: the z that the fault would have if it were present; 0 if it changes none of the numbers.
        effect: the fault's effect, if it is in the residual beyond noise; else None.
    """

    name: str
    expected_z: float
    effect: Array | None = None


class PrintedProblem(Problem[PrintedTrial]):
    """The printed numbers, and the correct network's sigma, with which all faulty networks are compared.

    Attributes:
        right: the correct network, on the whole batch or a part of it.
        sigma: its sigma, (P, N).
    """

    right: BlackBoxSegment
    beam = 4  # each set costs passes over the network
    is_screened = True

    def __init__(
        self,
        base: JudgedForward,
        patterns: Sequence[Array] = (),
        most: float = math.inf,
        part: tuple[BlackBoxSegment, Array] | None = None,
    ) -> None:
        """Bind the correct network to what an explanation must pass.

        Args:
            base: the correct network, on the whole batch, under the arithmetic that is taken for the system's.
            patterns: effects of faults whose filters found that the residual is not noise; under an explanation they must not.
            most: the negative log-likelihood of the correct network, which an explanation must not exceed.
            part: the correct network on a part of the batch, and its sigma; None for the whole batch.
        """
        right, self.sigma = part or (base.forward, base.sigma)
        super().__init__(right, right.storage, right.network.reading.actual, 1.0 / self.sigma)
        self._base, self._patterns, self._most = base, patterns, most

    def part(self, placements: Sequence[FaultPlacement]) -> "PrintedProblem":
        """Return the problem on the part of the batch where the network with these faults leaves the largest residual."""
        rows = self.rows(placements)
        if len(rows) == self.right.network.batch.size:
            return self
        kept = np.isin(self.right.network.reading.rows, rows)
        right = BlackBoxSegment(self.right.network.of_rows(rows), self.storage)
        return PrintedProblem(self._base, self._patterns, self._most, (right, self.sigma[:, kept]))

    def rows(self, placements: Sequence[FaultPlacement] = ()) -> list[int]:
        """Return the rows of the batch with the largest residual under these faults, until there are enough numbers and tokens."""
        batch, reading = self.right.network.batch, self.right.network.reading
        if (reading.rows < 0).any():
            return list(range(batch.size))
        with np.errstate(all="ignore"):
            left = np.square(self.residual(placements) * self.weights).min(0)
        by_row = np.bincount(reading.rows, np.where(np.isfinite(left), left, np.finfo(np.float32).max), batch.size)
        counted = np.bincount(reading.rows, minlength=batch.size)
        chosen: list[int] = []
        for row in np.argsort(-by_row, kind="stable"):
            if chosen and (len(chosen) + 1) * batch.length > TOKENS and counted[chosen].sum() >= NUMBERS:
                break
            if counted[row]:
                chosen.append(int(row))
        return sorted(chosen)

    def filters(self, pooling_index: int) -> Iterator[Filtered]:
        """Apply every filter under one pooling; a gross fault needs none, because the largest error reveals it.

        The effect of a fault that is gross on a part of the batch is not computed on the whole batch.
        """
        part, forward, limits = self.part(()), self._base.forward, self._base.limits(pooling_index)
        noise, residual = self._base.noise(pooling_index), self._base.residual[pooling_index]
        ancestors = forward.ancestors(pooling_index)
        for placement in (p for p in forward.filtered if not ancestors.isdisjoint(p.places)):
            on_part = effect_of_fault(part.right, placement, None, pooling_index)
            z = 0.0 if on_part is None else float((np.abs(on_part) / part.sigma[pooling_index]).max())
            pattern = None
            if not is_gross(z, limits.max):
                pattern = effect_of_fault(forward, placement, None, pooling_index)
                z = 0.0 if pattern is None else expected_z(pattern, noise, limits.max)
            if placement.fault.parameter is not None:  # for a slightly wrong parameter, the effect is the derivative
                right, wrong = placement.right(forward), placement.wrong(forward)
                pattern = effect_of_fault(forward, placement, right + NUDGE * abs(wrong - right), pooling_index)
            elif pattern is not None and is_gross(largest_element(pattern, noise), limits.max):
                pattern = None
            projection = None if pattern is None else project(residual, pattern, noise)
            signed = placement.fault.parameter is None
            is_present = projection is not None and is_detected(projection, limits.filter, signed=signed)
            yield Filtered(placement.fault.name, z, pattern if is_present else None)

    def fit_unless_refuted(self, fit: FittedFaults, whole: Problem[PrintedTrial], *, own: bool) -> FittedFaults | None:
        """Return the set with its parameters fitted again on a part of the batch; None if the part refutes it for the whole batch.

        Σ r²/σ² and the largest error of the whole batch are at least those of a part. Parameters fitted to the whole batch, and the
        set's own sigma, change errors by only a few sigma, so an error of `GROSS` times the limit remains beyond it.
        """
        limits = self._base.limits(fit.pooling_index)
        if fit.distance > (PROMISING * limits.rms) ** 2 * whole.weights.shape[1]:
            return fit if own and self._own_could(fit) else None
        fit = fitted(self, fit)
        largest = self._judged(fit, self.sigma).largest.min()
        if largest <= limits.max * (GROSS if fit.free else 1.0) or (own and self._own_could(fit)):
            return fit
        return None

    def _own_could(self, fit: FittedFaults) -> bool:
        """Return whether the errors on a part of the batch are not gross by the set's own sigma."""
        judged, most = self._judged(fit), GROSS * self._base.limits(fit.pooling_index).max
        if judged.largest[fit.pooling_index] > most * math.sqrt(self.right.network.batch.length):  # sigma is widened by at most √S
            return False
        return bool(judged.correlated([fit.pooling_index]).largest[fit.pooling_index] <= most)

    def _judged(self, fit: FittedFaults, sigma: Array | None = None) -> JudgedForward:
        """Return the network with a set of faults, and a sigma; its own if it is not given."""
        faulty = cast(BlackBoxSegment, self.faulty(fit.placements).segment)
        return JudgedForward(faulty, self._base.hypothesis, self._base, sigma)

    def fit_on_whole(self, fit: FittedFaults) -> FittedFaults:
        """Return a set of faults on the whole batch, with its parameters fitted again unless its distance is large."""
        fit = self.evaluate(fit.placements) or FittedFaults(fit.placements, self.none.squares)
        rms = math.sqrt(fit.distance / self.weights.shape[1])
        is_near = rms <= PROMISING * self._base.limits(fit.pooling_index).rms
        return fitted(self, fit) if is_near else fit

    def judge(self, fit: FittedFaults, *, own: bool) -> PrintedTrial:
        """Return the trial of a set on the whole batch.

        The set is judged by the correct network's sigma or, if that fails and `own` is set, by its own sigma. The numbers must
        determine every parameter, so that no estimate has an infinite error.
        """
        index = fit.pooling_index
        judged = self._judged(fit, self.sigma)
        if own and not judged.agreement(index).passes:
            judged = self._judged(fit).correlated([index])
        agreement = judged.agreement(index)
        wider = float(np.median(judged.sigma[index] / self.sigma[index])) > WIDER
        explains = agreement.passes and (not wider or agreement.rms >= LEAST_RMS) and agreement.nll < self._most
        if explains and self._patterns:
            left = (project(judged.residual[index], pattern, judged.noise(index)) for pattern in self._patterns)
            explains = all(p is None or abs(p.z) <= self._base.limits(index).filter for p in left)
        numbers = self._estimates(fit) if explains else ()
        explains = explains and all(estimate is None or math.isfinite(estimate.deviation) for estimate in numbers)
        return PrintedTrial(fit, explains, wider, numbers=numbers, agreement=agreement, dtype=self.storage.name)

    def _estimates(self, fit: FittedFaults) -> tuple[Estimate | None, ...]:
        """Return the estimate of each fault's parameter, with its deviation by the random part of the correct network's noise."""
        index = fit.pooling_index
        noise = self._base.noise(index)
        return estimates(self, fit, lambda direction: (noise.projected(direction)[0], 0.0), self.weights[index])

    def tie(self, fit: FittedFaults) -> float:
        """Return by how much the distances of two sets on a part of the batch may differ that cannot be distinguished."""
        return TIES * self._base.limits(fit.pooling_index).evidence_threshold


def effect_of_fault(right: BlackBoxSegment, placement: FaultPlacement, value: float | None, pooling_index: int) -> Array | None:
    """Return the effect of a fault on the numbers, with the usual faulty value if `value` is None, or None if it has none."""
    faulty = with_faults(right, [placement.of(value)], right.storage)
    if not faulty.is_effective:
        return None
    effect = faulty.segment.value[pooling_index] - right.value[pooling_index]
    return np.where(np.isfinite(effect), effect, np.sign(effect) * np.finfo(np.float32).max) if effect.any() else None
