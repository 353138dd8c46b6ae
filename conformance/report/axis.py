"""A logarithmic axis in sigma, as percentages of a plot's width, so that it fits any screen."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

LEAST = -2  # the decade at which the axis begins: a hundredth of a sigma is no error


@dataclass(frozen=True)
class Axis:
    """From 10^LEAST to 10^most sigma; what is below is drawn at its beginning."""

    most: int

    def at(self, value: float | None) -> float | None:
        """Where a value stands, in percent."""
        if value is None:
            return None
        decade = math.log10(value) if value > 0.0 else LEAST
        return 100.0 * min(max((decade - LEAST) / (self.most - LEAST), 0.0), 1.0)

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Decades with their labels: at most six."""
        step = -(-(self.most - LEAST) // 5)
        decades = range(LEAST, self.most + 1, step)
        return tuple((100.0 * (d - LEAST) / (self.most - LEAST), f"{10.0**d:g}" if d < 3 else f"1e+{d}") for d in decades)


def axis_of(values: Iterable[float | None]) -> Axis:
    """The axis that holds all of them, a hundred sigma at least."""
    largest = max((v for v in values if v and math.isfinite(v)), default=1.0)
    return Axis(max(2, math.ceil(math.log10(largest))))


def sigma(value: float | None, none: str = "-") -> str:
    """A number of sigma, or `none`."""
    return none if value is None else f"{value:.3g} σ"
