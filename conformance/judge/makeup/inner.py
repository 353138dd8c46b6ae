"""A parent that counts more or less than once: the step's own equation on a scaled parent, where it is no linear one.

made = f(…, a · parent, …), a by Gauss–Newton in units of sigma; a = 0: left out, a = 2: added twice, a = −1: subtracted
"""

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np

from conformance.judge.makeup.case import Case, Finding, Number
from conformance.judge.words import near, number, simple
from conformance.numerics.formats import Array
from conformance.oracle.norm import Norm
from conformance.oracle.pointwise import Gelu, GeluTanh, Relu, Tanh
from conformance.oracle.softmax import Probabilities

STEPS = 8  # quadratic once near
STARTS = (-1.0, 0.0, 0.5, 2.0)
NUDGE = 2.0**-26  # √u of float64, where the errors of rounding and of linearising a difference are alike


def scaled_parents(case: Case) -> Iterator[Finding]:
    """One parent at a time; of a norm with one parent nothing, since it does not see a scale."""
    step = case.step
    if not isinstance(step, (Norm, Probabilities, Gelu, GeluTanh, Relu, Tanh)) or (
        isinstance(step, Norm) and len(step.parents) == 1
    ):
        return
    for index, name in enumerate(step.site.activation.parents):
        yield _scaled(case, index, name)


def _scaled(case: Case, index: int, name: str) -> Finding:
    parents = case.step.parents

    def made_with(a: float) -> Array:
        scaled = (*parents[:index], a * parents[index], *parents[index + 1 :])
        return case.rows(type(case.step)(case.step.site, *scaled).value)

    a, deviation = _estimated(case, made_with)
    meanings = {0.0: "left out", 2.0: "it counts twice", -1.0: "its sign is wrong"}
    meaning = next((f": {m}" for goal, m in meanings.items() if near(a, deviation, goal)), "")
    known = None if meaning else simple(a, deviation, case.step.site.architecture)
    sentence = f"made is the same equation with {number(a, deviation)}{f' ({known})' if known else ''} times {name}{meaning}"
    model = made_with(a)
    return case.tried("scaled input", sentence, model, case.noise_with(model), 1, (Number(name, a, deviation),))


def _estimated(case: Case, made_with: Callable[[float], Array]) -> tuple[float, float]:
    root = np.where(case.kept, 1.0 / np.sqrt(case.noise.sigma**2 + case.noise.bound**2), 0.0)

    def left(a: float) -> Array:
        return np.where(case.kept, root * (case.made_rows - made_with(a)), 0.0)

    a = min(STARTS, key=lambda start: float((left(start) ** 2).sum()))
    deviation = np.inf
    for _ in range(STEPS):
        here = left(a)
        slope = (left(a + NUDGE) - here) / NUDGE
        steepness = float((slope**2).sum())
        if steepness == 0.0:
            break
        move = -float((slope * here).sum()) / steepness
        deviation = sqrt(max(float((here**2).sum()) / max(case.count - 1, 1), 1.0) / steepness)
        a += move
        if abs(move) <= deviation / 10.0:
            break
    return a, float(deviation)
