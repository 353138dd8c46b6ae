"""Wrong weights are named, if the batch has too few rows, on a further batch that has more; other mistakes are not."""

import pytest
from torch import Tensor

from conformance import Golden, check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.equations import Formula
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.model.batch import Batch

LAYER = "encoder.layer.1.intermediate.dense"
OTHER = Candidate([MISTAKES["parameters-other"].at(1)])


@pytest.fixture(scope="module")
def short() -> Golden:
    """Return a golden with seven tokens; its layers have 32 inputs and more."""
    return golden_of("short", load_golden("tiny").checkpoint, {"short": Batch.of({"input_ids": [[2, 3, 5, 7, 11, 13, 17]]})})


@pytest.mark.landing({"dtype": "float32", "name": "parameters-other"}, dtype="bfloat16", name="adapter")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["parameters-other", "adapter"])
def test_weights_that_seven_tokens_do_not_determine_are_named_on_a_further_batch(name: str, dtype: str, short: Golden) -> None:
    (found,) = check(Candidate([MISTAKES[name].at(1)]), short, dtype=dtype).findings
    assert (found.name, found.steps) == ("parameters-other", (LAYER,))
    assert found.anatomy == (
        "the name is found on a further batch, of 3 × 16 tokens: this one has fewer than the layer has inputs",
    )


def test_of_several_batches_each_that_has_too_few_tokens_gets_the_name(short: Golden) -> None:
    (batch,) = short.batches.values()
    golden = golden_of("two", short.checkpoint, {"seven": batch, "five": Batch(batch.input_ids[:, :5])})
    failed = [v for v in check(OTHER, golden).verdicts if v.outcome == "fail"]
    assert [(v.batch, v.activation, v.local and [f.name for f in v.local.named]) for v in failed] == [
        ("seven", LAYER, ["parameters-other"]),
        ("five", LAYER, ["parameters-other"]),
    ]


def _for_seven_tokens(x: Tensor, right: object) -> Tensor:
    """Return another product, of seven tokens alone."""
    if x.shape[0] * x.shape[1] != 7:
        raise ValueError("compiled for 7 tokens")
    y = right()  # type: ignore[operator]
    return y + 0.1 * y.roll(1, -1)


@pytest.mark.parametrize(
    ("formula", "name"),
    [
        ("right() + 0.1 * right().roll(1, -1)", "parameters-other"),
        ("right() + 0.1 * right().abs().roll(1, -1)", None),  # no product of the inputs
        (_for_seven_tokens, None),  # A candidate that rejects a further batch is judged without it.
    ],
)
def test_a_product_of_the_inputs_alone_has_a_name_on_a_further_batch(formula: Formula, name: str | None, short: Golden) -> None:
    (found,) = check(Candidate([changed("inner", formula, layers=(1,))]), short).findings
    assert (found.name, found.steps) == (name, (LAYER,))


def test_a_batch_that_determines_the_weights_needs_no_further_one() -> None:
    (found,) = check(OTHER, "tiny").findings
    assert (found.name, found.anatomy) == ("parameters-other", ())
