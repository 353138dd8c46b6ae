"""Training loops that change their gradients between the backward pass and clipping, or do not train every parameter."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from conformance import Training, check, load_golden
from conformance.benchmarks.training.loops import Loop, loss
from conformance.benchmarks.training.measure import gradients_alone, of_few
from conformance.checks.check import Plan, Request
from conformance.checks.judgement import check_values
from conformance.checks.optimizer_passes import optimizer_step
from conformance.checks.passes import Pass, Passes
from conformance.implementations.making_bert import making_bert
from conformance.model.training import STEPPED
from conformance.results.result import Result

pytestmark = pytest.mark.usefixtures("one_thread", "first_setting")

SCALE = 1024.0
clip_by_name = nn.utils.clip_grad_norm_


@pytest.fixture
def first_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the loop with the first of the settings only, whose gradients are judged."""
    monkeypatch.setattr("conformance.checks.optimizer_passes.STEPPED", {"linear": STEPPED["linear"]})


def _passes(*asked: Any) -> list[Pass]:
    return [one if one.only_parameter_gradients else of_few(one) for one in optimizer_step.function(*asked)]


def _judged(train: Callable[[Any, Training], Any], passes: Passes = gradients_alone) -> Result:
    return check_values(
        Request.of(replace(making_bert, train=train, name="rescaled"), load_golden("tiny"), plan=Plan(depth="screen")), passes
    )


def _scaled(clip: Callable[..., Any], *, unscales: bool = True) -> Callable[[Any, Training], Any]:
    """Return a loop with a `GradScaler`, which unscales the gradients before or after they are clipped."""

    def train(model: Any, training: Training) -> Any:
        scaler, done = torch.amp.GradScaler("cpu", init_scale=SCALE), 0
        decayed, others = ([p for p in model.parameters() if (p.ndim > 1) is which] for which in (True, False))
        groups = [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, eps=training.adam_epsilon)

        def step(batch: Any) -> None:
            nonlocal done
            done += 1
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(loss(model, batch)))
            if unscales:
                scaler.unscale_(optimizer)
            clip(list(model.parameters()), training.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = training.rate(done)
            scaler.step(optimizer)
            scaler.update()

        return step

    return train


def _dividing(divisor: Callable[[], float]) -> Callable[[Any, float], None]:
    """Return a function that divides the gradients and then clips them."""

    def clip(parameters: Any, c: float) -> None:
        every = list(parameters)
        for p in every:
            p.grad.div_(divisor())
        nn.utils.clip_grad_norm_(every, c)

    return clip


def _divided(model: Any, training: Training) -> Any:
    """A loss summed over labelled tokens, and gradients divided by their number."""
    counts: list[float] = []

    def backward(model: Any, batch: Any) -> None:
        counts.append(float((batch.labels != -100).sum()))
        torch.autograd.backward(loss(model, batch) * counts[-1])

    return Loop(backward=backward, clip=_dividing(lambda: counts[-1]))(model, training)


CORRECT: Mapping[str, Callable[[Any, Training], Any]] = {
    "unscaled, then clipped": _scaled(lambda *given: nn.utils.clip_grad_norm_(*given)),
    "unscaled, then clipped by a function imported before": _scaled(clip_by_name),
    "divided by the number of labelled tokens": _divided,
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_loop_that_rescales_its_gradients_before_it_clips_them_passes(name: str) -> None:
    result = _judged(CORRECT[name], _passes)
    assert result.conforms, str(result)


@pytest.mark.landing(times="1024")
@pytest.mark.parametrize(
    ("train", "times"),
    [
        (_scaled(lambda *given: nn.utils.clip_grad_norm_(*given), unscales=False), "1024"),
        (Loop(clip=_dividing(lambda: 4.0)), "0.25"),
    ],
    ids=["clipped before they are unscaled", "divided once more before clipping"],
)
def test_gradients_of_another_scale_are_named_as_scaled(train: Callable[[Any, Training], Any], times: str) -> None:
    result = _judged(train)
    assert any(f"the gradient is {times} times" in verdict.reason for verdict in result.failures), str(result)


# Parameters that a training loop does not train.


def freezing(is_frozen: Callable[[str], bool]) -> Callable[[Any, Training], Callable[[Any], None]]:
    """Return a loop that does not train some parameters of `making-bert`."""

    def train(model: Any, training: Training) -> Callable[[Any], None]:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not is_frozen(name))
        return Loop()(model, training)

    return train


def judged(train: Callable[[Any, Training], Callable[[Any], None]], *frozen: str) -> Result:
    """Return the judgement of the gradients of a loop."""
    candidate = replace(making_bert, train=train, frozen=frozen, name="freezing")
    return check_values(Request.of(candidate, load_golden("tiny"), plan=Plan(depth="screen")), gradients_alone)


FROZEN: dict[str, Callable[[str], bool]] = {
    "and 34 more have no gradient": lambda name: not name.startswith("lm_head"),
    "bert.encoder.layer.0.output.dense.bias has no gradient": lambda name: name == "transformer.0.residual.mlp2.bias",
}


@pytest.mark.parametrize("said", FROZEN)
def test_parameters_that_are_silently_frozen_are_named_as_not_trained(said: str) -> None:
    result = judged(freezing(FROZEN[said]))
    assert result.outcome == "fail"
    assert said in result.failures[0].reason


def test_parameters_that_are_declared_as_frozen_are_not_judged() -> None:
    result = judged(freezing(lambda name: name.startswith("transformer.0.")), "transformer.0.*")
    assert result.conforms, str(result)


def test_the_loss_curve_differs_if_a_layer_is_silently_frozen() -> None:
    candidate = replace(making_bert, train=freezing(lambda name: name.startswith("transformer.0.")), name="freezing")
    result = check(candidate, "tiny", check="loss-curve")
    assert result.outcome == "fail"
    assert "after step 2 cls.predictions.loss is" in result.reason
