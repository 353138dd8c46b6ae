"""Every program, in each of its legal forms, has the traced rounding errors, and every gradient is that of the forward step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from conformance.numerics.arithmetic import Arithmetic, as_captured, hypotheses
from conformance.numerics.formats import Array
from conformance.oracle import EQUATIONS, Step
from conformance.oracle.embeddings import Sum
from conformance.oracle.losses import TargetLoss
from conformance.oracle.program import IN_KERNEL, Form, Number, Operation, value_of
from conformance.oracle.step import ProgramStep
from conformance.oracle.trace import Trace, Traced
from conformance.tests.test_mathematics import steps_by_kind

DRAWS, STEPS = 30, steps_by_kind()


@dataclass(eq=False)
class Noisy(Number):
    """An array of which every operation adds a random error, of the variance of the operation's rounding error."""

    value: Array
    arithmetic: Arithmetic
    rng: np.random.Generator
    chosen: int
    in_kernel: bool = False

    def made(self, operation: Operation, operands: tuple[Any, ...]) -> "Noisy":
        """Return the result of an operation, with an error."""
        value = operation.of(operands)
        inside = operation is IN_KERNEL or any(isinstance(x, Noisy) and x.in_kernel for x in operands)
        traced = tuple(Traced(value_of(x)) if isinstance(x, Noisy) else x for x in operands)
        deviation = np.sqrt(Traced(value, operation, traced, in_kernel=inside).variance(self.arithmetic))
        error = deviation * self.rng.standard_normal(value.shape)
        return Noisy(value + error, self.arithmetic, self.rng, self.chosen, inside)

    def again(self, form: Form) -> Any:
        """Return another computation of the value."""
        return form()

    def either(self, form: Form, wider: Sequence[Form], also: Sequence[Form]) -> Any:
        """Return the value of one of the forms of which a trace has the errors."""
        forms = (form, *wider)
        return forms[min(self.chosen, len(forms) - 1)]()


def _program(step: Step) -> Any:
    """Return the program of a step, as a function of its parents; None if it has none."""
    if isinstance(step, TargetLoss):
        return step.term
    return step.program if isinstance(step, ProgramStep) and not isinstance(step, Sum) else None


PROGRAMS = [kind for kind, (network, name, parents) in STEPS.items() if _program(network.step(name, *parents))]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_traced_variance_is_that_of_random_errors(kind: str) -> None:
    """Of the legal forms of a program, that with the largest errors has the traced variance."""
    network, name, parents = STEPS[kind]
    program, rng = _program(network.step(name, *parents)), np.random.default_rng(0)
    for dtype in ("float32", "bfloat16"):
        arithmetic = as_captured(hypotheses(dtype))[-1].arithmetic
        traced = Trace(program(*map(Traced, parents))).variance(arithmetic)
        exact = np.asarray(program(*parents))
        scale, ratios = np.broadcast_to(np.maximum(traced, 1e-300), exact.shape), list[float]()
        for form in range(4):
            draws = max(DRAWS, 30_000 // exact.size)
            drawn = (program(*(Noisy(parent, arithmetic, rng, form) for parent in parents)) for _ in range(draws))
            squares = sum(np.square(value_of(y) - exact) for y in drawn) / draws
            ratios.append(float((squares / scale)[scale > 1e-60].mean()) if np.any(scale > 1e-60) else 0.8)
        assert 0.6 < max(ratios) < 1.15, ratios


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_least_roundings_of_every_kind_of_step_are_a_lower_bound(dtype: str) -> None:
    for kind, (network, name, parents) in STEPS.items():
        step = network.step(name, *parents)
        for hypothesis in as_captured(hypotheses(dtype, "cuda")):
            most, least = step.roundings(hypothesis.arithmetic), step.least_roundings(hypothesis.arithmetic)
            assert (least.variance() <= most.variance() * (1.0 + 1e-5)).all(), (kind, hypothesis)
            assert np.all(least.bound <= np.asarray(most.bound) * (1.0 + 1e-12)), (kind, hypothesis)


# What a backward step reads in place of the forward step's input, as a function of which it is an input with the same result.
INPUTS = {"tanh_backward": np.arctanh, "probs_backward": lambda p: np.log(np.maximum(p, 1e-300))}
BACKWARD = [k for k in PROGRAMS if k.partition(" ")[0].endswith("_backward") and len(STEPS[k][2]) > 1]


@pytest.mark.parametrize("kind", BACKWARD)
def test_a_gradient_is_that_of_the_forward_step(kind: str) -> None:
    """Compare it with Jᵀ w; `test_mathematics` compares J with differences of the forward step."""
    network, name, parents = STEPS[kind]
    step = network.step(name, *parents)
    of_input = INPUTS.get(step.site.activation.kind, np.asarray)
    others = () if step.site.activation.kind == "probs_backward" else parents[2:]
    forward = EQUATIONS[step.site.activation.kind.removesuffix("_backward")]
    inputs = [of_input(parents[1]), *others]
    row = replace(step.site.activation, kind=step.site.activation.kind.removesuffix("_backward"))
    site = replace(step.site, activation=row, parameters={"bias": np.zeros(()), **step.site.parameters})
    gradient = forward(site, *inputs).jacobians()[0].adjoint(parents[0])
    np.testing.assert_allclose(step.value, gradient, rtol=1e-6, atol=1e-9 * max(float(np.abs(gradient).max()), 1e-30))
