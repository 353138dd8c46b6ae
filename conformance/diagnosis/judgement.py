"""Whether a network, right or faulty, could have printed these numbers.

Sigma is that of every rounding on the way, propagated, and of printing. Printing rounds each number by itself; errors of the
network are shared, in the worst case by a whole sequence. So of N numbers

    ν = Σ_i [p_i + (1 − p_i) · R/N] / m_i,     p_i = printing's share of the variance, R sequences, m_i copies of the sequence

count as independent, each with its summand ω_i: in thresholds, and in the likelihood −Σ ω_i (e_i²/2 + ln σ_i).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conformance.diagnosis.closed import PRINTED
from conformance.diagnosis.hypotheses import Forward
from conformance.judge.noise import Noise
from conformance.judge.statistics import max_threshold, projection_threshold, rms_threshold, share
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array


@dataclass(frozen=True)
class Limits:
    """The largest that RMS, largest error and |z| of a filter may be."""

    rms: float
    max: float
    filter: float

    @property
    def worth(self) -> float:
        """ln 2/α: by how many nats one explanation must be likelier than another to be told from it."""
        return self.filter**2 / 2.0


@dataclass(frozen=True)
class Agreement:
    """How far the numbers printed are from those of a network, under one pooling.

    Attributes:
        lane: the pooling.
        rms, max: in sigma.
        surprise: −ln of the likelihood, up to a constant, in nats.
    """

    lane: int
    rms: float
    max: float
    surprise: float


class Judged:
    """A network's numbers with their noise."""

    def __init__(self, forward: Forward, hypothesis: Hypothesis, sigma: Array | None = None) -> None:
        """`hypothesis` is how a correct system may have computed them; `sigma`, where given, is not propagated again."""
        self.forward, self.hypothesis = forward, hypothesis
        self.made = forward.network.reading.made
        if sigma is not None:
            self.sigma = sigma

    @cached_property
    def sigma(self) -> Array:
        """(P, N)."""
        with np.errstate(all="ignore"):
            return np.sqrt(self.forward.propagate({}, self.hypothesis))

    @cached_property
    def residual(self) -> Array:
        """(P, N): what was made less the network's."""
        return np.asarray(self.made - self.forward.value)

    @cached_property
    def independent(self) -> Array:
        """(P, N): ω, how much of a draw of its own each number is."""
        reading, batch = self.forward.network.reading, self.forward.network.batch
        printing = self.forward.steps[PRINTED].roundings(self.hypothesis.arithmetic).variance()
        own = np.minimum(printing / self.sigma**2, 1.0)
        inputs = np.concatenate([batch.input_ids, batch.mask, batch.types], 1)
        _, number, count = np.unique(inputs, axis=0, return_inverse=True, return_counts=True)
        copies = np.where(reading.rows < 0, 1, count[number.reshape(-1)[reading.rows]])
        printed = number.reshape(-1)[reading.rows]
        return np.asarray((own + (1.0 - own) * len(np.unique(printed)) / own.shape[1]) / copies)

    def noise(self, lane: int) -> Noise:
        """For filters: a direction of (N,) stands for that lane's."""

        def projected(weights: Array) -> tuple[float, float]:
            wide = np.zeros_like(self.sigma)
            wide[lane] = weights
            return self.forward.projected(wide, self.hypothesis)

        sigma = self.sigma[lane]
        return Noise(sigma, 0.0, np.ones(sigma.shape, np.bool_), projected)

    def agreement(self, lane: int, independent: Array) -> Agreement:
        """By RMS, largest error and likelihood; `independent` is the right network's ω, so that likelihoods compare."""
        with np.errstate(all="ignore"):
            e, sigma = self.residual[lane] / self.sigma[lane], self.sigma[lane]
            surprise = float((independent[lane] * (e**2 / 2.0 + np.log(sigma))).sum())
            rms, largest = float(np.sqrt((e**2).mean())), float(np.abs(e).max())
        if not math.isfinite(surprise):
            return Agreement(lane, math.inf, math.inf, math.inf)
        return Agreement(lane, rms, largest, surprise)

    def limits(self, lane: int, tests: int) -> Limits:
        """Each of `tests` statistics has its share of a run's false-alarm probability."""
        alpha = share(tests)
        rows = max(int(self.independent[lane].sum()), 1)
        return Limits(rms_threshold(rows, alpha), max_threshold(len(self.made), alpha), projection_threshold(alpha))


def allowed(agreement: Agreement, limits: Limits) -> bool:
    """Whether RMS and largest error are within their limits."""
    return agreement.rms <= limits.rms and agreement.max <= limits.max
