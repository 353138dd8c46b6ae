"""The eighth blind set: mistakes that had no name, or a wrong one, when they were written are named, and so are their relatives."""

import pytest
import torch
from torch import Tensor

from conformance import check
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.blind.eighth import MISTAKES
from conformance.benchmarks.detection.blind.eighth.named import ADDED, AT_FIRST, RIGHT
from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port
from conformance.benchmarks.detection.blind.score import Outcome, outcomes
from conformance.benchmarks.detection.planted import PLANTS

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = ("attention-along-batch", "attention-over-rows")


def _named(mistake: Mistake, golden: str = "tiny", dtype: str = "float32") -> set[str | None]:
    return {finding.name for finding in check(mistake, golden, dtype=dtype).findings}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mistakes_that_once_had_no_name_or_a_wrong_one_are_placed_and_named(dtype: str) -> None:
    found = list(outcomes("tiny", dtype, [MISTAKES[name] for name in ADDED], RIGHT))
    assert found == [Outcome("tiny", dtype, name, True, True, False, "right") for name in ADDED]


def test_names_that_were_added_were_not_accepted_at_first() -> None:
    assert {name for name, added in ADDED.items() if added in AT_FIRST[name]} == set()


@pytest.mark.parametrize("name", [f"{name}{end}" for name in ROWS for end in ("", "-unmasked")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_to_other_rows_is_named_where_layers_alone_are_exposed(name: str, dtype: str) -> None:
    candidate = Candidate((PLANTS[name].at(1),), exposes=lambda n: n.startswith("embeddings") or n.endswith("output.LayerNorm"))
    (finding,) = check(candidate, "tiny", dtype=dtype).findings
    assert (finding.name, finding.others) == (name, ())
    assert finding.steps == ("encoder.layer.1.attention.self.context",)


def _unprojected(port: Port, layer: int, x: Tensor) -> Tensor:
    return x


def _tanh_again(port: Port, layer: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return OPERATIONS["next_sentence"](port, layer, pooled.tanh(), hidden)


def _gelu_again(port: Port, layer: None, x: Tensor) -> Tensor:
    return OPERATIONS["transform_norm"](port, layer, torch.nn.functional.gelu(x))


RELATIVES: dict[str, tuple[str, str, Operation]] = {
    "values that are not projected": ("projection-missing", "value", _unprojected),
    "tanh in the pooler and in the head": ("activation-again", "next_sentence", _tanh_again),
    "GELU in the transform and in its norm": ("activation-again", "transform_norm", _gelu_again),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("relative", RELATIVES)
def test_relatives_of_the_mistakes_are_named(relative: str, dtype: str) -> None:
    name, step, operation = RELATIVES[relative]
    assert _named(Mistake(relative, "", "", "all", (), "", {step: operation}), dtype=dtype) == {name}


def test_a_change_of_full_rank_seen_through_inputs_of_few_directions_is_no_adapter() -> None:
    assert "adapter" not in _named(MISTAKES["eight bits for each matrix"], dtype="bfloat16")
