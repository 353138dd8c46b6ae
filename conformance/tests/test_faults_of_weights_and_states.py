"""Names of shifted slots, earlier residuals, packed tokens and changed weights; correct variants of the same code have none."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import check, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.equations import Change, Formula
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.mistakes.weights import bytes_of
from conformance.faults.fitted import FITTED
from conformance.faults.fitted.fitted_fault import FitData
from conformance.oracle import Network
from conformance.report.finding_sentences import findings_of
from conformance.tests.planted_mistakes import MadeOf

pytestmark = pytest.mark.usefixtures("one_thread")

# Weights are held in the format of the candidate.
RANK_4 = (
    "right(weight=(lambda g, w: w + torch.randn(4, H, generator=g).T @ torch.randn(4, H, generator=g) * w.std() / 20)"
    "(torch.Generator().manual_seed(0), weight.float()).to(weight.dtype))"
)
DRAWN = "normal(weight.shape, 0, weight) * a.initializer_range"
PADDING_ZEROED = "right(weight=weight * (arange(len(weight)) > 0)[:, None])"
ADAPTER = tuple(changed(step, RANK_4) for step in ("query", "value"))


def _smooth(right: Callable[..., Tensor], weight: Tensor) -> Tensor:
    """Multiply the columns of the weight by smoothing factors."""
    return right(weight=weight * (weight.abs().amax(0) / weight.abs().amax()).sqrt())


def _unsigned(right: Callable[..., Tensor], weight: Tensor) -> Tensor:
    """Do not subtract the zero point of the weight's rows."""
    return right(weight=bytes_of(weight.float(), 1, zero_point=False).to(weight.dtype))


BROKEN = (
    ("residual-of-layer-before", "tiny", [MISTAKES["residual-of-layer-before"].at()]),
    ("tokens-packed-left", "tiny", [changed("last", "packed_left(right(), mask)")]),
    ("zero-point-missing-inputs", "wide", [MISTAKES["zero-point-missing-inputs"].at(0)]),
    ("zero-point-missing", "wide", [changed("inner", _unsigned)]),
    ("inputs-zeroed", "tiny", [changed("dense", "right(x=F.pad(x[..., d:], (d, 0)))", layers=(-1,))]),
    ("outputs-zeroed", "tiny", [changed("logits", PADDING_ZEROED)]),
    ("inputs-scaled", "wide", [changed("inner", _smooth)]),
    ("adapter", "tiny", ADAPTER),
    ("decoder-untied", "wide", [changed("logits", f"right(weight={DRAWN})")]),
    ("parameters-initial", "wide", [MISTAKES["parameters-initial"].at()]),
    ("parameters-initial", "tiny", [MISTAKES["parameters-initial"].at()]),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "golden", "changes"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_a_mistake_has_its_name(name: str, golden: str, changes: Sequence[Change], dtype: str) -> None:
    found = findings_of(check(Candidate(changes), golden, dtype=dtype))
    assert {one.name for one in found} == {name}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["decoder-untied", "logits-capped"])
def test_a_mistake_at_the_decoder_has_its_name_where_its_results_are_larger_or_it_is_within_the_limits(
    name: str, dtype: str
) -> None:
    """Prove it for weights that give larger results, and in bfloat16 for a cap whose RMS and largest error are within limits."""
    found = findings_of(check(Candidate([MISTAKES[name].at(0)]), "deep", dtype=dtype))
    assert [one.name for one in found] == [name]


def test_a_context_of_probabilities_that_are_all_zero_fails_without_a_name() -> None:
    """The order in which the values were read is then not determined."""
    zeroed = "encoder.layer.1.attention.self.probs"
    result = check(MadeOf(lambda found: {**found, zeroed: torch.zeros_like(found[zeroed])}), "tiny")
    assert result.outcome == "fail", result
    assert {"encoder.layer.1.attention.self.probs", "encoder.layer.1.attention.self.context"} <= {
        v.activation for v in result.origins
    }


def test_attention_over_all_rows_has_its_name_where_its_probabilities_round_alike() -> None:
    """Of 100 nearly equal probabilities the rounding errors, which the candidate does not expose, add up in the context."""
    name = "attention-over-rows-unmasked"
    found = findings_of(check(Candidate([MISTAKES[name].at(1)]), "minilm", dtype="bfloat16"))
    assert [one.name for one in found] == [name]


def test_an_adapter_that_is_rounded_into_the_weight_has_its_name_where_inputs_do_not_determine_the_weight() -> None:
    """Each of 1536 outputs has 384 weights and 65 judged rows; the errors of rounding the weights are shared by the rows."""
    found = findings_of(check(Candidate([MISTAKES["adapter"].at(layer) for layer in (3, 4)]), "minilm", dtype="bfloat16"))
    assert {one.name for one in found} == {"adapter"}


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("adapter", "adapter", {"adapter"}),
        (None, "adapter", {"adapter"}),
        ("adapter", "parameters-other", {"adapter", "parameters-other"}),
    ],
)
def test_an_adapter_that_inputs_of_few_directions_do_not_show_has_its_name_beside_one_in_another_layer(
    first: str | None, second: str, names: set[str]
) -> None:
    """The inputs of layer 6 lie near a few directions, so that a change of full rank would look the same there."""
    plants = [MISTAKES[name].at(layer) for name, layer in ((first, 5), (second, 6)) if name]
    found = findings_of(check(Candidate(plants), "deep", dtype="bfloat16"))
    assert {one.name for one in found} == names


