"""Parameters that a training loop does not train: a mistake if the loss depends on them and the candidate does not say so."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance import Training, check
from conformance.benchmarks.training.loops import Loop
from conformance.implementations.making_bert import making_bert


def freezing(is_frozen: Callable[[str], bool]) -> Callable[[Any, Training], Callable[[Any], None]]:
    """Return a loop that does not train some parameters of `making-bert`."""

    def train(model: Any, training: Training) -> Callable[[Any], None]:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not is_frozen(name))
        return Loop()(model, training)

    return train


def test_the_loss_curve_differs_if_a_layer_is_silently_frozen() -> None:
    candidate = replace(making_bert, train=freezing(lambda name: name.startswith("transformer.0.")), name="freezing")
    result = check(candidate, "tiny", check="loss-curve")
    assert result.outcome == "fail"
    assert "after step 2 cls.predictions.loss is" in result.reason
