"""Test whether a network, correct or with faults, could have printed the given numbers.

Sigma is propagated from every rounding of the network and of printing. Printing rounds each number independently; errors of the
network are shared, in the worst case by a whole sequence. Therefore, of N numbers,

    ν = Σ_i [p_i + (1 − p_i) · R/N] / m_i,     p_i = printing's share of the variance, R sequences, m_i copies of the sequence

count as independent, and each number has the weight ω_i, its term of the sum, in thresholds and in the likelihood
−Σ ω_i (e_i²/2 + ln σ_i).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from conformance.diagnosis.black_box import PRINTED, BlackBoxSegment
from conformance.judge.noise import Noise
from conformance.judge.threads import on_all_cores
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import FALSE_ALARM, Limits

# Number of sequences that are propagated. It gives the ratio a relative deviation of √(2/modes), 0.04 to 0.07: 24 sweeps of
# `projected` showed 190 modes in the hidden states of one sequence of MiniLM's golden and 47 in its mean; in those of five, 1594
# and 293.
PROBES = 8
VISIBLE = 0.02  # share of a variance that changes sigma by a percent: the third digit, which is the last one reported
# Multiple of the limit of the RMS on the whole batch beyond which no more accurate parameters bring a set below the limit.
PROMISING = 8.0


@dataclass(frozen=True)
class Agreement:
    """The agreement of the printed numbers with those of a network, under one pooling.

    Attributes:
        pooling_index: index of the pooling.
        rms, max: RMS and maximum of the error, in sigma.
        nll: −ln of the likelihood, up to a constant, in nats.
        passes: whether RMS and maximum are within their limits.
    """

    pooling_index: int
    rms: float
    max: float
    nll: float
    passes: bool


class JudgedForward:
    """The numbers of a network with their noise.

    Attributes:
        forward: the network.
        hypothesis: how a correct system computes it.
        actual: the printed numbers.
        base: the correct network, whose weights and limits are those of every network that the numbers are compared with.
    """

    def __init__(
        self,
        forward: BlackBoxSegment,
        hypothesis: Hypothesis,
        base: "JudgedForward | None" = None,
        sigma: Array | None = None,
    ) -> None:
        """Bind a network to a hypothesis; without `base` it is the correct one; `sigma`, if given, is not propagated again."""
        self.forward, self.hypothesis, self.base = forward, hypothesis, base or self
        self.actual = forward.network.reading.actual
        if sigma is not None:
            self.sigma = sigma

    @cached_property
    def sigma(self) -> Array:
        """Standard deviation of each number's error, (P, N)."""
        with np.errstate(all="ignore"):
            return np.sqrt(self.forward.propagate({}, self.hypothesis))

    @cached_property
    def residual(self) -> Array:
        """Printed minus expected numbers, (P, N)."""
        return np.asarray(self.actual - self.forward.value)

    @property
    def largest(self) -> Array:
        """The largest error under each pooling, in sigma, (P,); infinite if the network yields a non-finite number."""
        with np.errstate(all="ignore"):
            largest = np.abs(self.residual / self.sigma).max(1)
        return np.where(np.isfinite(largest), largest, np.inf)

    @cached_property
    def independent(self) -> Array:
        """The weight ω of each number as a fraction of an independent draw, (P, N)."""
        printing = self._printing_share
        copies, sequences = self._sequences
        return np.asarray((printing + (1.0 - printing) * sequences / printing.shape[1]) / copies)

    @cached_property
    def _printing_share(self) -> Array:
        """Printing's share of each number's variance, (P, N)."""
        printing = self.forward.steps[PRINTED].roundings(self.hypothesis.arithmetic).variance()
        return np.asarray(np.minimum(printing / self.sigma**2, 1.0))

    @cached_property
    def _sequences(self) -> tuple[Array, int]:
        """The number of copies of each number's sequence, (N,), and the number of different sequences that were printed."""
        reading, batch = self.forward.network.reading, self.forward.network.batch
        inputs = np.concatenate([batch.input_ids, batch.mask, batch.types], 1)
        _, number, count = np.unique(inputs, axis=0, return_inverse=True, return_counts=True)
        printed = number.reshape(-1)[reading.rows]
        return np.where(reading.rows < 0, 1, count[printed]), len(np.unique(printed))

    def widened(self) -> "JudgedForward":
        """Return a copy with the correlation of errors of different tokens, under each pooling that could be the correct one."""
        with np.errstate(all="ignore"):
            rms = np.sqrt(np.square(self.residual / self.sigma).mean(1))
        rms[~np.isfinite(rms)] = np.inf
        return self.correlated(np.flatnonzero(rms <= PROMISING * rms.min()).tolist())

    def correlated(self, pooling_indices: Iterable[int]) -> "JudgedForward":
        """Return a copy in which the network's part of sigma is widened for the correlation of errors of different tokens.

        Elementwise propagation treats the errors that a step sums as independent, but pooling sums errors of tokens that were
        computed from the same values. For random signs z, the variance of the noise along z/σ has mean Σ V_i/σ_i², with V_i the
        true variances; the ratio of this mean to N yields the factor c by which the network's variance is too small. A factor below
        1 is not used. The factor is at most the sequence length S: if S times the network's share does not change the reported RMS,
        the factor is not computed. Different sequences share no error, so one sweep over R sequences is equivalent to R sweeps over
        one.

        Args:
            pooling_indices: indices of the poolings for which sigma is widened.
        """
        sigma = np.array(self.sigma)
        length, count = self.forward.network.batch.length, sigma.shape[1]
        rng = np.random.default_rng(0)
        shares = {pooling_index: 1.0 - self._printing_share[pooling_index] for pooling_index in pooling_indices}
        wide = [pooling_index for pooling_index, network in shares.items() if network.mean() * length > VISIBLE]
        signs = {pooling_index: rng.choice((-1.0, 1.0), (math.ceil(PROBES / self._sequences[1]), count)) for pooling_index in wide}
        sweeps = [(pooling_index, row / self.sigma[pooling_index]) for pooling_index in wide for row in signs[pooling_index]]
        variances = on_all_cores(lambda sweep: self.noise(sweep[0]).projected(sweep[1])[0], sweeps)
        for pooling_index in wide:
            network = shares[pooling_index]
            ratio = float(np.mean([v for (of, _), v in zip(sweeps, variances, strict=True) if of == pooling_index])) / count
            factor = max((ratio - 1.0) / float(network.mean()) + 1.0, 1.0)
            sigma[pooling_index] = self.sigma[pooling_index] * np.sqrt(1.0 + (factor - 1.0) * network)
        return JudgedForward(self.forward, self.hypothesis, None if self.base is self else self.base, sigma)

    def noise(self, pooling_index: int) -> Noise:
        """Return the noise under one pooling, for filters whose directions are of shape (N,)."""

        def projected(weights: Array) -> tuple[float, float]:
            wide = np.zeros_like(self.sigma)
            wide[pooling_index] = weights
            return self.forward.projected(wide, self.hypothesis)

        sigma = self.sigma[pooling_index]
        return Noise(sigma, 0.0, np.ones(sigma.shape, np.bool_), projected)

    def agreement(self, pooling_index: int) -> Agreement:
        """Return RMS, maximum and likelihood; weighted as for the correct network, so that likelihoods are comparable."""
        with np.errstate(all="ignore"):
            e, sigma = self.residual[pooling_index] / self.sigma[pooling_index], self.sigma[pooling_index]
            nll = float((self.base.independent[pooling_index] * (e**2 / 2.0 + np.log(sigma))).sum())
            rms, largest = float(np.sqrt((e**2).mean())), float(np.abs(e).max())
        if not math.isfinite(nll):
            return Agreement(pooling_index, math.inf, math.inf, math.inf, passes=False)
        limits = self.base.limits(pooling_index)
        return Agreement(pooling_index, rms, largest, nll, rms <= limits.rms and largest <= limits.max)

    def best(self) -> Agreement:
        """Return the agreement under the likeliest of the poolings that a correct system may have."""
        return min((self.agreement(index) for index in self.forward.network.right_poolings), key=lambda a: a.nll)

    def limits(self, pooling_index: int) -> Limits:
        """Return the limits if RMS, largest error and each filter share a run's false-alarm probability."""
        rows = max(int(self.independent[pooling_index].sum()), 1)
        return Limits.of(rows, len(self.actual), 2 + len(self.forward.filtered), FALSE_ALARM)
