"""Whether an activation is off by another sigma than it was, where it passes twice, or fails twice. Pure functions of the records.

With r < R its two local RMS, in sigma, L the limit of R's, and x = R / r, its sigma changed where

    x > L        and        n · ln((x + 1/x) / 2) > ln(1/α).

The first: L is the largest RMS that noise of unit deviation has at the run's false-alarm probability. Were r the true scale of
this candidate's noise, x would be an RMS in units of it, and beyond L a failure. So what is reported as changed would fail if
the better of two runs said how good the candidate is.

The second: r is an RMS itself, of n numbers, and that of a few numbers is small by luck at times. For A and B independent sums of n
squares of normal errors of one scale,

    P(A / B > x²)  ≤  min_λ E exp(λA) · E exp(−λx²B)  =  min_λ ((1 − 2λ)(1 + 2λx²))^(−n/2)  =  ((x + 1/x) / 2)^(−n),

the minimum being at λ = (x² − 1) / 4x²; that has to be less than α, the false-alarm probability of each test of the activation.

Both n and α are in the limits: that of the largest error is √(2 ln(2n/α)), that of a filter √(2 ln(2/α)) (`judge.statistics`).
An RMS of 0 is no scale: all of it lies within the bound of a function, or is exact by luck.
"""

import math
from collections.abc import Mapping

from conformance.results.records import ActivationRecord


def scale_changed(before: ActivationRecord, after: ActivationRecord) -> bool:
    """Whether its sigma changed; at exact ones, which have none, whether the difference did. Of one outcome, both times."""
    smaller, larger = sorted((before, after), key=size)
    if before.outcome != after.outcome or not 0.0 < size(smaller) < size(larger):
        return False
    limits = larger.limits
    if not limits.get("rms"):
        return True
    ratio = size(larger) / size(smaller)
    return ratio > limits["rms"] and _numbers(limits) * math.log((ratio + 1.0 / ratio) / 2.0) > _worth(limits)


def size(record: ActivationRecord) -> float:
    """Its local RMS in sigma; at exact activations the largest difference; 0 where it was not judged."""
    if record.local is None:
        return 0.0
    return record.local.max_abs if record.local.rms is None else record.local.rms


def _numbers(limits: Mapping[str, float]) -> float:
    """n."""
    return math.exp((limits["max"] ** 2 - limits["filter"] ** 2) / 2.0)


def _worth(limits: Mapping[str, float]) -> float:
    """ln(1/α)."""
    return limits["filter"] ** 2 / 2.0 - math.log(2.0)
