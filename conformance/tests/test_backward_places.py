"""A backward mistake is named by the forward step whose backward pass is wrong, in every report."""

import pytest

from conformance.benchmarks.gradients.wrong import WRONG, WithWrongBackward
from conformance.implementations.hugging_face import HuggingFace
from conformance.results.result import Result
from conformance.tests.judged_gradients import judged

# By mistake: the sentence with which its report begins.
SENTENCES = {
    "mean detached": "layer 1, backward pass of output.LayerNorm, seen in output.dropout.grad: the backward pass treats the mean",
    "tanh-GELU's derivative": "layer 1, backward pass of intermediate.intermediate_act_fn, seen in intermediate.dense.grad: GELU",
}


def _judged(wrong: str) -> Result:
    return judged(WithWrongBackward(WRONG[wrong]), source="cls.loss")


@pytest.mark.parametrize("wrong", SENTENCES)
def test_a_mistake_is_named_by_the_step_whose_backward_pass_is_wrong(wrong: str) -> None:
    result = _judged(wrong)
    (finding,) = result.findings
    assert finding.sentence.startswith(SENTENCES[wrong])
    assert finding.steps == WRONG[wrong].at  # the names of the activations are as before
    text = " ".join(str(result).split())
    assert SENTENCES[wrong] in text
    step = SENTENCES[wrong].split(",")[1].removeprefix(" backward pass of ")
    assert f"origin of the error: backward pass of encoder.layer.1.{step}, seen in {WRONG[wrong].at[0]}" in text


def test_a_sum_of_gradients_and_a_gradient_of_a_parameter_keep_their_names() -> None:
    for wrong in ("skip twice", "bias three times"):
        result = _judged(wrong)
        assert result.findings
        assert not any("backward pass of" in finding.sentence for finding in result.findings), result.findings


def test_a_correct_backward_pass_names_no_place() -> None:
    result = judged(HuggingFace("eager"), source="cls.loss")
    assert result.outcome == "pass"
    assert "backward pass of" not in str(result)
    assert {v.backward_of for v in result.verdicts if v.activation == "encoder.layer.1.output.dropout.grad"} == {
        "encoder.layer.1.output.LayerNorm"
    }
