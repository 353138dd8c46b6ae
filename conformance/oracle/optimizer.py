"""Optimizer steps: clipping by the global norm, and Adam with decoupled weight decay; equations in `conformance.model.training`."""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.embeddings import Exact
from conformance.oracle.maps import LinearMap, Roundings, Source, diagonal, identity
from conformance.oracle.step import Step

CLIP_EPSILON = 1e-6  # that torch.nn.utils.clip_grad_norm_ adds to the norm, and the equation does not


class Initial(Exact):
    """θ₀, the checkpoint's parameter."""

    @property
    def value(self) -> Array:
        """The parameter."""
        return self.site.parameters["weight"]


class Given(Initial):
    """A gradient that a backward pass left: whatever it is, the step is judged from it."""


class GradientNorm(Step):
    """√Σ g² over all parameters: gradients of any shapes, result a single number."""

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(np.sqrt(sum(float(np.square(g).sum()) for g in self.parents)))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂n/∂g = g / n."""
        n = self.value if self.value > 0.0 else np.ones(())
        return tuple(_summed(g / n) for g in self.parents)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Random: u²/3 · Σ (k/N)² n²/4 = u² N n² / 36 for N additions, one after another, of squares; the root; norms stored."""
        u2, terms = arithmetic.elementwise.unit_roundoff**2 / 3.0, sum(g.size for g in self.parents)
        variance = u2 * (terms / 12.0 + 2.0) * self.value**2 + 2.0 * arithmetic.call_variance(self.value)
        return Roundings((Source(np.asarray(variance), identity()),))


