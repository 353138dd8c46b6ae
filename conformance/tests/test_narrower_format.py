"""A runtime that computes in a narrower format than it promises, observed only by its last hidden state."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from conformance import check, load_golden, trace
from conformance.checks.trace import record
from conformance.judge.narrower_format import narrower_format
from conformance.judge.segment import Segment
from conformance.numerics.formats import FORMATS, Array
from conformance.oracle import Network
from conformance.tests.planted_mistakes import Planted

LAST = f"encoder.layer.{load_golden('tiny').checkpoint.architecture.num_hidden_layers - 1}.output.LayerNorm"
SAID = "as much as computing in {} would leave"


class LastState:
    """The last hidden state of Hugging Face's BERT computed in a given format, converted to float32."""

    def __init__(self, dtype: str, change: Callable[[Array], Array] = lambda x: x) -> None:
        self.dtype, self.change = dtype, change

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        activations = trace("hf-sdpa", "tiny", dtype=self.dtype).activations["padded"]
        return lambda _: {LAST: self.change(np.asarray(activations[LAST], np.float32))}


@pytest.mark.parametrize(("dtype", "other"), [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_the_format_whose_rounding_explains_the_residual_is_reported(dtype: str, other: str) -> None:
    rendered = " ".join(str(check(LastState(dtype), "tiny")).split())
    assert SAID.format(dtype) in rendered
    assert SAID.format(other) not in rendered


def test_steps_without_a_product_have_no_form_of_rounding_and_are_judged_by_their_size_alone() -> None:
    """Embeddings computed in bfloat16 of which only the norm is exposed."""
    tiny, name = load_golden("tiny"), "embeddings.LayerNorm"
    network = Network(tiny.checkpoint.architecture, tiny.checkpoint.weights, tiny.batches["padded"])
    segment, judged = Segment(network, name, {}), np.ones((*network.batch.mask.shape, 1), bool)
    assert not segment.is_single_step
    actual = FORMATS["bfloat16"].round(segment.value)
    assert narrower_format(segment, actual, np.broadcast_to(judged, actual.shape), FORMATS["float32"], 8.0) == ()


class Scaled(torch.nn.Module):
    """The activation function with one feature of the result multiplied by 1.003."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(x)
        y[..., 13] *= 1.003
        return y


def test_a_wrong_equation_of_the_same_size_is_not_attributed_to_a_format() -> None:
    def scale(model: Any) -> None:
        model["bert"].encoder.layer[0].intermediate.intermediate_act_fn = Scaled()

    found = record(Planted(scale), load_golden("tiny"), "cpu", "float32").activations["padded"][LAST].astype(np.float32)
    rendered = " ".join(str(check(lambda *_: lambda _: {LAST: found}, "tiny")).split())
    assert "as large as computing in float16 would leave (RMS 0.5" in rendered
    assert (
        "but not of its form: the error consists of about 1.7 patterns over the features, where rounding leaves about 5.7"
        in rendered
    )
    assert SAID.format("float16") not in rendered
    assert "INFERENCE_PRECISION_HINT" not in rendered


@pytest.mark.parametrize("times", [1e-2, 30.0])
def test_noise_of_another_size_is_not_attributed_to_a_format(times: float) -> None:
    def noisy(x: Array) -> Array:
        noise = np.random.default_rng(0).standard_normal(x.shape)
        return (x * (1.0 + times * 2.0**-8 * noise)).astype(np.float32)

    result = check(LastState("float32", noisy), "tiny")
    assert result.outcome == "fail"
    assert "would leave: RMS" not in str(result)
