"""A wrong forward step with a correct backward pass is one mistake, also with a backward mistake of another step beside it; the
gradient of the maximum over tokens."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance import Checkpoint, Golden, ModuleRunner, golden_of, load_golden
from conformance.benchmarks.gradients.measure import origins
from conformance.benchmarks.gradients.wrong import WRONG, WithWrongBackward
from conformance.goldens.generated_weights import weights
from conformance.implementations import sentence_pooling
from conformance.implementations.hugging_face import BertWithHeads, HuggingFace
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


_TINY = load_golden("tiny")
Pool = Callable[[Tensor, Tensor, str], Tensor]
_LAST = "encoder.layer.1.output.LayerNorm"


def _network(seed: int) -> Golden:
    """Return a network of two layers whose embedding is the maximum over the tokens; seed 73 has a near tie in bfloat16."""
    a = _TINY.checkpoint.architecture.with_(num_hidden_layers=2, heads=(), pooler=False, pooling="max")
    return golden_of("maximum", Checkpoint(a, weights(seed, a)), _TINY.batches)


def _divided(hidden: Tensor, mask: Tensor, _: str) -> Tensor:
    return hidden.masked_fill(mask == 0, -float("inf")).amax(1)  # Its gradient is divided among equal elements.


def _to_one(hidden: Tensor, mask: Tensor, _: str) -> Tensor:
    return hidden.masked_fill(mask == 0, -float("inf")).max(1).values  # Its gradient goes to one of equal elements.


def _to_second(hidden: Tensor, mask: Tensor, _: str) -> Tensor:
    """Return the maximum, with the gradient of the second largest element."""
    second = hidden.masked_fill(mask == 0, -1e4).sort(1).values[:, -2]
    return _divided(hidden, mask, _).detach() + (second - second.detach())


class Hiding(HuggingFace):
    """Hugging Face's BERT, which exposes neither the last hidden state nor its gradient."""

    def prepare(self, *case: Any) -> ModuleRunner:
        runner = super().prepare(*case)
        assert isinstance(runner, ModuleRunner)
        call, gradients = runner.call, runner.gradients
        assert gradients is not None

        def others(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
            return ((name, value) for name, value in pairs if not name.startswith(_LAST))

        return replace(runner, call=lambda batch: others(call(batch)), gradients=lambda *asked: others(gradients(*asked)))


@pytest.mark.parametrize(
    ("kind", "dtype", "seed"),
    [
        (HuggingFace, "float32", 7),
        (HuggingFace, "bfloat16", 7),
        (Hiding, "bfloat16", 73),  # Rounding exchanges the largest elements of a hidden state that is not exposed.
    ],
)
@pytest.mark.parametrize("pool", [_divided, _to_one])
def test_equal_largest_elements_may_share_the_gradient_or_one_may_have_it(
    pool: Pool, kind: type[HuggingFace], dtype: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_pooling, "pool", pool)
    result = judged(kind("eager"), _network(seed), dtype)
    assert (result.outcome, result.reason) == ("pass", "")


@pytest.mark.parametrize(("kind", "dtype"), [(HuggingFace, "bfloat16"), (Hiding, "float32")])
def test_the_gradient_of_the_second_largest_element_fails(
    kind: type[HuggingFace], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_pooling, "pool", _to_second)
    failed = {v.activation for v in judged(kind("eager"), _network(7), dtype).verdicts if v.outcome == "fail"}
    # The sum over the tokens, which is the gradient of the last norm's bias, is the same.
    hidden = {"encoder.layer.1.output.dropout.grad", f"bert.{_LAST}.weight.grad"}
    assert failed == (hidden if kind is Hiding else {f"{_LAST}.grad"})
