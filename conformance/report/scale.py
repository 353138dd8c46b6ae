"""Test whether the scale of an activation's error changed between two runs with the same outcome. Pure functions of the records.

Let r < R be the two local RMS in sigma, L the limit of R, and x = R / r. The scale changed if

    x > L        and        n · ln((x + 1/x) / 2) > ln(1/α).

First condition: L is the largest RMS that noise of unit deviation has at the run's false-alarm probability. If r were the true
scale of the candidate's noise, x would be an RMS in units of that scale, and x > L would be a failure. A reported change would
thus fail if the better of the two runs defined the candidate's noise.

Second condition: r is itself an RMS of n numbers, and the RMS of a few numbers may be small by chance. For independent sums A and
B of n squares of normal errors of one scale,

    P(A / B > x²)  ≤  min_λ E exp(λA) · E exp(−λx²B)  =  min_λ ((1 − 2λ)(1 + 2λx²))^(−n/2)  =  ((x + 1/x) / 2)^(−n),

where the minimum is at λ = (x² − 1) / 4x². This bound must be less than α, the false-alarm probability of each test of the
activation.

Both n and α follow from the limits: the limit of the largest error is √(2 ln(2n/α)), the limit of a filter is √(2 ln(2/α))
(`numerics.thresholds`). An RMS of 0 defines no scale: all errors lie within the bound of a function, or are zero by chance.
"""

import math
from collections.abc import Mapping

from conformance.results.records import ActivationRecord


def scale_changed(before: ActivationRecord, after: ActivationRecord) -> bool:
    """Return whether the size of an activation's error changed significantly between two records with the same outcome.

    At exact activations, which have no sigma, any change from one nonzero difference to another counts. False is returned if the
    outcomes differ or the smaller error is 0.
    """
    smaller, larger = sorted((before, after), key=size)
    if before.outcome != after.outcome or not 0.0 < size(smaller) < size(larger):
        return False
    limits = larger.limits
    if not limits.get("rms"):
        return True
    ratio = size(larger) / size(smaller)
    return ratio > limits["rms"] and _numbers(limits) * math.log((ratio + 1.0 / ratio) / 2.0) > _worth(limits)


def size(record: ActivationRecord) -> float:
    """Return the local RMS in sigma, at exact activations the largest absolute difference; 0 if the activation was not judged."""
    if record.local is None:
        return 0.0
    return record.local.max_abs if record.local.rms is None else record.local.rms


def _numbers(limits: Mapping[str, float]) -> float:
    """Return the number n of elements, which follows from the limits (see the module docstring)."""
    return math.exp((limits["max"] ** 2 - limits["filter"] ** 2) / 2.0)


def _worth(limits: Mapping[str, float]) -> float:
    """Return ln(1/α), which follows from the limit of a filter (see the module docstring)."""
    return limits["filter"] ** 2 / 2.0 - math.log(2.0)
