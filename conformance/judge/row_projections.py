"""Evidence from the rows of a residual, where steps are not exposed and only a mistake's filter fails.

An error that the elements of a row share, such as that of a LayerNorm's inverse root rounded to a half format, hardly changes the
RMS, but the filter of a mistake with the same effect sums it over the row. The elementwise likelihood (`LocalJudgement.nll`) cannot
distinguish such an arithmetic from a mistake under a tighter one; the signs of the rows' projections can: a mistake moves all rows
in one direction, while rounding moves each row in its own. Hence the pair of the tighter arithmetic and the mistake, whose effect
is subtracted, is compared with the wider arithmetic and no mistake.

Let d be the effect of the mistake and w the inverse variances under the tightest hypothesis. The statistic of row r is

    t_r = Σ_i w_ri d_ri e_ri, over the elements i of the row, for the residual e,

with the variance V_r under a hypothesis, all correlations included. Up to a constant, −ln of the likelihood of t_r, taken as
normal, is t_r²/(2 V_r) + ½ ln V_r. Its mean over the rows times the number of independent draws is a power at most 1 of the
likelihood. The mean over any rows is such a power; over n rows its standard deviation is √(1/2n) nats a draw under the right
hypothesis, since the variance of χ²₁/2 is 1/2.
"""

from collections.abc import Sequence

import numpy as np

from conformance.judge.judged_elements import zeroed
from conformance.judge.noise import Noise
from conformance.numerics.formats import Array, Mask

ROWS = 16  # The most rows that are looked at, which limits the cost: one propagation through the segment each.


def row_nlls(residual: Array, effect: Array, noises: Sequence[Noise], fails: Sequence[bool], draw_count: int) -> list[float]:
    """Return −ln of the likelihood of the rows' projections under each hypothesis, in nats, up to a common constant.

    Args:
        residual: the candidate's array minus the oracle's, (..., n).
        effect: the effect d of the mistake, of the same shape.
        noises: the noise under each hypothesis, the tightest first; a deterministic bound b counts as a variance b²/3.
        fails: whether the mistake's filter fails under each hypothesis; the hypothesis then includes the mistake, whose effect is
            subtracted with the amplitude <e, d>/<d, d>.
        draw_count: the number of independent draws of noise.
    """
    judged = noises[0].judged
    weights, rows, residual = noises[0].precision * effect, _rows(judged), zeroed(residual, judged)
    corrected = residual - float(np.vdot(weights, residual)) / float(np.vdot(weights, effect)) * effect
    found = np.zeros((len(noises), len(rows)))
    for number, row in enumerate(rows):
        direction = np.zeros_like(weights)
        direction[row] = weights[row]
        with_mistake, without = (float(np.vdot(direction, e)) ** 2 for e in (corrected, residual))
        for which, (noise, failing) in enumerate(zip(noises, fails, strict=True)):
            squared = with_mistake if failing else without
            random, bound = noise.projected(direction)
            variance = random + bound**2 / 3.0
            if variance > 0.0:
                found[which, number] = squared / (2.0 * variance) + 0.5 * np.log(variance)
    return [float(nll) * draw_count for nll in found.mean(1)]


def _rows(judged: Mask) -> list[tuple[int, ...]]:
    """Return the indices of up to `ROWS` rows with a judged element, evenly spread; a scalar is one row."""
    rows = np.argwhere(judged.any(-1) if judged.ndim else judged)
    some = np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(np.int64)
    return [tuple(int(i) for i in row) for row in rows[some]]
