"""Selection of the arithmetic under which each kind of step is judged, and the errors of correct candidates in each of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest, kurtosis

from conformance import load_golden
from conformance.implementations.hugging_face import HuggingFace
from conformance.judge.evidence import BY_OPERATIONS, WIDEST_ARITHMETIC, Error, Explanation, FilterResult, LocalJudgement, Verdict
from conformance.judge.judged_elements import judged_elements
from conformance.judge.segment import Segment
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.oracle import Network

THRESHOLD = 6.0  # With this share of the false-alarm probability for the filters, a false alarm costs 18 nats.
FAULT = FilterResult("gelu-variant", "intermediate_act_fn", 1.0, 50.0, 50.0, True)


def local(arithmetic: str, nll: float, *, rms: float = 1.0) -> LocalJudgement:
    return LocalJudgement(arithmetic, arithmetic, Error(rms, rms, 0.0, ()), nll, 2.0, 2.0, THRESHOLD)


def judged(layer: int, *locals_: LocalJudgement) -> tuple[Verdict, tuple[LocalJudgement, ...]]:
    return Verdict(f"encoder.layer.{layer}.intermediate.intermediate_act_fn", "gelu", "pass", local=locals_[0]), locals_


STRAIGHT = judged(1, local("fused", 40.0), local("modular", 20.0), local("native", 40.0))
CLOSE = judged(2, local("fused", 20.0), local("modular", 40.0), local("native", 20.0))
BY_HAND = judged(0, local(BY_OPERATIONS, 0.0))


@pytest.mark.parametrize("order", [(STRAIGHT, CLOSE, BY_HAND), (BY_HAND, STRAIGHT, CLOSE), (BY_HAND, CLOSE, STRAIGHT)])
def test_of_equal_costs_the_tightest_arithmetic_is_selected_for_any_order_of_layers(order) -> None:  # type: ignore[no-untyped-def]
    found = {v.activation.split(".")[2]: v.local.arithmetic for v in select_arithmetic(order) if v.local}
    assert found == {"0": BY_OPERATIONS, "1": "fused", "2": "fused"}


def test_a_wider_arithmetic_is_not_selected_on_a_tie_caused_by_steps_composed_of_operations() -> None:
    wide = judged(1, local("modular", 0.0, rms=3.0), local(WIDEST_ARITHMETIC, 0.0))
    (first, second) = select_arithmetic([BY_HAND, wide])
    assert first.outcome == "pass"
    assert (second.outcome, second.local and second.local.arithmetic) == ("fail", "modular")


@pytest.mark.parametrize(("nll", "outcome"), [(-50.0, "fail"), (-5.0, "pass")])
def test_the_likeliest_explanation_is_compared_with_no_mistake(nll: float, outcome: str) -> None:
    first, likeliest = Explanation((FAULT,), 0, 0.0), Explanation((FAULT,), 1, nll)
    tight = replace(local("fused", 10.0, rms=3.0), explanations=(first, likeliest))
    (verdict,) = select_arithmetic([judged(0, tight, local("native", 0.0))])
    assert verdict.outcome == outcome


OTHER = replace(FAULT, name="parameters-other")
FIT = Explanation((OTHER,), 100, -50.0, draw_count=64)  # 64 · (ln 64) / 2 = 133 nats
TWO = Explanation((FAULT, replace(FAULT, name="result-bfloat16")), 0, -50.0)
OTHERS = (STRAIGHT, judged(2, local("fused", 0.0)))
USUAL = judged(2, local("fused", 0.0), local("native", 40.0))


@pytest.mark.parametrize(
    ("explanations", "nll_of_the_other", "others", "selected"),
    [
        ((FIT,), -40.0, OTHERS, "native"),  # Few numbers explain it about as well.
        ((replace(FIT, draw_count=1),), -40.0, OTHERS, "fused"),  # Their cost is 0.
        ((FIT,), 120.0, OTHERS, "fused"),
        ((TWO,), -40.0, OTHERS, "native"),  # One fault explains it about as well.
        ((TWO,), -20.0, OTHERS, "fused"),
        # A fault without numbers is certain under a tight arithmetic.
        ((Explanation((FAULT,), 0, -20.0),), -60.0, OTHERS, "fused"),
        # An unexplained failure is named under an arithmetic in which a mistake is likelier.
        ((), 70.0, (USUAL,), "native"),
        ((), 90.0, (USUAL,), "fused"),
    ],
)
def test_a_failing_step_is_judged_under_another_arithmetic_for_a_simpler_explanation(
    explanations: tuple[Explanation, ...], nll_of_the_other: float, others: tuple[Any, ...], selected: str
) -> None:
    other = replace(local("native", 90.0, rms=3.0), explanations=(Explanation((FAULT,), 0, nll_of_the_other),))
    failing = replace(local("fused", 100.0, rms=3.0), explanations=explanations)
    verdict, *_ = select_arithmetic([judged(0, failing, other), *others])
    assert (verdict.outcome, verdict.local and verdict.local.arithmetic) == ("fail", selected)


@pytest.mark.parametrize(("repeats", "selected"), [(2, "native"), (1, "fused")])
def test_of_two_explanations_about_as_likely_the_fault_of_other_steps_is_reported(repeats: int, selected: str) -> None:
    other = replace(local("native", 90.0, rms=3.0), explanations=(Explanation((FAULT,), 0, -45.0),))
    failing, same = (
        replace(local("fused", 100.0, rms=3.0), explanations=(explanation,))
        for explanation in (Explanation((OTHER,), 1, -50.0), Explanation((FAULT,), 0, -50.0))
    )
    verdict, *_ = select_arithmetic([judged(0, failing, other), *(judged(n, same) for n in range(1, 1 + repeats)), STRAIGHT])
    assert verdict.local
    assert verdict.local.arithmetic == selected


FILTERED = replace(local("modular", 0.0), filters=(FAULT,))  # It fails by a filter alone, which costs 18 nats.
LARGE = local("modular", 0.0, rms=3.0)
NAMED = replace(local("fused", 5.0), filters=(FAULT,), explanations=(Explanation((FAULT,), 0, 1.0),))


@pytest.mark.parametrize(
    ("failing", "nll", "outcome"),
    [
        ((FILTERED,), 10.0, "pass"),  # No mistake explains the failure.
        ((FILTERED,), 20.0, "fail"),
        ((replace(FILTERED, explanations=(Explanation((FAULT,), 0, -5.0),)),), 10.0, "fail"),
        ((FILTERED, NAMED), 10.0, "fail"),  # A mistake explains it under another arithmetic.
        ((LARGE,), -20.0, "pass"),  # The other arithmetic is likelier by more than the cost of a failure.
        ((LARGE,), -16.0, "fail"),
        ((replace(LARGE, explanations=(Explanation((FAULT,), 0, -60.0),)),), -20.0, "fail"),
    ],
)
def test_a_failure_without_an_explanation_is_weighed_against_a_wider_arithmetic(
    failing: tuple[LocalJudgement, ...], nll: float, outcome: str
) -> None:
    usual = (local("modular", 0.0), local("fused", 15.0), local("native", 40.0))
    others = [judged(layer, *usual) for layer in (1, 2)]
    assert select_arithmetic([judged(0, *failing, local("native", nll)), *others])[0].outcome == outcome


def gradient(layer: int, *locals_: LocalJudgement) -> tuple[Verdict, tuple[LocalJudgement, ...]]:
    return Verdict(f"encoder.layer.{layer}.intermediate.dense.grad", "gelu_backward", "pass", local=locals_[0]), locals_


def test_each_backward_step_is_decided_separately_from_all_its_passes_together() -> None:
    tight = gradient(0, local("fused", 10.0), local("native", 40.0))
    wide = gradient(1, local("fused", 10.0, rms=3.0), local("native", 40.0))
    either = gradient(1, local("fused", 10.0), local("native", 12.0))
    found = [(v.outcome, v.local and v.local.arithmetic) for v in select_arithmetic([tight, tight, wide, either])]
    assert found == [("pass", "fused"), ("pass", "fused"), ("pass", "native"), ("pass", "native")]


def test_a_named_mistake_in_a_backward_pass_is_preferred_to_a_wide_arithmetic() -> None:
    named = replace(local("fused", 10.0, rms=3.0), explanations=(Explanation((FAULT,), 0, -50.0),))
    (verdict,) = select_arithmetic([gradient(0, named, local("native", 0.0))])
    assert verdict.outcome == "fail"


def _scaled_residuals(dtype: str) -> np.ndarray:
    """Return the local residuals of every linear step in sigma, computed from the candidate's own captured parents."""
    golden = load_golden("tiny")
    (batch,) = golden.batches.values()
    stream = HuggingFace("sdpa").prepare(golden.checkpoint, "cpu", dtype)(batch.on("cpu"))
    values = {n: v.double().numpy() for n, v in stream}
    weights = rounded_weights(golden.checkpoint, dtype)
    network = Network(golden.checkpoint.architecture, weights, batch)
    hypothesis = representative_hypothesis(dtype)
    scaled = []
    for n, row in network.table.items():
        if row.kind != "linear" or n not in values or "position" not in row.axes:
            continue
        segment = Segment(network, n, {p: values[p] for p in row.parents})
        sigma = np.sqrt(segment.propagate({}, hypothesis))
        scaled.append(((values[n] - segment.value) / sigma)[judged_elements(row, batch, sigma.shape)])
    return np.concatenate(scaled)


