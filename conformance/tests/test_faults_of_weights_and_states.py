"""Names of earlier residuals, packed tokens and changed weights; correct variants of the same code have none."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conformance import check, load_golden
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.blind import fourth, ninth, second, sixth
from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, context, norm, prefix
from conformance.benchmarks.detection.planted import PLANTS
from conformance.faults.fitted import FITTED
from conformance.faults.fitted.fitted_fault import FitData
from conformance.oracle import Network
from conformance.report.finding_sentences import findings_of
from conformance.tests.planted_mistakes import MadeOf

pytestmark = pytest.mark.usefixtures("one_thread")

BROKEN = (
    ("residual-of-layer-before", "tiny", sixth.MISTAKES["residual's buffer not updated"]),
    ("tokens-packed-left", "tiny", sixth.MISTAKES["rows padded on the right again"]),
    ("zero-point-missing-inputs", "wide", sixth.MISTAKES["zero point forgotten"]),
    ("zero-point-missing", "wide", fourth.MISTAKES["zero point left out"]),
    ("inputs-zeroed", "tiny", ninth.MISTAKES["first head pruned"]),
    ("outputs-zeroed", "tiny", ninth.MISTAKES["row of the padding zeroed"]),
    ("inputs-scaled", "wide", sixth.MISTAKES["smoothing without its counterpart"]),
    ("adapter", "tiny", sixth.MISTAKES["adapter merged a second time"]),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "golden", "mistake"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_a_mistake_has_its_name(name: str, golden: str, mistake: Mistake, dtype: str) -> None:
    found = findings_of(check(mistake, golden, dtype=dtype))
    assert {one.name for one in found} == {name}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("plant", "name"), [("decoder-untied", "parameters-other"), ("logits-capped", "logits-capped")])
def test_a_mistake_at_the_decoder_has_its_name_where_its_results_are_larger_or_it_is_within_the_limits(
    plant: str, name: str, dtype: str
) -> None:
    """Prove it for weights that give larger results, and in bfloat16 for a cap whose RMS and largest error are within limits."""
    found = findings_of(check(Candidate([PLANTS[plant].at(0)]), "deep", dtype=dtype))
    assert [one.name for one in found] == [name]


UNNAMED: dict[str, tuple[str, Mistake]] = {
    "values of other tokens": ("attention.self.context", sixth.MISTAKES["values one slot late"]),
    "initial weight": ("pooler.dense", second.MISTAKES["pooler is fresh"]),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", UNNAMED)
def test_a_mistake_without_a_name_fails_at_its_place_and_gets_no_other_name(case: str, dtype: str) -> None:
    place, mistake = UNNAMED[case]
    found = findings_of(check(mistake, "tiny", dtype=dtype))
    assert {one.name for one in found} == {None}
    assert all(step.endswith(place) for one in found for step in one.steps)


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
    found = findings_of(check(Candidate([PLANTS[name].at(1)]), "minilm", dtype="bfloat16"))
    assert [one.name for one in found] == [name]


def test_an_adapter_that_is_rounded_into_the_weight_has_its_name_where_inputs_do_not_determine_the_weight() -> None:
    """Each of 1536 outputs has 384 weights and 65 judged rows; the errors of rounding the weights are shared by the rows."""
    found = findings_of(check(Candidate([PLANTS["adapter"].at(layer) for layer in (3, 4)]), "minilm", dtype="bfloat16"))
    assert {one.name for one in found} == {"adapter"}


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("adapter", "adapter", {"adapter"}),
        (None, "adapter", {"parameters-other"}),
        ("adapter", "parameters-other", {"adapter", "parameters-other"}),
    ],
)
def test_an_adapter_that_inputs_of_few_directions_do_not_show_has_its_name_beside_one_in_another_layer(
    first: str | None, second: str, names: set[str]
) -> None:
    """The inputs of layer 6 lie near a few directions, so that a change of full rank would look the same there."""
    plants = [PLANTS[name].at(layer) for name, layer in ((first, 5), (second, 6)) if name]
    found = findings_of(check(Candidate(plants), "deep", dtype="bfloat16"))
    assert {one.name for one in found} == names


def _plus_squares(port: Port, _: None, hidden: Tensor) -> Tensor:
    """Add a multiple of one vector that depends on the squares of the inputs."""
    result = OPERATIONS["pooler"](port, None, hidden)
    return result + hidden[:, 0].square().sum(-1, keepdim=True) * torch.linspace(-1.0, 1.0, result.shape[-1])


def _bias_by_row(port: Port, _: None, hidden: Tensor) -> Tensor:
    """Multiply the bias by a number that differs from row to row."""
    bias = port.weights["bert.pooler.dense.bias"]
    return OPERATIONS["pooler"](port, None, hidden) + torch.arange(len(hidden))[:, None] * bias


@pytest.mark.parametrize("operation", [_plus_squares, _bias_by_row])
def test_a_change_of_rank_one_that_is_no_product_of_inputs_is_no_adapter_where_rows_are_fewer_than_inputs(
    operation: Operation,
) -> None:
    """The inputs of 4 rows explain every residual by a weight."""
    found = findings_of(check(Mistake("", "", "", "all", (), "", {"pooler": operation}), "tiny"))
    assert [one.name for one in found] == [None]


def _negative_zeroed(port: Port, layer: int, x: Tensor) -> Tensor:
    return 2.0 * OPERATIONS["query"](port, layer, x).relu()


def _half_of_the_outputs_zeroed(port: Port, layer: int, x: Tensor) -> Tensor:
    result = 2.0 * OPERATIONS["query"](port, layer, x)
    return result * (torch.arange(result.shape[-1]) % 2)


def _half_of_the_tokens_zeroed(port: Port, layer: int, x: Tensor) -> Tensor:
    result = 2.0 * OPERATIONS["query"](port, layer, x)
    return result * (torch.arange(result.shape[1]) % 2)[:, None]


def _dropped(port: Port, layer: int, x: Tensor) -> Tensor:
    result = OPERATIONS["query"](port, layer, x)
    return result * 2.0 * (torch.rand(result.shape, generator=torch.Generator().manual_seed(layer)) < 0.5)


ZEROS = ((_negative_zeroed, False), (_half_of_the_outputs_zeroed, False), (_half_of_the_tokens_zeroed, False), (_dropped, True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("operation", "is_random"), ZEROS)
def test_zeros_are_dropout_only_if_they_are_random(operation: Operation, is_random: bool, dtype: str) -> None:  # noqa: FBT001
    """In each case half of the results are zero and the others are doubled."""
    found = findings_of(check(Mistake("", "", "", "all", (), "", {"query": operation}), "tiny", dtype=dtype))
    assert ("dropout-active" in {one.name for one in found}) == is_random


@pytest.mark.parametrize("name", ["pooler-mean", "pooler-mean-with-padding", "layers-reversed"])
def test_a_mistake_has_its_own_name_and_not_that_of_a_similar_one(name: str) -> None:
    """Prove it for a mean that is rounded, and for a step written by hand that reads the weights of the same other layer."""
    found = findings_of(check(Candidate([PLANTS[name].at(0)]), "deep", dtype="bfloat16"))
    assert [one.name for one in found] == [name]


def test_the_rank_of_an_adapter_is_reported() -> None:
    (found,) = findings_of(check(sixth.MISTAKES["adapter merged a second time"], "tiny"))
    assert "a matrix of rank 4" in found.sentence


def _ring(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    """Multiply probabilities and values that are both turned by one slot, as in a ring buffer."""
    return context(port, layer, weights.roll(1, -1), value.roll(1, 1))


def _in_place(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
    """Add the residual in a buffer that is updated."""
    buffer = torch.empty_like(skip).copy_(skip)
    return norm(port, layer, f"{prefix(layer)}.output.LayerNorm", buffer.add_(x))


def _smoothed(port: Port, layer: int, x: Tensor) -> Tensor:
    """Multiply the columns of the weight by powers of two, and divide the inputs by them."""
    name = f"{prefix(layer)}.intermediate.dense"
    factors = 2.0 ** (torch.arange(x.shape[-1]) % 3).to(x.dtype)
    return F.linear(x / factors, port.weights[f"{name}.weight"] * factors, port.weights[f"{name}.bias"])


def _with_new_adapter(port: Port, layer: int, x: Tensor) -> Tensor:
    """Add an adapter whose second matrix is still zero."""
    down, up = x.new_ones(2, x.shape[-1]), x.new_zeros(x.shape[-1], 2)
    return OPERATIONS["query"](port, layer, x) + x @ down.T @ up.T


def _packed_and_restored(port: Port, _: None, hidden: Tensor) -> Tensor:
    """Remove the first token of every row and put it back at its own position."""
    restored = torch.zeros_like(hidden)
    restored[:, 1:], restored[:, 0] = hidden[:, 1:], hidden[:, 0]
    return restored


def _copied(port: Port, _: None, x: Tensor) -> Tensor:
    """Multiply by a copy of the word embeddings."""
    return F.linear(x, port.weights["bert.embeddings.word_embeddings.weight"].clone(), port.weights["cls.predictions.bias"])


CORRECT: dict[str, tuple[str, Operation]] = {
    "values in a ring buffer": ("context", _ring),
    "residual added in place": ("output_norm", _in_place),
    "smoothing of both operands": ("inner", _smoothed),
    "adapter of zeros": ("query", _with_new_adapter),
    "tokens put back": ("last", _packed_and_restored),
    "decoder with a copy": ("decoder", _copied),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", CORRECT)
def test_a_correct_variant_conforms(variant: str, dtype: str) -> None:
    step, operation = CORRECT[variant]
    result = check(Mistake(variant, "", "", "all", (), "", {step: operation}), "tiny", dtype=dtype)
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
