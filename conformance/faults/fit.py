"""What a fitted fault is: a step with something in it that was fitted to the candidate's array."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
import numpy.typing as npt

from conformance.faults.fault import CORRECT
from conformance.numerics.formats import Array
from conformance.oracle import Step

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Fit:
    """A step fitted to the candidate's array.

    `free` is how many numbers were fitted; `value` is that of `parameter`, where one of them has a meaning.
    """

    step: Step
    free: int
    parameter: str = ""
    value: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True, eq=False)
class FitData:
    """What a candidate computed at a step.

    Attributes:
        actual: its array.
        judged: which elements count.
        allowed: what each element of a correct candidate may be off by, √(σ² + b²).
        threshold: of |z|: what is beyond it is no noise.
    """

    actual: Array
    judged: Mask
    allowed: Array
    threshold: float

    @property
    def chance(self) -> float:
        """The false-alarm probability that the threshold t stands for: 2 exp(−t²/2)."""
        return 2.0 * exp(-(self.threshold**2) / 2.0)

    @property
    def largest(self) -> float:
        """The most that any of the N judged elements of a correct candidate is off by, in √(σ² + b²), at that probability.

        In σ it is t_N = √(t² + 2 ln N), with chance/N in the place of chance; t_N σ + b ≤ √2 t_N √(σ² + b²).
        """
        return sqrt(2.0 * (self.threshold**2 + 2.0 * log(max(int(self.judged.sum()), 1))))


@dataclass(frozen=True)
class Fitted:
    """A fault that is found by fitting: `fit` gives None where it has no grounds to.

    Attributes:
        hidden_parents: whether it can be fitted where the step's own parents were not seen.
        largest: whether its number is the largest of an error on the inputs that there were: each place gives one of its own.
        loose: whether it has numbers for each token, and is fitted only where no mistake of the catalogue explains the array under
            any arithmetic.
        equation, fix: as of a `Fault`.
    """

    name: str
    kinds: frozenset[str]
    sentence: str
    source: str
    fit: Callable[[Step, FitData], Fit | None]
    cause: str = ""
    hidden_parents: bool = False
    largest: bool = False
    loose: bool = False
    equation: str = ""
    fix: str = CORRECT