def test_errors_of_bfloat16_linear_layers_are_uniform() -> None:
    """One rounding: uniform on ±√3 sigma, so RMS 1 and kurtosis 1.8; the Kolmogorov–Smirnov distance is below 0.02, about a
    hundredth more than accumulation alone blurs the edges."""
    residuals = _scaled_residuals("bfloat16")
    assert np.sqrt((residuals**2).mean()) == pytest.approx(1.0, abs=0.02)
    assert kurtosis(residuals, fisher=False) == pytest.approx(1.8, abs=0.05)
    assert kstest(residuals, "uniform", args=(-np.sqrt(3), 2 * np.sqrt(3))).statistic < 0.02
    assert kstest(residuals, "norm").statistic > 0.02


def test_errors_of_float32_linear_layers_are_bell_shaped_and_within_sigma() -> None:
    """Many roundings: a bell-shaped distribution without bias, for which sigma is an upper estimate that is not far too wide."""
    residuals = _scaled_residuals("float32")
    rms = np.sqrt((residuals**2).mean())
    assert 0.3 < rms < 1.0
    assert abs(residuals.mean()) < 0.05 * rms
    assert 2.5 < kurtosis(residuals, fisher=False) < 6.0
    assert kstest(residuals / rms, "norm").statistic < 0.05
