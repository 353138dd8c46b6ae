"""Evidence of fitted faults: which parameters differ is stated as far as the error shows it, and a name needs evidence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import Checkpoint, Golden, check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.judge import explanation_search
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.report.finding_sentences import findings_of

pytestmark = pytest.mark.usefixtures("one_thread")


def _of_q8_0(right: Callable[..., Tensor], weight: Tensor) -> Tensor:
    """Return the step with a weight in blocks of bytes, each with a scale in float16, in the candidate's format."""
    of_block = weight.float().view(-1, 32)
    scale = (of_block.abs().amax(1, keepdim=True) / 127).half().float()
    return right(weight=((of_block / scale).round() * scale).view_as(weight).to(weight.dtype))


WORDS_OF_Q8_0 = Candidate([changed("word", _of_q8_0), changed("logits", _of_q8_0)])
KEYS_OF_BYTES = "right(k=levels(k.float(), 127, -1).to(k.dtype))"


def _exp_of_ibert(x: Tensor, keep: Tensor) -> Tensor:
    """Return the softmax with I-BERT's exponential: a quadratic on (−ln 2, 0], shifted."""
    shifted = (x - x.amax(-1, keepdim=True)).clamp(min=-30 * float(np.log(2.0)))
    z = torch.floor(-shifted / float(np.log(2.0)))
    p = shifted + z * float(np.log(2.0))
    weights = (0.3585 * (p + 1.353).square() + 0.344) * torch.exp2(-z)
    return weights / weights.sum(-1, keepdim=True)


def test_rows_of_a_table_that_differ_by_less_than_a_rounding_are_counted_and_the_bias_is_not_blamed() -> None:
    (found,) = findings_of(check(WORDS_OF_Q8_0, "tiny", dtype="bfloat16"))
    assert found.name == "parameters-other"
    assert "word_embeddings.weight, all 49 rows that the batch reads" in found.evidence
    assert "word_embeddings.weight, at least " in found.evidence
    assert "bias" not in found.evidence


def test_a_fit_whose_effect_is_not_significant_gives_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation_search, "_searched", lambda *_: ())
    found = findings_of(check(Candidate([changed("scores", KEYS_OF_BYTES)]), "tiny", dtype="bfloat16"))
    assert [one.name for one in found] == [None, None]


@pytest.mark.parametrize("step", ["activated", "inner"])
@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("rows-first", lambda y: y[:1].expand_as(y).contiguous()),
        ("rows-other", lambda y: y.roll(1, 0)),
        ("tokens-shifted", lambda y: y.roll(1, 1)),
    ],
)
def test_results_of_other_rows_or_tokens_have_a_name_at_an_activation_function_as_at_a_product(
    name: str, moved: Callable[[Tensor], Tensor], step: str
) -> None:
    (found,) = findings_of(check(Candidate([changed(step, lambda right: moved(right()), layers=(0,))]), "tiny"))
    assert found.name == name


def _with_lowest_feature(step: str, constant: float) -> Candidate:
    """Return a candidate of which one feature of a step's result is this constant, below all others."""
    return Candidate([changed(step, f"right().index_fill(-1, torch.tensor([3]), {constant})")])


@pytest.mark.parametrize(("step", "is_of_logits"), [("logits", True), ("transform", False), ("pooler", False)])
def test_logits_alone_are_suppressed(step: str, is_of_logits: bool) -> None:
    (found,) = findings_of(check(_with_lowest_feature(step, -1e4), "tiny"))
    assert (found.name == "logits-suppressed") == is_of_logits


STEPS = {"attention.self.query": "query", "attention.output.dense": "dense", "attention.output.LayerNorm": "attended"}


def _with_noise_in(name: str) -> Candidate:
    """Return a candidate that adds random numbers to a parameter of the first layer."""
    noisy = "right(weight=weight + normal(weight.shape, 1, weight) * weight.std())"
    return Candidate([changed(STEPS[name.removesuffix(".weight")], noisy, layers=(0,))])


