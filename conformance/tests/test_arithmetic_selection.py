"""Selection of the arithmetic under which each kind of step is judged, on constructed evidence."""

from dataclasses import replace

import pytest

from conformance.judge.evidence import BY_OPERATIONS, WIDEST_ARITHMETIC, Error, Explanation, FilterResult, LocalJudgement, Verdict
from conformance.judge.select_arithmetic import select_arithmetic

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


@pytest.mark.parametrize(
    ("own", "nll_of_the_other", "selected"),
    [
        (FIT, -40.0, "native"),  # Few numbers explain it about as well.
        (replace(FIT, draw_count=1), -40.0, "fused"),  # Numbers without a cost do not count.
        (FIT, 120.0, "fused"),
        (TWO, -40.0, "native"),  # One fault explains it about as well.
        (TWO, -20.0, "fused"),
        (Explanation((FAULT,), 0, -20.0), -60.0, "fused"),  # A fault without numbers is certain under a tight arithmetic.
    ],
)
def test_a_failing_step_is_judged_under_another_arithmetic_for_a_simpler_explanation(
    own: Explanation, nll_of_the_other: float, selected: str
) -> None:
    other = replace(local("native", 90.0, rms=3.0), explanations=(Explanation((FAULT,), 0, nll_of_the_other),))
    failing = replace(local("fused", 100.0, rms=3.0), explanations=(own,))
    verdicts = select_arithmetic([judged(0, failing, other), STRAIGHT, judged(2, local("fused", 0.0))])
    assert (verdicts[0].outcome, verdicts[0].local and verdicts[0].local.arithmetic) == ("fail", selected)


@pytest.mark.parametrize(("repeats", "selected"), [(2, "native"), (1, "fused")])
def test_of_two_explanations_about_as_likely_the_fault_of_other_steps_is_reported(repeats: int, selected: str) -> None:
    estimate = Explanation((OTHER,), 1, -50.0)
    other = replace(local("native", 90.0, rms=3.0), explanations=(Explanation((FAULT,), 0, -45.0),))
    failing = replace(local("fused", 100.0, rms=3.0), explanations=(estimate,))
    same = replace(local("fused", 100.0, rms=3.0), explanations=(Explanation((FAULT,), 0, -50.0),))
    verdicts = select_arithmetic([judged(0, failing, other), *(judged(n, same) for n in range(1, 1 + repeats)), STRAIGHT])
    assert verdicts[0].local
    assert verdicts[0].local.arithmetic == selected


@pytest.mark.parametrize(("nll", "selected"), [(70.0, "native"), (90.0, "fused")])
def test_an_unexplained_failure_is_named_under_an_arithmetic_in_which_a_mistake_is_likelier(nll: float, selected: str) -> None:
    other = replace(local("native", 90.0, rms=3.0), explanations=(Explanation((FAULT,), 0, nll),))
    usual = judged(1, local("fused", 0.0), local("native", 40.0))
    verdicts = select_arithmetic([judged(0, local("fused", 100.0, rms=3.0), other), usual])
    assert (verdicts[0].outcome, verdicts[0].local and verdicts[0].local.arithmetic) == ("fail", selected)


@pytest.mark.parametrize(
    ("explanations", "nll", "outcome"),
    [
        ((), 10.0, "pass"),  # No mistake explains the failure, which costs 18 nats.
        ((), 20.0, "fail"),
        ((Explanation((FAULT,), 0, -5.0),), 10.0, "fail"),
    ],
)
def test_a_wider_arithmetic_is_weighed_against_an_unexplained_failure(
    explanations: tuple[Explanation, ...], nll: float, outcome: str
) -> None:
    failing = replace(local("modular", 0.0), filters=(FAULT,), explanations=explanations)
    wide = local("native", nll)
    others = [judged(layer, local("modular", 0.0), local("native", 40.0)) for layer in (1, 2)]
    verdicts = select_arithmetic([judged(0, failing, wide), *others])
    assert verdicts[0].outcome == outcome


@pytest.mark.parametrize(
    ("nll", "explanations", "outcome"),
    [
        (-20.0, (), "pass"),  # The other arithmetic is likelier by more than the cost of a failure, 18 nats.
        (-16.0, (), "fail"),
        (-20.0, (Explanation((FAULT,), 0, -60.0),), "fail"),
    ],
)
def test_in_another_arithmetic_than_its_kind_a_large_residual_needs_a_far_likelier_arithmetic_and_no_mistake_that_explains_it(
    nll: float, explanations: tuple[Explanation, ...], outcome: str
) -> None:
    failing = replace(local("modular", 0.0, rms=3.0), explanations=explanations)
    others = [judged(layer, local("modular", 0.0), local("native", 40.0)) for layer in (1, 2)]
    wide = local("native", nll)
    assert select_arithmetic([judged(0, failing, wide), *others])[0].outcome == outcome


def test_a_failure_that_a_mistake_explains_under_another_arithmetic_is_not_unexplained() -> None:
    failing = replace(local("fused", 0.0), filters=(FAULT,))
    named = replace(local("modular", 5.0), filters=(FAULT,), explanations=(Explanation((FAULT,), 0, 1.0),))
    wide = local("native", 10.0)
    others = [judged(layer, local("fused", 0.0), local("modular", 15.0), local("native", 40.0)) for layer in (1, 2)]
    assert select_arithmetic([judged(0, failing, named, wide), *others])[0].outcome == "fail"


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
