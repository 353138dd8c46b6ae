"""The noise of a direction: how much of a fault's effect is due to the rounding of the inputs on which it is evaluated."""

import numpy as np

from conformance.judge.fault_directions import Direction
from conformance.judge.noise import Noise
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Hypothesis


def energy_of_input_noise(direction: Direction, hypothesis: Hypothesis, noise: Noise) -> float:
    """Return <δ, δ> for the change δ of the direction when every input changes by one rounding error.

    If a candidate consumed its inputs unrounded, the residual contains their rounding errors. So does a direction that is evaluated
    on the rounded inputs: it is d + δ, and <r, d + δ> has the expectation <δ, δ> in a correct candidate. An example is a second
    normalization of values that are normalized already, whose effect is to undo part of their rounding. The errors are drawn, from
    a fixed seed.

    Args:
        direction: the direction, on the captured inputs.
        hypothesis: the hypothesis, which says which inputs were consumed unrounded.
        noise: the noise of the segment.
    """
    base, random = direction.base, np.random.Generator(np.random.Philox(0))
    variance = base.leaf_variance(hypothesis)
    drawn = {n: base.leaves[n] + np.sqrt(3.0 * v) * random.uniform(-1.0, 1.0, v.shape) for n, v in variance.items()}
    moved = direction.on(Segment(base.network, base.name, {**base.captured, **drawn})).effect
    change = direction.known_effect if moved is None else moved - direction.known_effect
    return float(np.vdot(noise.precision * change, change))
