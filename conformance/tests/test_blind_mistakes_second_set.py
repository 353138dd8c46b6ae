"""The second blind set: it is unchanged since it was written, and mistakes that were missed at first are found, placed and
named."""

import pytest

from conformance import check
from conformance.benchmarks.detection.blind.port import Mistake, probs
from conformance.benchmarks.detection.blind.score import Outcome, outcomes
from conformance.benchmarks.detection.blind.second import MISTAKES
from conformance.benchmarks.detection.blind.second.named import REPEATED, RIGHT

pytestmark = pytest.mark.usefixtures("one_thread")

MENDED = (
    "fused rows by head",
    "four-bit blocks",
    "dynamic int8",
    "ids one too high",
    "sinusoids for the table",
    "GELU twice",
    "last chunk lost",
    "feed-forward beside attention",
    "training mode",
    "kept share at inference",
    "heads along the wrong side",
    "rotary positions besides",
    "linear biases besides",
    "mask not inverted",
    "mask tiled over heads",
    "softmax over heads",
    "window of three",
    "one head masked",
    "value by key's weights",
    "pooler's activation is GELU",
    "decoder scaled as T5's",
    "norm before activation",
)


def test_there_are_sixty_seven_mistakes_and_each_has_its_accepted_names() -> None:
    assert len(MISTAKES) == 67
    assert list(RIGHT) == list(MISTAKES)
    assert MISTAKES.keys() >= REPEATED
    assert all(mistake.hoped for mistake in MISTAKES.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mistakes_that_once_had_no_name_or_a_wrong_one_are_placed_and_named(dtype: str) -> None:
    for found in outcomes("tiny", dtype, [MISTAKES[name] for name in MENDED], RIGHT):
        assert found == Outcome("tiny", dtype, found.mistake, True, True, False, "right")


def test_half_of_an_exchange_is_not_named_as_an_exchange() -> None:
    (finding,) = check(MISTAKES["value by key's weights"]).findings
    assert (finding.name, finding.others) == ("value-from-key", ())


def test_a_mistake_without_effect_in_a_format_is_not_counted_there() -> None:
    assert not list(outcomes("tiny", "bfloat16", [MISTAKES["products of ten bits"]], RIGHT))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_probability_on_masked_keys_is_a_finding_though_nothing_explains_it(dtype: str) -> None:
    leak = Mistake(
        "leak", "", "", "first", ("attention.self.probs",), "",
        {"probs": lambda port, layer, x, mask: probs(port, layer, x, mask) + (mask == 0)[:, None, None].to(x.dtype) * 2.0**-30},
    )  # fmt: skip
    result = check(leak, dtype=dtype)
    assert [v.activation for v in result.origins] == ["encoder.layer.0.attention.self.probs"]
    assert "masked keys get probability" in result.origins[0].reason
    assert [(f.name, f.activations) for f in result.findings] == [(None, ("encoder.layer.0.attention.self.probs",))]
