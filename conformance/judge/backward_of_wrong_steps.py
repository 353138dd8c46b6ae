"""Gradients through a wrong forward step, which are no second mistake.

The backward pass of a forward step y = f(x) is wᵀ ∂f/∂x with w = ∂L/∂y. A candidate that computes g(x) instead of f(x), and
differentiates what it computes, yields wᵀ ∂g/∂x. This differs from the oracle's gradient, although its backward pass is correct.
Where g is not f, the oracle's gradient is therefore no reference: such a gradient is not judged. Every gradient of another step is
judged as usual, since it is computed from the candidate's own captured values.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from conformance.faults.fitted import OF_RESULT
from conformance.judge.evidence import DIFFERENTIATED, Verdict
from conformance.judge.number_words import enumerated
from conformance.judge.segment import between
from conformance.model.activation import Activation
from conformance.model.gradients import SUFFIX, is_gradient
from conformance.oracle import Network

UNJUDGED_GRADIENTS = (
    "not judged, as the forward step is wrong: the gradient of a wrong step differs from a BERT's even if it is differentiated "
    "correctly"
)


def without_gradients_through_wrong_steps(verdicts: Sequence[Verdict], network: Network) -> list[Verdict]:
    """Return the verdicts of one pass; a gradient that fails, and is computed through a wrong forward step, is not judged.

    Args:
        verdicts: the verdicts on all activations of the pass.
        network: the oracle's network of the pass.
    """
    exposed = {v.activation for v in verdicts if not v.is_unexposed} & network.table.keys()
    wrong: dict[str, bool] = {}  # whether the mistake has a name, by step
    for v in verdicts:
        if v.outcome == "fail" and v.activation in exposed and not is_gradient(v.activation):
            is_named = v.local is not None and any(fault.name not in OF_RESULT for fault in v.local.named)
            wrong |= {step: is_named or wrong.get(step, False) for step in _steps(network, v.activation, exposed)}
    return [_unjudged_through(v, wrong, network, exposed) for v in verdicts] if wrong else list(verdicts)


def with_forward_steps(verdicts: Sequence[Verdict], network: Network) -> Iterator[Verdict]:
    """Yield the verdicts of one pass; those on gradients of activations name the forward step whose backward pass yields them.

    The gradient of a parameter has the name of the step already. An unidentified error in a gradient that is computed through
    several steps may be that of any of them.
    """
    exposed = {v.activation for v in verdicts if not v.is_unexposed} & network.table.keys()
    for verdict in verdicts:
        row = network.table.get(verdict.activation)
        step = "" if row is None or row.kind.endswith("_gradient") else forward_step(row)
        if step and verdict.outcome == "fail" and not (verdict.local and verdict.local.named):
            rows = (network.table[name] for name in _steps(network, verdict.activation, exposed))
            step = step if {forward_step(row) for row in rows} <= {step, ""} else ""
        yield replace(verdict, backward_of=step) if step else verdict


def _steps(network: Network, name: str, exposed: Container[str]) -> list[str]:
    """Return the steps that compute an activation from exposed ones."""
    earlier = takewhile(lambda row: row != name, network.table)
    return between(network, name, {row for row in earlier if row in exposed})


def _unjudged_through(verdict: Verdict, wrong: Mapping[str, bool], network: Network, exposed: Container[str]) -> Verdict:
    """Return the verdict on a failing gradient as not judged if it is computed through a wrong step; else the verdict.

    A violation of the contract, or a gradient where there must be none, is a failure whatever the forward pass is. The name of a
    mistake in a gradient is reported if the mistake in the forward step has none: it says what the forward step computes.
    """
    if verdict.outcome != "fail" or verdict.reason or verdict.local is None or not is_gradient(verdict.activation):
        return verdict
    rows = (network.table[name] for name in _steps(network, verdict.activation, exposed))
    through = dict.fromkeys(step for row in rows if (step := forward_step(row)) in wrong)
    if not through or (verdict.local.named and not any(wrong[step] for step in through)):
        return verdict
    reason = f"{DIFFERENTIATED} {enumerated(list(through))}, which the forward pass computes wrongly"
    return replace(
        verdict,
        outcome="not_observed",
        role=None,
        local=None,
        global_error=None,
        reason=reason,
        residual_description=(),
        why_unjudged="wrong forward step",
    )


def forward_step(row: Activation) -> str:
    """Return the name of the forward step to whose backward pass a row belongs; empty for a sum, a copy or a forward row.

    Example:
        >>> from conformance import load_golden
        >>> from conformance.model.activations import parameter_shapes, table
        >>> from conformance.model.gradients import with_gradients
        >>> a = load_golden("tiny").checkpoint.architecture
        >>> rows = with_gradients(table(a), "cls.loss", parameter_shapes(a))
        >>> forward_step(rows["encoder.layer.0.attention.output.dropout.grad"])
        'encoder.layer.0.attention.output.LayerNorm'
    """
    if not row.parents or not (row.kind.endswith("_gradient") or "_backward" in row.kind):
        return ""
    return row.parents[0].removesuffix(SUFFIX)
