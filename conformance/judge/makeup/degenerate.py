"""What is no result at all: not finite, zero, constant, the same along an axis; and a few wrong elements in a right array."""

from collections.abc import Iterator

import numpy as np

from conformance.judge.makeup.case import Case, Finding, Noise
from conformance.numerics.formats import Array

FEW = 3  # elements that are listed one by one


def not_finite(case: Case) -> Finding | None:
    """Elements that are infinite or not a number; nothing else can be said then."""
    wrong = case.judged & ~np.isfinite(case.made)
    if not wrong.any():
        return None
    nans, place = int(np.isnan(case.made[wrong]).sum()), tuple(int(i) for i in np.argwhere(wrong)[0])
    sentence = f"{int(wrong.sum())} elements are not finite ({nans} NaN, {int(wrong.sum()) - nans} infinite), the first at {place}"
    return Finding("not finite", sentence, (), False, np.inf, 0.0, 0)


def few_elements(case: Case) -> Iterator[Finding]:
    """At most three are beyond the largest error, and without them the rest passes.

    No chance of an unrelated model is reckoned: each of the elements is beyond a threshold of its own.
    """
    places = np.argwhere(case.judged & (case.scaled > case.limits[1]))
    if not 0 < len(places) <= FEW:
        return
    outside = case.judged.copy()
    outside[tuple(places.T)] = False
    before, left = float((case.scaled**2).sum()), float((case.scaled[outside] ** 2).sum())
    remaining = np.sqrt(left / outside.sum()) if outside.any() else np.inf
    told = (f"{tuple(int(i) for i in p)}: {case.made[tuple(p)]:.6g} for {case.right[tuple(p)]:.6g}" for p in places)
    sentence = f"only {len(places)} element{'s are' if len(places) > 1 else ' is'} wrong: {'; '.join(told)}"
    yield Finding(
        "few elements", sentence, (), bool(remaining <= case.limits[0]), float(remaining), 1.0 - left / before, len(places)
    )


def constant(case: Case) -> Iterator[Finding]:
    """Zeros, another number everywhere, or the same in every row, position, head or query."""
    values = case.made_rows[case.kept]
    if values.size > 1 and np.all(values == values[0]):
        exact = Noise(np.full_like(case.made_rows, case.noise.sigma.min()), np.zeros_like(case.made_rows))
        what = ("zeros", "all zeros were made") if values[0] == 0.0 else ("constant", f"{values[0]:.6g} was made everywhere")
        yield case.tried(*what, np.full_like(case.made_rows, values[0]), exact)
        return
    for number, axis in enumerate(case.step.site.activation.axes):
        if case.made.shape[number] > 1:
            mean = _mean(case, number)
            spread = case.rows(mean)
            name = "batch row" if axis == "batch" else axis
            freedom = int(case.kept.sum() // case.made.shape[number])
            yield case.tried("same along an axis", f"every {name} was made the same", spread, case.noise_of(spread), freedom)


def _mean(case: Case, number: int) -> Array:
    """Over the judged elements along an axis; 0 where none is judged."""
    counts = case.judged.sum(number, keepdims=True)
    total = np.where(case.judged, case.made, 0.0).sum(number, keepdims=True)
    return np.asarray(total / np.maximum(counts, 1))