class Adam(Step):
    """θ_t from θ_{t−1}, the gradients of the steps 1 to t, and their norms; all but the norms of one shape."""

    def number(self, role: str) -> float:
        """A setting of this step."""
        return float(self.site.parameters[role])

    @property
    def step(self) -> int:
        """The number t of the step, from 1 on."""
        return (len(self.parents) - 1) // 2

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        """min(1, c / ‖g‖) of each step."""
        c = self.number("clip")
        return tuple(min(1.0, c / float(n)) if n > 0.0 else 1.0 for n in self.parents[self.step + 1 :])

    @cached_property
    def clipped(self) -> tuple[Array, ...]:
        """The gradients, clipped."""
        return tuple(k * g for k, g in zip(self.coefficients, self.parents[1 : self.step + 1], strict=True))

    @cached_property
    def moments(self) -> tuple[Array, Array]:
        """The averages m and v."""
        second = self._average("beta2", tuple(np.square(g) for g in self.clipped))
        return self._average("beta1", self.clipped), np.maximum(second, 0.0)  # a β₂ that makes no sense may be tried

    def _average(self, role: str, terms: tuple[Array, ...]) -> Array:
        beta = self.number(role)
        return np.asarray(sum((1.0 - beta) * beta ** (self.step - s) * term for s, term in enumerate(terms, 1)))

    @cached_property
    def corrections(self) -> tuple[float, float]:
        """1 − β₁ᵗ and 1 − β₂ᵗ; 1 without bias correction."""
        if not self.number("corrected"):
            return 1.0, 1.0
        return 1.0 - self.number("beta1") ** self.step, 1.0 - self.number("beta2") ** self.step

    @cached_property
    def denominator(self) -> Array:
        """√v̂ + ε."""
        return np.sqrt(self.moments[1] / self.corrections[1]) + self.number("epsilon")

    @cached_property
    def update(self) -> Array:
        """η m̂ / (√v̂ + ε), 0 where m is."""
        m = self.number("rate") * self.moments[0] / self.corrections[0]
        return np.divide(m, self.denominator, out=np.zeros_like(m), where=m != 0.0)

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return self._decayed - self.update

    @property
    def _decayed(self) -> Array:
        """(1 − η λ) θ."""
        return (1.0 - self.number("rate") * self.number("decay")) * self.parents[0]

    @cached_property
    def _by_moments(self) -> tuple[Array, Array]:
        """∂θ/∂m and ∂θ/∂v; 0 by v where v is 0, since then every gradient is."""
        first, second = self.corrections
        by_first = np.where(self.moments[0] != 0.0, -self.number("rate") / first / np.maximum(self.denominator, _TINY), 0.0)
        root = np.sqrt(self.moments[1] * second)
        inner = np.divide(self.update, self.denominator, out=np.zeros_like(root), where=root > 0.0)
        return by_first, np.divide(inner, 2.0 * root, out=np.zeros_like(root), where=root > 0.0)

    @cached_property
    def _by_clipped(self) -> tuple[Array, ...]:
        """∂θ/∂g of each step's clipped gradient."""
        (by_m, by_v), t = self._by_moments, self.step
        b1, b2 = self.number("beta1"), self.number("beta2")
        return tuple(
            (1.0 - b1) * b1 ** (t - s) * by_m + 2.0 * (1.0 - b2) * b2 ** (t - s) * g * by_v for s, g in enumerate(self.clipped, 1)
        )

    def jacobians(self) -> tuple[LinearMap, ...]:
        """diag(1 − η λ); diag(∂θ/∂g · min(1, c/n)) by gradients; −Σ ∂θ/∂g · g / n by norms that clip."""
        own = diagonal(np.full_like(self.parents[0], 1.0 - self.number("rate") * self.number("decay")))
        by_gradients = [diagonal(k * j) for k, j in zip(self.coefficients, self._by_clipped, strict=True)]
        norms = self.parents[self.step + 1 :]
        by_norms = [
            _spread(-j * g / float(n) if k < 1.0 else np.zeros_like(g))
            for k, j, g, n in zip(self.coefficients, self._by_clipped, self.clipped, norms, strict=True)
        ]
        return (own, *by_gradients, *by_norms)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """What rounding adds to θ.

        Random: of m and v, in each step, the roundings of their terms and sums, u²/3 times squares, and their store; clipped
        gradients, their store; of the update six roundings; √v̂, its quotient and the sum with ε, where each is stored; (1 − ηλ) θ
        and the store, but for half formats.

        Bound: β₁, β₂, η and corrections rounded to the accumulation format, u |update| each, and what cancels in 1 − βᵗ; 1 − ηλ
        rounded, u |θ|; the coefficient of clipping, where that is stored rounded, and 10⁻⁶ relative to the norm. In a half format
        θ is one of its numbers, and what is added may be less than half an ulp: it is then rounded away, which is no uniform error.
        """
        (by_m, by_v), update = self._by_moments, self.update
        u2, u, stored = (
            arithmetic.elementwise.unit_roundoff**2 / 3.0,
            arithmetic.accumulate.unit_roundoff,
            arithmetic.store_variance,
        )
        variance = by_m**2 * self._moment_variance("beta1", self.clipped, u2, arithmetic)
        variance = variance + by_v**2 * self._moment_variance("beta2", tuple(np.square(g) for g in self.clipped), u2, arithmetic)
        bound = (
            u * np.abs(update) * (6.0 + sum(self.number(b) ** self.step / k for b, k in zip(_BETAS, self.corrections, strict=True)))
        )
        for k, j, g, n in zip(self.coefficients, self._by_clipped, self.clipped, self.parents[self.step + 1 :], strict=True):
            if k < 1.0:
                variance = variance + j**2 * (2.0 * u2 * g**2 + stored(g))
                relative = CLIP_EPSILON / float(n) + (arithmetic.storage.unit_roundoff if arithmetic.is_mixed else 0.0)
                bound = bound + np.abs(j * g) * relative
        share = np.divide(update, self.denominator, out=np.zeros_like(update), where=update != 0.0)
        variance = variance + 6.0 * u2 * update**2 + 3.0 * share**2 * arithmetic.call_variance(self.denominator)
        if self.number("decay"):
            bound = bound + u * np.abs(self.parents[0])
        for result, is_stored in ((self._decayed, self.number("decay") and arithmetic.rounding != "fused"), (self.value, True)):
            if is_stored and arithmetic.is_mixed:
                bound = bound + arithmetic.storage.ulp(result) / 2.0
            elif is_stored:
                variance = variance + arithmetic.storage.rounding_variance(result)
        variance = np.maximum(variance, arithmetic.storage.floor_variance)
        return Roundings((Source(np.asarray(variance), identity()),), np.asarray(bound))

    def _moment_variance(self, role: str, terms: tuple[Array, ...], u2: float, arithmetic: Arithmetic) -> Array:
        """Of an average that is updated in each step: its terms, their sum and its store; two stores where a call makes each."""
        beta, stores = self.number(role), 1.0 if arithmetic.rounding == "fused" else 2.0
        variance, average = np.zeros_like(terms[0]), np.zeros_like(terms[0])
        for term in terms:
            average = beta * average + (1.0 - beta) * term
            own = 2.0 * u2 * ((beta * average) ** 2 + ((1.0 - beta) * term) ** 2 + average**2)
            variance = beta**2 * variance + own + stores * arithmetic.store_variance(average)
        return variance


_BETAS = ("beta1", "beta2")
_TINY = float(np.finfo(np.float64).tiny)


def _summed(direction: Array) -> LinearMap:
    """J e = Σ direction · e, a single number."""
    return LinearMap(lambda v: np.asarray((direction**2 * v).sum()), lambda w: direction * w)


def _spread(direction: Array) -> LinearMap:
    """J e = direction · e, for a single number e."""
    return LinearMap(lambda v: direction**2 * v, lambda w: np.asarray((direction * w).sum()))