# A multiple of one vector that depends on the squares of the inputs, and the bias by a number that differs from row to row.
PLUS_SQUARES = "right() + x.square().sum(-1, keepdim=True) * torch.linspace(-1, 1, H)"
BIAS_BY_ROW = "right() + arange(len(x))[:, None] * bias"


@pytest.mark.parametrize("formula", [PLUS_SQUARES, BIAS_BY_ROW])
def test_a_change_of_rank_one_that_is_no_product_of_inputs_is_no_adapter_where_rows_are_fewer_than_inputs(formula: str) -> None:
    """The inputs of 4 rows explain every residual by a weight."""
    found = findings_of(check(Candidate([changed("pooler", formula)]), "tiny"))
    assert [one.name for one in found] == [None]


ZEROS = (
    ("2 * relu(right())", False),
    ("2 * right() * (arange(H) % 2)", False),
    ("2 * right() * (arange(x.shape[1]) % 2)[:, None]", False),
    ("2 * right() * (torch.rand(x.shape, generator=torch.Generator().manual_seed(i)) < 0.5)", True),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("formula", "is_random"), ZEROS)
def test_zeros_are_dropout_only_if_they_are_random(formula: str, is_random: bool, dtype: str) -> None:  # noqa: FBT001
    """In each case half of the results are zero and the others are doubled."""
    found = findings_of(check(Candidate([changed("query", formula)]), "tiny", dtype=dtype))
    assert ("dropout-active" in {one.name for one in found}) == is_random


@pytest.mark.parametrize("name", ["pooler-mean", "pooler-mean-with-padding", "layers-reversed"])
def test_a_mistake_has_its_own_name_and_not_that_of_a_similar_one(name: str) -> None:
    """Prove it for a mean that is rounded, and for a step written by hand that reads the weights of the same other layer."""
    found = findings_of(check(Candidate([MISTAKES[name].at(0)]), "deep", dtype="bfloat16"))
    assert [one.name for one in found] == [name]


def test_the_rank_of_an_adapter_is_reported() -> None:
    (found,) = findings_of(check(Candidate(ADAPTER), "tiny"))
    assert "a matrix of rank 4" in found.sentence


def _in_place(sublayer: Tensor, skip: Tensor, right: Callable[..., Tensor]) -> Tensor:
    """Add the residual in a buffer that is updated."""
    return right(x=torch.empty_like(skip).copy_(skip).add_(sublayer))


def _packed_and_restored(hidden: Tensor) -> Tensor:
    """Remove the first token of every row and put it back at its own position."""
    restored = torch.zeros_like(hidden)
    restored[:, 1:], restored[:, 0] = hidden[:, 1:], hidden[:, 0]
    return restored


FACTORS = "2.0 ** (arange(H) % 3).to(x.dtype)"
CORRECT: dict[str, tuple[str, Formula]] = {
    "values in a ring buffer": ("context", "right(dropped=dropped.roll(1, -1), value=value.roll(1, 1))"),
    "residual added in place": ("output", _in_place),
    "smoothing of both operands": ("inner", f"(lambda f: right(x=x / f, weight=weight * f))({FACTORS})"),
    "adapter of zeros": ("query", "right() + x @ x.new_ones(2, H).T @ x.new_zeros(H, 2).T"),
    "tokens put back": ("last", _packed_and_restored),
    "decoder with a copy": ("logits", "right(weight=weight.clone())"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", CORRECT)
def test_a_correct_variant_conforms(variant: str, dtype: str) -> None:
    step, formula = CORRECT[variant]
    result = check(Candidate([changed(step, formula)]), "tiny", dtype=dtype)
    assert result.outcome == "pass", [(v.activation, v.local and v.local.error) for v in result.origins]


def test_a_token_whose_row_is_in_the_table_twice_is_not_reported_as_another_one() -> None:
    tiny, table = load_golden("tiny"), "bert.embeddings.word_embeddings.weight"
    words, ids = np.array(tiny.checkpoint.weights[table]), tiny.batches["padded"].input_ids
    words[min(set(range(len(words))) - set(ids.ravel()))] = words[ids[0, 0]]
    network = Network(tiny.checkpoint.architecture, {**tiny.checkpoint.weights, table: words}, tiny.batches["padded"])
    step = network.step("embeddings.word_embeddings")
    actual, other = np.array(step.value), int(ids[0, 1])
    actual[ids == other] = words[other - 1]
    judged = np.broadcast_to(network.batch.mask[:, :, None], actual.shape)
    (fault,) = (fault for fault in FITTED if fault.name == "words-other")
    fit = fault.fit(step, FitData(actual, judged, np.full(actual.shape, 1e-9), 7.0))
    assert fit is not None
    assert fit.free == int((network.batch.mask & (ids == other)).sum())
