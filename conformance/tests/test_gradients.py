"""The check `gradients`: wrong backward passes are found, placed and named; correct ones pass, including unusual ones."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from conformance import Checkpoint, check, load_golden
from conformance.benchmarks.gradients.correct import CORRECT
from conformance.benchmarks.gradients.measure import origins
from conformance.benchmarks.gradients.wrong import WRONG, WithWrongBackward
from conformance.benchmarks.planted import rewritten
from conformance.checks import backward_passes
from conformance.checks.check import Request
from conformance.errors import NotApplicable
from conformance.implementations.hugging_face import BertWithHeads, HuggingFace
from conformance.results.result import Result
from conformance.tests.judged_gradients import Changed, Plant, judged, observed


@cache
def _judged(wrong: str) -> Result:
    return judged(WithWrongBackward(WRONG[wrong]), WRONG[wrong].golden, source="cls.loss")


@pytest.mark.landing(wrong=[*[*WRONG][::6], "tanh-GELU's derivative", "skip twice", "bias three times"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_backward_pass_is_found_placed_and_named(wrong: str) -> None:
    result = _judged(wrong)
    assert origins(result) == dict.fromkeys(WRONG[wrong].at, (WRONG[wrong].named,))
    assert not any(v.is_through_wrong_step for v in result.verdicts)


# Mistakes without a name, at places chosen by a seed: where the gradient is changed, and how.
_PLACES = {
    "bert.encoder.layer.0.output.dense": {"encoder.layer.0.intermediate.intermediate_act_fn.grad"},
    # The context is read at the input of this module, after the change, and is computed from these activations.
    "bert.encoder.layer.0.attention.output.dense": {f"encoder.layer.0.attention.self.{n}.grad" for n in ("value", "probs")},
    "bert.encoder.layer.1.output.dense": {"encoder.layer.1.intermediate.intermediate_act_fn.grad"},
    "bert.pooler.activation": {"pooler.dense.grad"},
    "cls.predictions.decoder": {"cls.predictions.transform.LayerNorm.grad"},
    "classifier": {"pooler.activation.grad"},
}
_CHANGES: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "one feature stronger": lambda g, at: g * (1.0 + 0.01 * (torch.arange(g.shape[-1]) == at % g.shape[-1])),
    "features rolled": lambda g, at: g.roll(1 + at % (g.shape[-1] - 1), -1),
    "small ones dropped": lambda g, at: torch.where(g.abs() < g.abs().mean() / 2, 0.0, g),
    "clipped": lambda g, at: g.clamp(-g.abs().mean(), g.abs().mean()),
    "rounded to bfloat16": lambda g, at: g.bfloat16().float(),
}


def _unnamed() -> Iterator[tuple[str, str, int]]:
    draw = np.random.default_rng(20)
    for _ in range(10):
        yield str(draw.choice(list(_PLACES))), str(draw.choice(list(_CHANGES))), int(draw.integers(1000))


@pytest.mark.landing(change=["features rolled", "rounded to bfloat16"])
@pytest.mark.parametrize(("path", "change", "at"), list(_unnamed()))
def test_a_mistake_without_a_name_is_found_and_placed(path: str, change: str, at: int) -> None:
    class Unnamed(HuggingFace):
        def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> BertWithHeads:
            model = super().module(checkpoint, device, dtype)

            def altered(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
                return (rewritten(args[0], Tensor.clone, lambda _, w: _CHANGES[change](w, at)), *args[1:])

            model.get_submodule(path).register_forward_pre_hook(altered)
            return model

    source = "classifier.loss" if path == "classifier" else "cls.loss"
    assert set(origins(judged(Unnamed("eager"), source=source))) == _PLACES[path]


@pytest.mark.landing({"dtype": "float32"}, name="hf-eager", golden="tiny")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("name", "golden"),
    [
        *((name, "tiny") for name in ("hf-eager", "making-bert", "torch-encoder")),
        ("demystified", "sinusoidal"),
        ("hf-sdpa", "tanh"),
        ("hf-eager", "narrow-heads"),
    ],
)
def test_correct_backward_passes_pass(name: str, golden: str, dtype: str) -> None:
    result = judged(name, golden, dtype)
    assert (result.outcome, result.reason) == ("pass", "")
    assert "backward pass of" not in str(result)
    assert sum(n.endswith(".grad") for n in observed(result)) > 40


def test_the_backward_pass_of_fused_attention_passes_where_keys_have_all_the_weight() -> None:
    result = check("hf-sdpa", "minilm", check="gradients", depth="screen")
    assert (result.outcome, result.reason) == ("pass", "")


def _checkpointed(*, reentrant: bool) -> Plant:
    """Recompute the interior of each layer in the backward pass."""

    def plant(model: Any) -> None:
        for layer in model["bert"].encoder.layer:
            feed = layer.feed_forward_chunk
            layer.feed_forward_chunk = partial(checkpointed, feed, use_reentrant=reentrant)

    return plant


def _chunked(model: Any) -> None:
    """Run the feed-forward network on a few positions at a time."""
    for layer in model["bert"].encoder.layer:
        feed = layer.feed_forward_chunk
        layer.feed_forward_chunk = lambda x, feed=feed: torch.cat([feed(part) for part in x.split(5, 1)], 1)


def _with_padding_learning(model: Any) -> None:
    model["bert"].embeddings.word_embeddings.padding_idx = None


def _in_place(model: Any) -> None:
    """Overwrite an output in place after its gradient was requested."""
    for layer in model["bert"].encoder.layer:
        layer.output.dropout.register_forward_hook(lambda _m, _a, x: (x * 1.0).add_(0.0))


@pytest.mark.landing(name=[*CORRECT][::15])
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_variant_of_the_forward_pass_has_a_correct_backward_pass(name: str) -> None:
    asked = {"dtype": "float32"} if "float32" in CORRECT[name].variant.dtypes else {"dtype": "bfloat16"}
    assert origins(judged(CORRECT[name], source="cls.loss", depth="screen", **asked)) == {}


UNUSUAL: Mapping[str, Plant] = {
    "checkpointed": _checkpointed(reentrant=False),
    "checkpointed, reentrant": _checkpointed(reentrant=True),
    "in chunks": _chunked,
    "without padding_idx": _with_padding_learning,
    "in place": _in_place,
}


@pytest.mark.landing({"dtype": "float32"}, how="in place")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("how", UNUSUAL)
def test_unusual_correct_backward_passes_pass(how: str, dtype: str) -> None:
    assert origins(judged(Changed(UNUSUAL[how]), dtype=dtype)) == {}


def test_batches_that_attend_to_the_padding_token_are_omitted() -> None:
    golden = load_golden("odd-width")
    with pytest.raises(NotApplicable, match="attends to the token 0"):
        backward_passes.gradients.function(Request.of(HuggingFace("eager"), golden))


@pytest.mark.landing(wrong=["loss scale left", "mean detached", "skip twice"])
@pytest.mark.parametrize(
    ("wrong", "dtype"),
    [
        ("loss scale left", "float16"),  # The rounding errors of subnormal gradients are multiplied as well.
        *((wrong, "bfloat16") for wrong in ("mean detached", "tanh-GELU's derivative", "softmax without its sum", "skip twice")),
    ],
)
def test_a_mistake_does_not_pass_under_a_wide_arithmetic_that_other_steps_of_its_kind_do_not_need(wrong: str, dtype: str) -> None:
    result = judged(WithWrongBackward(WRONG[wrong]), dtype=dtype, source="cls.loss")
    assert origins(result) == dict.fromkeys(WRONG[wrong].at, (WRONG[wrong].named,))


@pytest.mark.landing(name="norms of seven kinds")
@pytest.mark.parametrize("name", ["norms of seven kinds", "GELUs of four kinds", "softmaxes of three kinds"])
def test_backward_steps_of_one_kind_may_use_another_arithmetic_in_each_layer(name: str) -> None:
    result = judged(CORRECT[name], dtype="bfloat16", depth="screen")
    assert (result.outcome, result.reason) == ("pass", "")
