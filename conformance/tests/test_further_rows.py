"""Wrong weights are named, if the batch has too few rows, on a further batch that has more; other mistakes are not."""

from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor

from conformance import Golden, check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.model.batch import Batch

LAYER = "encoder.layer.1.intermediate.dense"


@pytest.fixture(scope="module")
def short() -> Golden:
    """Return a golden with seven tokens; its layers have 32 inputs and more."""
    return golden_of("short", load_golden("tiny").checkpoint, {"short": Batch(np.array([[2, 3, 5, 7, 11, 13, 17]]))})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["parameters-other", "adapter"])
def test_weights_that_seven_tokens_do_not_determine_are_named_on_a_further_batch(name: str, dtype: str, short: Golden) -> None:
    (found,) = check(Candidate([MISTAKES[name].at(1)]), short, dtype=dtype).findings
    assert (found.name, found.steps) == (name, (LAYER,))
    assert name != "adapter" or found.evidence.endswith("estimated: rank 2")
    assert found.anatomy == (
        "the name is found on a further batch, of 3 × 16 tokens: this one has fewer than the layer has inputs",
    )


def test_of_several_batches_each_that_has_too_few_tokens_gets_the_name(short: Golden) -> None:
    (batch,) = short.batches.values()
    other = Batch(batch.input_ids[:, :5])
    golden = golden_of("two", short.checkpoint, {"seven": batch, "five": other})
    result = check(Candidate([MISTAKES["parameters-other"].at(1)]), golden)
    failed = [v for v in result.verdicts if v.outcome == "fail"]
    assert [(v.batch, v.activation, v.local and [f.name for f in v.local.named]) for v in failed] == [
        ("seven", LAYER, ["parameters-other"]),
        ("five", LAYER, ["parameters-other"]),
    ]


def _changed(change: Callable[[Tensor], Tensor], tokens: int | None = None) -> Candidate:
    """Return a candidate with a changed product in layer 1, which rejects batches of another number of tokens."""

    def inner(x: Tensor, right: Callable[[], Tensor]) -> Tensor:
        if tokens not in (None, x.shape[0] * x.shape[1]):
            raise ValueError(f"compiled for {tokens} tokens")
        return change(right())

    return Candidate([changed("inner", inner, layers=(1,))])


def test_a_result_that_is_no_product_of_the_inputs_has_no_name_on_a_further_batch(short: Golden) -> None:
    (found,) = check(_changed(lambda y: y + 0.1 * y.abs().roll(1, -1)), short).findings
    assert (found.name, found.steps) == (None, (LAYER,))


def test_a_candidate_that_rejects_a_further_batch_is_judged_without_it(short: Golden) -> None:
    (found,) = check(_changed(lambda y: y + 0.1 * y.roll(1, -1), tokens=7), short).findings
    assert (found.name, found.steps) == (None, (LAYER,))
    (found,) = check(_changed(lambda y: y + 0.1 * y.roll(1, -1)), short).findings
    assert found.name == "parameters-other"


def test_a_batch_that_determines_the_weights_needs_no_further_one() -> None:
    (found,) = check(Candidate([MISTAKES["parameters-other"].at(1)]), "tiny").findings
    assert (found.name, found.anatomy) == ("parameters-other", ())
