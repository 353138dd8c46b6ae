"""Optimizer steps: clipping by the global norm, and Adam with decoupled weight decay (see `conformance.model.training`).

Parameters before training: some are constants, others are drawn from a known distribution.
"""

import numpy as np

from conformance.model.training import constant_of, parameter_of
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.correlated_errors import CorrelatedErrors
from conformance.oracle.embeddings import Exact
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, diagonal, identity, of_scalar, summed
from conformance.oracle.step import Step, elementwise_roundings

CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ adds this to the norm; the equation does not.


class Initial(Exact, kinds=("initial",)):
    """The initial parameter θ₀, from the checkpoint."""

    @property
    def value(self) -> Array:
        """The parameter θ₀."""
        return self.site.parameters["weight"]


class GivenGradient(Initial, kinds=("given_gradient",)):
    """A gradient computed by the candidate's backward pass; the optimizer step is judged from it even if it is not correct."""


class GradientNorm(Step, kinds=("gradient_norm",)):
    """√Σ g² over all parameters: gradients of any shapes -> ()."""

    @cached_property
    def value(self) -> Array:
        """The global norm n, a 0-d array."""
        return as_array(np.sqrt(sum(float(np.square(g).sum()) for g in self.parents)))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return ∂n/∂g = g / n for each gradient."""
        n = self.value if self.value > 0.0 else np.ones(())
        return tuple(summed(g / n) for g in self.parents)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the random errors of N sequential additions of squares, of the root, and of storing norms.

        The additions have u²/3 · Σ (k/N)² n²/4 = u² N n² / 36.
        """
        u2, terms = arithmetic.elementwise_format.unit_roundoff**2 / 3.0, sum(g.size for g in self.parents)
        variance = u2 * (terms / 12.0 + 2.0) * self.value**2 + 2.0 * arithmetic.call_rounding_variance(self.value)
        return Roundings((Source(as_array(variance), identity()),))


