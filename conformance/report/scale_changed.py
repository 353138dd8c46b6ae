"""Whether an activation that passes twice is off by another sigma than it was. A pure function of the records.

With r < R its two local RMS, in sigma, and L the limit of R's, its sigma changed where

    R > L · r        and        (n / 2) · ln((t + 1)² / 4t) > ln(1/α),        t = (R / r)²

The first: L is the largest RMS that noise of unit deviation has at the run's false-alarm probability. Were r the true scale of this
candidate's noise, R / r would be an RMS in units of it, and beyond L a failure. So what is told as changed is what would fail if the
better of two runs said how good the candidate is.

The second: r is an RMS itself, of n numbers, and that of a few numbers is small by luck at times. For X and Y independent sums of n
squares of normal errors of one scale,

    P(X / Y > t)  ≤  min_λ E exp(λX) · E exp(−λtY)  =  min_λ ((1 − 2λ)(1 + 2λt))^(−n/2)  =  ((t + 1)² / 4t)^(−n/2),

with its minimum at λ = (t − 1) / 4t, and that is less than α, the false-alarm probability of one of the activation's own tests.

Both n and α are in the limits: that of the largest error is √(2 ln(2n/α)), that of a filter √(2 ln(2/α)) (`judge.statistics`).
An RMS of 0 is no scale: all of it lies within the bound of a function, or is exact by luck.
"""

import math
from collections.abc import Mapping

from conformance.records import ActivationRecord


def scale_changed(before: ActivationRecord, after: ActivationRecord) -> bool:
    """Whether its sigma changed; never where it did not pass both times, nor where it is exact."""
    known = [(r.local.rms, r.limits) for r in (before, after) if r.outcome == "pass" and r.local and r.local.rms is not None]
    if len(known) < 2:
        return False
    (smaller, _), (larger, limits) = sorted(known, key=lambda k: k[0])
    return 0.0 < limits["rms"] * smaller < larger and _surprise((larger / smaller) ** 2, limits) > _worth(limits)


def _surprise(t: float, limits: Mapping[str, float]) -> float:
    """(n / 2) · ln((t + 1)² / 4t), for t > 1."""
    n = math.exp((limits["max"] ** 2 - limits["filter"] ** 2) / 2.0)
    return n / 2.0 * (2.0 * math.log1p(t) - math.log(4.0 * t))


def _worth(limits: Mapping[str, float]) -> float:
    """ln(1/α)."""
    return limits["filter"] ** 2 / 2.0 - math.log(2.0)
