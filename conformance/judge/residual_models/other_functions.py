"""Another function of the same input, computed by a pointwise step."""

from collections.abc import Iterator

import numpy as np
from scipy.interpolate import make_lsq_spline

from conformance.judge.residual_models.residual_problem import ElementNoise, ResidualFinding, ResidualProblem
from conformance.oracle.pointwise import Gelu, GeluTanh, Relu, Tanh

_DEGREE = 11  # high enough for a hundred inputs to show a smooth function to the accuracy of float32
_POINTS = 6  # inputs between two knots, so that most of the results test the function


def other_functions(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding if a pointwise step computes a smooth function of its input: a spline by least squares, with few knots."""
    if not isinstance(case.step, (Gelu, GeluTanh, Relu, Tanh)):
        return
    x, y, weights = (a[case.kept] for a in (case.rows(case.step.parents[0]), case.actual_rows, case.root_weights))
    order = np.argsort(x, kind="stable")
    distinct, first = np.unique(x, return_index=True)
    knots = distinct[_DEGREE + 1 : -_DEGREE - 1][::_POINTS]
    if len(knots) < 2 or not np.isfinite(y).all():
        return
    ends = (np.repeat(end, _DEGREE + 1) for end in (distinct[0], distinct[-1]))
    low, high = ends
    spline = make_lsq_spline(x[order], y[order], np.concatenate([low, knots, high]), _DEGREE, weights[order])
    model = np.where(case.kept, spline(case.rows(case.step.parents[0])), case.expected_rows)
    quarters = first[np.linspace(0, len(distinct) - 1, 5).astype(int)]
    examples = ", ".join(f"{y[i]:.4g} of {x[i]:.4g}" for i in quarters)
    noise = ElementNoise(np.hypot(case.noise.sigma, case.noise_of(model).sigma), case.noise.bound)
    sentence = f"the result is another function of the same input, such as {examples}"
    yield case.finding_of("other function", sentence, model, noise, len(knots) + _DEGREE + 1)
