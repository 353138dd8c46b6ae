"""Terms of a residual model: a step's parents, its parameters and the intermediate values of its equation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.bilinear import Context, Scores, merge_heads, split_heads
from conformance.oracle.linear import Linear
from conformance.oracle.linear_maps import rows_times
from conformance.oracle.norm import Norm
from conformance.oracle.softmax import LogSoftmax, Probabilities

RIGHT = "the correct value"


@dataclass(frozen=True, eq=False)
class StepTerm:
    """A term of a residual model.

    Attributes:
        name: description of the term.
        value: the term, with the result's shape; a constant term broadcasts to it.
        is_part: whether the correct equation adds the term once, so that it may be left out or added twice.
        is_constant: whether the term is the same in every row.
    """

    name: str
    value: Array
    is_part: bool = False
    is_constant: bool = False


def step_terms(step: Step) -> Iterator[StepTerm]:
    """Yield the expected value, then the terms and inputs of the step's equation, its parameters, and 1."""
    yield StepTerm(RIGHT, step.value)
    for kind, terms in _OF_KIND:
        if isinstance(step, kind):
            yield from terms(step)
    is_sum = step.site.activation.kind == "sum"
    for name, parent in zip(step.site.activation.parents, step.parents, strict=True):
        yield StepTerm(f"the input {name}", parent, is_part=is_sum)
    for role, parameter in step.site.parameters.items():
        if step.value.ndim and parameter.shape == step.value.shape[-1:]:
            yield StepTerm(f"the {role}", parameter, is_constant=True)
    yield StepTerm("1", np.ones(()), is_constant=True)


def _of_linear(step: Step) -> Iterator[StepTerm]:
    assert isinstance(step, Linear)
    weight = step.site.parameters["weight"]
    if "bias" in step.site.parameters:
        yield StepTerm("the bias", step.bias, is_part=True, is_constant=True)
    yield StepTerm("the product x Wᵀ", step.value - step.bias, is_part=True)
    yield StepTerm("the input", step.inputs)
    if weight.shape[0] == weight.shape[1]:
        yield StepTerm("x W, the weight not transposed", rows_times(step.inputs, weight))


def _of_norm(step: Step) -> Iterator[StepTerm]:
    assert isinstance(step, Norm)
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    unit = replace(step.site, parameters={"weight": np.ones_like(gamma), "bias": np.zeros_like(beta)})
    normal = Norm(unit, *step.parents).value
    yield StepTerm("β", beta, is_part=True, is_constant=True)
    yield StepTerm("γ times the normalised value", gamma * normal, is_part=True)
    yield StepTerm("the normalised value", normal)
    if len(step.parents) > 1:
        yield StepTerm("the sum before normalisation", as_array(sum(step.parents[1:], start=step.parents[0])))
        for name, parent in zip(step.site.activation.parents, step.parents, strict=True):
            yield StepTerm(f"the norm of {name} alone", Norm(step.site, parent).value)
    yield StepTerm("γ", gamma, is_constant=True)


def _of_scores(step: Step) -> Iterator[StepTerm]:
    assert isinstance(step, Scores)
    q, k = (split_heads(p, step.site.architecture.head_size) for p in step.parents)
    if q.shape != k.shape:
        return
    for name, left, expected in (("k qᵀ", k, q), ("q qᵀ", q, q), ("k kᵀ", k, k)):
        yield StepTerm(f"{name} / √d", as_array(left @ expected.swapaxes(-1, -2) * step.scale))


def _of_probabilities(step: Step) -> Iterator[StepTerm]:
    assert isinstance(step, Probabilities)
    uniform = step.keys / np.maximum(step.keys.sum(-1, keepdims=True), 1)
    yield StepTerm("a uniform attention over unmasked keys", np.broadcast_to(uniform, step.value.shape))
    yield StepTerm("the scores", step.parents[0])


def _of_context(step: Step) -> Iterator[StepTerm]:
    assert isinstance(step, Context)
    size, (probabilities, values) = step.site.architecture.head_size, step.parents
    own = values.shape[1] == step.value.shape[1]  # An encoder may have any number of states.
    batch = step.site.batch
    keys = (batch.mask if own else batch.states_mask)[:, :, None]
    mean = (values * keys).sum(1, keepdims=True) / np.maximum(keys.sum(1, keepdims=True), 1)
    yield StepTerm("the mean of the unmasked values", np.broadcast_to(mean, step.value.shape))
    if own:
        yield StepTerm("pᵀ v, queries for keys", merge_heads(probabilities.swapaxes(-1, -2) @ split_heads(values, size)))
        yield StepTerm("the values themselves", values)


def _of_log_softmax(step: Step) -> Iterator[StepTerm]:
    yield StepTerm("log Σ exp, taken off", as_array(step.parents[0] - step.value))


_OF_KIND: tuple[tuple[type[Step], Callable[[Step], Iterator[StepTerm]]], ...] = (
    (Linear, _of_linear),
    (Norm, _of_norm),
    (Scores, _of_scores),
    (Probabilities, _of_probabilities),
    (Context, _of_context),
    (LogSoftmax, _of_log_softmax),
)
