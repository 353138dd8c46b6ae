"""A wrong forward step with a correct backward pass is one mistake; a backward mistake of another step is found beside it."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from conformance import Checkpoint
from conformance.benchmarks.gradients.measure import origins
from conformance.benchmarks.gradients.wrong import WRONG, WithWrongBackward
from conformance.implementations.hugging_face import BertWithHeads
from conformance.results.result import Result
from conformance.tests.judged_gradients import Changed, Plant, judged


def _tanh_gelu(model: Any) -> None:
    for layer in model["bert"].encoder.layer:
        layer.intermediate.intermediate_act_fn = nn.GELU(approximate="tanh")


def _scaled_by_the_hidden_size(model: Any) -> None:
    for layer in model["bert"].encoder.layer:
        of = layer.attention.self
        of.scaling *= of.num_attention_heads**-0.5


def _one_channel(model: Any) -> None:
    factors = torch.ones(model["bert"].encoder.layer[0].intermediate.dense.out_features)
    factors[13] = 1.003
    model["bert"].encoder.layer[0].intermediate.intermediate_act_fn.register_forward_hook(lambda _, __, y: y * factors)


def _epsilon(model: Any) -> None:
    model["bert"].encoder.layer[0].attention.output.LayerNorm.eps = 1e-3


def _second_token(model: Any) -> None:
    model["bert"].pooler.register_forward_pre_hook(lambda _, args: (args[0][:, 1:],))


_LAYERS = [f"encoder.layer.{i}" for i in range(2)]
_FIRST_NORM = "encoder.layer.0.attention.output"

# By forward mistake: how it is planted, where it is found, and the gradients that are not judged because of it.
FORWARD: Mapping[str, tuple[Plant, set[str], set[str]]] = {
    "GELU of tanh": (
        _tanh_gelu,
        {f"{layer}.intermediate.intermediate_act_fn" for layer in _LAYERS},
        {f"{layer}.intermediate.dense.grad" for layer in _LAYERS},
    ),
    "scale of the hidden size": (
        _scaled_by_the_hidden_size,
        {f"{layer}.attention.self.probs" for layer in _LAYERS},
        {f"{layer}.attention.self.{name}.grad" for layer in _LAYERS for name in ("query", "key")},
    ),
    "a mistake without a name": (
        _one_channel,
        {"encoder.layer.0.intermediate.intermediate_act_fn"},
        {"encoder.layer.0.intermediate.dense.grad"},
    ),
    "epsilon": (
        _epsilon,
        {f"{_FIRST_NORM}.LayerNorm"},
        {f"{_FIRST_NORM}.dropout.grad", f"bert.{_FIRST_NORM}.LayerNorm.weight.grad"},
    ),
    "the second token": (
        _second_token,
        {"pooler.dense"},
        {"encoder.layer.1.output.LayerNorm.grad", "bert.pooler.dense.weight.grad"},
    ),
}


def _unjudged(result: Result) -> set[str]:
    return {v.activation for v in result.verdicts if v.is_through_wrong_step}


@pytest.mark.parametrize("mistake", FORWARD)
def test_a_correct_backward_pass_of_a_wrong_forward_pass_is_no_second_mistake(mistake: str) -> None:
    plant, places, through = FORWARD[mistake]
    source = "classifier.loss" if mistake == "the second token" else "cls.loss"
    result = judged(Changed(plant), source=source)
    assert result.outcome == "fail"
    assert set(origins(result)) == places
    assert _unjudged(result) == through
    judged_activations, activations = result.coverage
    assert judged_activations <= activations - len(through)
    assert "as the forward step is wrong" in " ".join(str(result).split())


class _Both(WithWrongBackward):
    """A BERT with a mistake in a forward step, correctly differentiated, and one in the backward pass of another step."""

    def __init__(self, forward: Plant, wrong: str) -> None:
        super().__init__(WRONG[wrong])
        self.plant = forward

    def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> BertWithHeads:
        model = super().module(checkpoint, device, dtype)
        self.plant(model)
        return model


@pytest.mark.landing(wrong="mean detached", mistake=["GELU of tanh", "a mistake without a name"])
@pytest.mark.parametrize("wrong", ["mean detached", "skip twice"])
@pytest.mark.parametrize("mistake", ["GELU of tanh", "scale of the hidden size", "a mistake without a name"])
def test_a_backward_mistake_of_another_step_is_found_placed_and_named(mistake: str, wrong: str) -> None:
    plant, places, through = FORWARD[mistake]
    result = judged(_Both(plant, wrong), source="cls.loss")
    gradients = {name: named for name, named in origins(result).items() if name not in places}
    assert gradients == dict.fromkeys(WRONG[wrong].at, (WRONG[wrong].named,))
    assert _unjudged(result) == through


@pytest.mark.landing(dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_forward_mistake_in_half_precision_is_one_mistake(dtype: str) -> None:
    plant, places, through = FORWARD["GELU of tanh"]
    result = judged(Changed(plant), source="cls.loss", dtype=dtype)
    assert set(origins(result)) == places
    assert _unjudged(result) <= through