@pytest.mark.parametrize("name", ["attention.self.query.weight", "attention.output.dense.weight"])
def test_other_weights_are_estimated_in_float64_and_where_the_output_of_a_norm_does_not_determine_them(name: str) -> None:
    (found,) = findings_of(check(_with_noise_in(name), "tiny", dtype="float64"))
    assert found.name == "parameters-other"
    assert f"{name}, all 32 rows" in found.evidence


_NORM = "attention.output.LayerNorm"


def test_other_factors_of_a_norm_are_estimated_in_float64() -> None:
    (found,) = findings_of(check(_with_noise_in(f"{_NORM}.weight"), "tiny", dtype="float64"))
    assert found.name == "parameters-other"
    assert f"{_NORM}.weight, all 32 elements" in found.evidence


def _with_a_factor_of_zero() -> Golden:
    """Return `tiny` with one factor of a norm that is 0."""
    tiny, name = load_golden("tiny"), f"bert.encoder.layer.0.{_NORM}.weight"
    factors = np.array(tiny.checkpoint.weights[name])
    factors[5] = 0.0
    checkpoint = Checkpoint(tiny.checkpoint.architecture, {**tiny.checkpoint.weights, name: factors})
    return golden_of("zero", checkpoint, dict(tiny.batches))


# Each token's deviations are divided by a standard deviation that is off by up to a part in 100.
ANOTHER_DEVIATION = "(right() - bias) * torch.linspace(0.99, 1.01, x.shape[1])[:, None] + bias"
STATISTICS = Candidate([changed("attended", ANOTHER_DEVIATION)])


@pytest.mark.parametrize(
    ("mistake", "name"), [(_with_noise_in(f"{_NORM}.weight"), "parameters-other"), (STATISTICS, "norm-statistics-other")]
)
def test_other_factors_or_statistics_of_a_norm_are_found_where_one_factor_is_zero(mistake: Candidate, name: str) -> None:
    found = findings_of(check(mistake, _with_a_factor_of_zero()))
    assert {one.name for one in found} == {name}


@dataclass(frozen=True)
class _OtherDecoder:
    """The oracle with another weight of the decoder, as `change` makes it of the checkpoint's and of normal numbers."""

    change: Callable[[Array, Array], Array]
    evaluation_only: bool = True

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        name = "cls.predictions.decoder"
        right = np.asarray(checkpoint.weights[f"{name}.weight"], np.float64)
        other = self.change(right, np.random.default_rng(0).standard_normal(right.shape))

        def run(given: Any) -> Any:
            values = dict(Network(checkpoint.architecture, dict(checkpoint.weights), given.numpy()).walk())
            values[name] = values["encoder.layer.1.output.LayerNorm"] @ other.T + checkpoint.weights["cls.predictions.bias"]
            return {activation: value.astype(dtype) for activation, value in values.items() if not activation.endswith("log_probs")}

        return run


@pytest.mark.parametrize(
    ("name", "change", "cause"),
    [
        ("parameters-initial", lambda _, drawn: 0.02 * drawn, "a parameter that the checkpoint lacks"),
        ("parameters-other", lambda right, drawn: right + right.std() * drawn, "whose own weight, if it has one, was not loaded"),
    ],
)
def test_a_cause_given_for_a_decoder_with_a_weight_of_its_own_is_that_it_was_not_loaded(
    name: str, change: Callable[[Array, Array], Array], cause: str
) -> None:
    found = next(one for one in check(_OtherDecoder(change), "sinusoidal").findings if "cls.predictions.decoder" in one.steps)
    assert found.name == name
    assert cause in found.cause


HALF_ZEROED = changed("query", "right() * 2 * (arange(H) < H // 2)", layers=(0,))


def test_other_weights_of_which_some_rows_are_zero_are_estimated() -> None:
    """A result of exactly 0 has no rounding errors."""
    (found,) = findings_of(check(Candidate([HALF_ZEROED]), "tiny"))
    assert found.name == "parameters-other"
    assert "attention.self.query.weight, all 32 rows" in found.evidence
