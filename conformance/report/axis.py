"""A logarithmic axis in sigma; positions are percentages of the plot's width, so that it fits any screen."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

LEAST = -2  # decade at which the axis begins; errors below a hundredth of a sigma are negligible


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from 10^LEAST to 10^most sigma; smaller and larger values are drawn at its ends."""

    most: int

    def at(self, value: float | None) -> float | None:
        """Return the position of a value in sigma, in percent of the width; None for None."""
        if value is None:
            return None
        decade = math.log10(value) if value > 0.0 else LEAST
        return 100.0 * min(max((decade - LEAST) / (self.most - LEAST), 0.0), 1.0)

    @property
    def reach(self) -> str:
        """The ends of the axis in words."""
        return f"from {10.0**LEAST:g} to 1e{self.most} σ, logarithmic"


def axis_of(values: Iterable[float | None]) -> Axis:
    """Return an axis that reaches the largest finite value, and at least 100 sigma."""
    largest = max((v for v in values if v and math.isfinite(v)), default=1.0)
    return Axis(max(2, math.ceil(math.log10(largest))))


# An error of more σ than float64 has digits: σ is at least the rounding of the expected value, so that is 0 beside the error.
LARGEST = 2.0**53


def bounded(value: float) -> str:
    """Return a number with three significant digits, or `over 9e+15` beyond `LARGEST`."""
    return f"{value + 0.0:.3g}" if abs(value) <= LARGEST else f"over {LARGEST:.0e}"  # -0.0 + 0.0 is 0.0


def sigma(value: float | None, none: str = "-") -> str:
    """Return a number with three significant digits, at most `LARGEST`, and the unit σ, or `none` if there is no value."""
    return none if value is None else f"{bounded(value)} σ"
