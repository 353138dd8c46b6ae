"""Parameters that a training loop does not train: a mistake if the loss depends on them and the candidate does not say so."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance import Training, captured_step, check, load_golden
from conformance.benchmarks.training.loops import Loop
from conformance.benchmarks.training.measure import gradients_alone
from conformance.checks.check import Plan, Request
from conformance.checks.judgement import check_values
from conformance.implementations.making_bert import making_bert
from conformance.model.training import STEPPED
from conformance.results.result import Result

pytestmark = pytest.mark.usefixtures("one_thread", "first_setting")


@pytest.fixture
def first_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the loop with the first of the settings only, whose gradients are judged."""
    monkeypatch.setattr("conformance.checks.optimizer_passes.STEPPED", {"linear": STEPPED["linear"]})


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


def test_a_step_yields_parameters_that_are_not_reached_without_a_gradient() -> None:
    net = torch.nn.ModuleDict({"used": torch.nn.Linear(1, 1, bias=False), "other": torch.nn.Linear(1, 1, bias=False)})
    found = captured_step(net, lambda: net["used"](torch.ones(1, 1)).sum().backward())
    assert [name for name, _ in found] == ["used.weight.grad", "used.weight", "other.weight"]


def test_a_parameter_that_the_checkpoint_lacks_may_be_yielded_if_it_is_not_trained() -> None:
    def prepare(*asked: Any) -> Any:
        runner = Loop().candidate.prepare(*asked)
        usual: Any = runner.trainer

        def trainer(training: Training) -> Any:
            step = usual(training)
            return lambda batch: [*step(batch), ("adapter.weight", torch.ones(3))]

        return replace(runner, trainer=trainer)

    extended = SimpleNamespace(name="extended", prepare=prepare)
    result = check_values(Request.of(extended, load_golden("tiny"), plan=Plan(depth="screen")), gradients_alone)
    assert result.conforms, str(result)
