"""The gradient of the maximum over tokens: equal largest elements, a hidden state that is not exposed, and wrong gradients."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from conformance import Checkpoint, Golden, ModuleRunner, golden_of, load_golden
from conformance.goldens.generated_weights import weights
from conformance.implementations import sentence_pooling
from conformance.implementations.hugging_face import HuggingFace
from conformance.tests.judged_gradients import judged

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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [HuggingFace, Hiding])
def test_the_gradient_of_the_second_largest_element_fails(
    kind: type[HuggingFace], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_pooling, "pool", _to_second)
    failed = {v.activation for v in judged(kind("eager"), _network(7), dtype).verdicts if v.outcome == "fail"}
    # The sum over the tokens, which is the gradient of the last norm's bias, is the same.
    hidden = {"encoder.layer.1.output.dropout.grad", f"bert.{_LAST}.weight.grad"}
    assert failed == (hidden if kind is Hiding else {f"{_LAST}.grad"})
