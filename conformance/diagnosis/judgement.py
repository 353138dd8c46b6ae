"""Whether a network, right or faulty, could have printed these numbers.

Sigma is that of every rounding on the way, propagated, and of printing. Printing rounds each number by itself; errors of the
network are shared, in the worst case by a whole sequence. So of N numbers

    ν = Σ_i [p_i + (1 − p_i) · R/N] / m_i,     p_i = printing's share of the variance, R sequences, m_i copies of the sequence

count as independent, each with its summand ω_i: in thresholds, and in the likelihood −Σ ω_i (e_i²/2 + ln σ_i).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from conformance.diagnosis.closed import PRINTED
from conformance.diagnosis.hypotheses import Forward
from conformance.judge.cores import on_all_cores
from conformance.judge.noise import Noise
from conformance.judge.statistics import max_threshold, projection_threshold, rms_threshold, share
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property

# Sequences that are swept, for a ratio's relative deviation of √(2/modes), 0.04 to 0.07: 24 sweeps of `projected` showed 190 modes
# in the hidden states of one sequence of MiniLM's golden and 47 in its mean; in those of five, 1594 and 293.
PROBES = 8
VISIBLE = 0.02  # of a variance: a percent of a sigma, the third digit, which is the last that is reported


@dataclass(frozen=True)
class Limits:
    """The largest that RMS, largest error and |z| of a filter may be."""

    rms: float
    max: float
    filter: float

    @property
    def evidence_threshold(self) -> float:
        """ln 2/α: by how many nats one explanation must be likelier than another to be distinguished from it."""
        return self.filter**2 / 2.0


@dataclass(frozen=True)
class Agreement:
    """How far the numbers printed are from those of a network, under one pooling.

    Attributes:
        pooling_index: the pooling.
        rms, max: in sigma.
        nll: −ln of the likelihood, up to a constant, in nats.
    """

    pooling_index: int
    rms: float
    max: float
    nll: float


class JudgedForward:
    """A network's numbers with their noise."""

    def __init__(self, forward: Forward, hypothesis: Hypothesis, sigma: Array | None = None) -> None:
        """`hypothesis` is how a correct system may have computed them; `sigma`, where given, is not propagated again."""
        self.forward, self.hypothesis = forward, hypothesis
        self.actual = forward.network.reading.actual
        if sigma is not None:
            self.sigma = sigma

    @cached_property
    def sigma(self) -> Array:
        """(P, N)."""
        with np.errstate(all="ignore"):
            return np.sqrt(self.forward.propagate({}, self.hypothesis))

    @cached_property
    def residual(self) -> Array:
        """(P, N): the numbers printed, less the network's."""
        return np.asarray(self.actual - self.forward.value)

    @cached_property
    def independent(self) -> Array:
        """(P, N): ω, how much of a draw of its own each number is."""
        own = self._printing_share
        copies, sequences = self._sequences
        return np.asarray((own + (1.0 - own) * sequences / own.shape[1]) / copies)

    @cached_property
    def _sequences(self) -> tuple[Array, int]:
        """(N,): how many copies of its sequence there are, for each number; and how many different sequences were printed."""
        reading, batch = self.forward.network.reading, self.forward.network.batch
        inputs = np.concatenate([batch.input_ids, batch.mask, batch.types], 1)
        _, number, count = np.unique(inputs, axis=0, return_inverse=True, return_counts=True)
        printed = number.reshape(-1)[reading.rows]
        return np.where(reading.rows < 0, 1, count[printed]), len(np.unique(printed))

    def correlated(self, lanes: Iterable[int]) -> "JudgedForward":
        """The same, the network's part of sigma widened under these poolings as far as errors of different tokens are alike.

        Elementwise propagation takes the errors that a step sums for independent, and pooling sums those of tokens that read the
        same values. For signs z at random the noise along z/σ has a variance of mean Σ V_i/σ_i², V_i the true ones: the ratio of
        that to N says by what factor c the network's part is too small; below 1 it is left. At most the length S: where S times the
        network's share changes nothing of the RMS that is reported, it is not looked for. Different sequences share no error, so
        that one sweep of R of them is as good as R sweeps of one.
        """
        sigma = np.array(self.sigma)
        length, count = self.forward.network.batch.length, sigma.shape[1]
        rng = np.random.default_rng(0)
        shares = {pooling_index: 1.0 - self._printing_share[pooling_index] for pooling_index in lanes}
        wide = [pooling_index for pooling_index, network in shares.items() if network.mean() * length > VISIBLE]
        signs = {pooling_index: rng.choice((-1.0, 1.0), (math.ceil(PROBES / self._sequences[1]), count)) for pooling_index in wide}
        sweeps = [(pooling_index, row / self.sigma[pooling_index]) for pooling_index in wide for row in signs[pooling_index]]
        variances = on_all_cores(lambda sweep: self.noise(sweep[0]).projected(sweep[1])[0], sweeps)
        for pooling_index in wide:
            network = shares[pooling_index]
            ratio = float(np.mean([v for (of, _), v in zip(sweeps, variances, strict=True) if of == pooling_index])) / count
            factor = max((ratio - 1.0) / float(network.mean()) + 1.0, 1.0)
            sigma[pooling_index] = self.sigma[pooling_index] * np.sqrt(1.0 + (factor - 1.0) * network)
        return JudgedForward(self.forward, self.hypothesis, sigma)

    @cached_property
    def _printing_share(self) -> Array:
        """(P, N): of the variance, what printing makes."""
        printing = self.forward.steps[PRINTED].roundings(self.hypothesis.arithmetic).variance()
        return np.asarray(np.minimum(printing / self.sigma**2, 1.0))

    def noise(self, pooling_index: int) -> Noise:
        """For filters: a direction of (N,) stands for that pooling's."""

        def projected(weights: Array) -> tuple[float, float]:
            wide = np.zeros_like(self.sigma)
            wide[pooling_index] = weights
            return self.forward.projected(wide, self.hypothesis)

        sigma = self.sigma[pooling_index]
        return Noise(sigma, 0.0, np.ones(sigma.shape, np.bool_), projected)

    @property
    def largest(self) -> Array:
        """(P,): the largest error under each pooling, in sigma; infinite where the network gives no number."""
        with np.errstate(all="ignore"):
            found = np.abs(self.residual / self.sigma).max(1)
        return np.where(np.isfinite(found), found, np.inf)

    def agreement(self, pooling_index: int, independent: Array) -> Agreement:
        """By RMS, largest error and likelihood; `independent` is the right network's ω, so that likelihoods compare."""
        with np.errstate(all="ignore"):
            e, sigma = self.residual[pooling_index] / self.sigma[pooling_index], self.sigma[pooling_index]
            nll = float((independent[pooling_index] * (e**2 / 2.0 + np.log(sigma))).sum())
            rms, largest = float(np.sqrt((e**2).mean())), float(np.abs(e).max())
        if not math.isfinite(nll):
            return Agreement(pooling_index, math.inf, math.inf, math.inf)
        return Agreement(pooling_index, rms, largest, nll)

    def limits(self, pooling_index: int, tests: int) -> Limits:
        """Each of `tests` statistics has its share of a run's false-alarm probability."""
        alpha = share(tests)
        rows = max(int(self.independent[pooling_index].sum()), 1)
        return Limits(rms_threshold(rows, alpha), max_threshold(len(self.actual), alpha), projection_threshold(alpha))


def allowed(agreement: Agreement, limits: Limits) -> bool:
    """Whether RMS and largest error are within their limits."""
    return agreement.rms <= limits.rms and agreement.max <= limits.max