class Adam(Step, kinds=("adam",)):
    """The parameter θ_t from θ_{t−1}, the gradients of steps 1 to t, and their norms; all but the norms have the same shape."""

    def number(self, role: str) -> float:
        """Return a setting of this step."""
        return float(self.site.parameters[role])

    @property
    def step(self) -> int:
        """The step number t, counted from 1."""
        return (len(self.parents) - 1) // 2

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        """The clipping factor min(1, c / ‖g‖) of each step."""
        c = self.number("clip")
        return tuple(min(1.0, c / float(n)) if n > 0.0 else 1.0 for n in self.parents[self.step + 1 :])

    @cached_property
    def clipped(self) -> tuple[Array, ...]:
        """The clipped gradient of each step."""
        return tuple(k * g for k, g in zip(self.coefficients, self.parents[1 : self.step + 1], strict=True))

    @cached_property
    def moments(self) -> tuple[Array, Array]:
        """The moving averages m and v."""
        second = self._average("beta2", tuple(np.square(g) for g in self.clipped))
        return self._average("beta1", self.clipped), np.maximum(second, 0.0)  # A faulty β₂ may make v negative.

    def _average(self, role: str, terms: tuple[Array, ...]) -> Array:
        beta = self.number(role)
        return as_array(sum((1.0 - beta) * beta ** (self.step - s) * term for s, term in enumerate(terms, 1)))

    @cached_property
    def corrections(self) -> tuple[float, float]:
        """The bias corrections 1 − β₁ᵗ and 1 − β₂ᵗ; both 1 without bias correction."""
        if not self.number("corrected"):
            return 1.0, 1.0
        return 1.0 - self.number("beta1") ** self.step, 1.0 - self.number("beta2") ** self.step

    @cached_property
    def denominator(self) -> Array:
        """The denominator √v̂ + ε."""
        return np.sqrt(self.moments[1] / self.corrections[1]) + self.number("epsilon")

    @cached_property
    def update(self) -> Array:
        """The update η m̂ / (√v̂ + ε); 0 where m is 0."""
        m = self.number("rate") * self.moments[0] / self.corrections[0]
        return np.divide(m, self.denominator, out=np.zeros_like(m), where=m != 0.0)

    @cached_property
    def value(self) -> Array:
        """The parameter θ_t."""
        return self._decayed - self.update

    @property
    def _decayed(self) -> Array:
        """The decayed parameter (1 − η λ) θ."""
        return (1.0 - self.number("rate") * self.number("decay")) * self.parents[0]

    @cached_property
    def _by_moments(self) -> tuple[Array, Array]:
        """∂θ/∂m and ∂θ/∂v; the latter is 0 where v is 0, since every gradient is 0 there."""
        first, second = self.corrections
        by_first = np.where(self.moments[0] != 0.0, -self.number("rate") / first / np.maximum(self.denominator, _TINY), 0.0)
        root = np.sqrt(self.moments[1] * second)
        inner = np.divide(self.update, self.denominator, out=np.zeros_like(root), where=root > 0.0)
        return by_first, np.divide(inner, 2.0 * root, out=np.zeros_like(root), where=root > 0.0)

    @cached_property
    def _by_clipped(self) -> tuple[Array, ...]:
        """∂θ/∂g for the clipped gradient of each step."""
        (by_m, by_v), t = self._by_moments, self.step
        b1, b2 = self.number("beta1"), self.number("beta2")
        return tuple(
            (1.0 - b1) * b1 ** (t - s) * by_m + 2.0 * (1.0 - b2) * b2 ** (t - s) * g * by_v for s, g in enumerate(self.clipped, 1)
        )

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return diag(1 − η λ) by θ, diag(∂θ/∂g · min(1, c/n)) by gradients, and −Σ ∂θ/∂g · g / n by norms that clip."""
        return tuple(self._jacobian(parent) for parent in range(len(self.parents)))

    def _jacobian(self, parent: int) -> LinearMap:
        if parent == 0:
            return diagonal(np.full_like(self.parents[0], 1.0 - self.number("rate") * self.number("decay")))
        of_norm, step = divmod(parent - 1, self.step)
        k, j = self.coefficients[step], self._by_clipped[step]
        if not of_norm:
            return diagonal(k * j)
        g, n = self.clipped[step], self.parents[parent]
        return of_scalar(-j * g / float(n) if k < 1.0 else np.zeros_like(g))

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return the errors of θ that are due to errors of one parent, whose Jacobian alone is computed."""
        return CorrelatedErrors(self._jacobian(parent).variance(errors.variance)) if errors.any else errors

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of θ.

        Random errors: for m and v, in each step, u²/3 times the squares of their terms and sums, and the rounding to storage; for
        clipped gradients, the rounding to storage; six roundings of the update; √v̂, its quotient and its sum with ε, where each is
        stored; and (1 − ηλ) θ and the result, except in half-precision formats.

        Bound: β₁, β₂, η and the corrections rounded to the accumulation format, u |update| each, with the cancellation in 1 − βᵗ;
        1 − ηλ rounded, u |θ|; the clipping factor where it is stored rounded, and 10⁻⁶ relative to the norm. In a half-precision
        format θ is a number of the format, and the update may be less than half an ulp. It is then rounded away, which is not a
        uniform error, so these roundings belong to the bound.
        """
        (by_m, by_v), update = self._by_moments, self.update
        u2, u, stored = (
            arithmetic.elementwise_format.unit_roundoff**2 / 3.0,
            arithmetic.accumulate.unit_roundoff,
            arithmetic.storage_rounding_variance,
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
        variance = variance + 6.0 * u2 * update**2 + 3.0 * share**2 * arithmetic.call_rounding_variance(self.denominator)
        if self.number("decay"):
            bound = bound + u * np.abs(self.parents[0])
        for result, is_stored in ((self._decayed, self.number("decay") and arithmetic.rounding != "fused"), (self.value, True)):
            if is_stored and arithmetic.is_mixed:
                bound = bound + arithmetic.storage.ulp(result) / 2.0
            elif is_stored:
                variance = variance + arithmetic.storage.rounding_variance(result)
        variance = np.maximum(variance, arithmetic.storage.floor_variance)
        return Roundings((Source(as_array(variance), identity()),), as_array(bound))

    def _moment_variance(self, role: str, terms: tuple[Array, ...], u2: float, arithmetic: Arithmetic) -> Array:
        """Return the error variance of a moving average updated in each step: its terms, their sum and its rounding to storage.

        It is stored twice in each step if each call stores its result.
        """
        beta, stores = self.number(role), 1.0 if arithmetic.rounding == "fused" else 2.0
        variance, average = np.zeros_like(terms[0]), np.zeros_like(terms[0])
        for term in terms:
            average = beta * average + (1.0 - beta) * term
            own = 2.0 * u2 * ((beta * average) ** 2 + ((1.0 - beta) * term) ** 2 + average**2)
            variance = beta**2 * variance + own + stores * arithmetic.storage_rounding_variance(average)
        return variance


_BETAS = ("beta1", "beta2")
_TINY = float(np.finfo(np.float64).tiny)


def _shape(step: Step) -> tuple[int, ...]:
    return step.site.activation.shape(0, 0, 0)


class InitialConstant(Exact, kinds=("initial_constant",)):
    """A constant initial parameter: 0 for biases, 1 for LayerNorm weights."""

    @cached_property
    def value(self) -> Array:
        """The constant, in the shape of the parameter."""
        return np.full(_shape(self), constant_of(parameter_of(self.site.activation.name)))


class InitialDraw(Step, kinds=("initial_draw",)):
    """A parameter drawn from N(0, r²): its expected value is 0 and its variance is r², with r the `initializer_range`."""

    @cached_property
    def value(self) -> Array:
        """The expected value, 0."""
        return np.zeros(_shape(self))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the variance r² of the draw; truncation reduces it, and rounding adds less than a fraction u²."""
        return elementwise_roundings(np.full(_shape(self), self.site.architecture.initializer_range**2))
