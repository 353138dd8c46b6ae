"""What the judge states of a fitted fault, its name, its numbers and the places, is what the array shows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conformance import Architecture, Checkpoint, Golden, check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.equations import LAYER_STEPS, Formula
from conformance.faults.fault import with_parameters
from conformance.faults.fitted import FITTED, Fit, FitData
from conformance.goldens.generated_weights import weights
from conformance.judge.judged_elements import judged_elements
from conformance.model.batch import Batch
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array, Mask
from conformance.oracle import Network, Step
from conformance.report.finding_sentences import findings_of
from conformance.results.result import NamedFinding
from conformance.tests.planted_mistakes import MadeOf

pytestmark = pytest.mark.usefixtures("one_thread")

Function = Callable[[Tensor], Tensor]


def _with(golden: Any = "tiny", **steps: Formula) -> tuple[NamedFinding, ...]:
    """Return the findings of a candidate with other steps in the first layer and outside of the layers."""
    return findings_of(check(_first(**steps), golden))


def _first(**steps: Formula) -> Candidate:
    return Candidate([changed(step, formula, layers=(0,) if step in LAYER_STEPS else None) for step, formula in steps.items()])


def _biased(bias: Tensor) -> tuple[NamedFinding, ...]:
    """Return the findings of a candidate that adds a bias to the scores."""
    return _with(scores=lambda right: right() + bias)


HEADS, POSITIONS = torch.arange(4.0)[:, None, None], torch.arange(16.0)
DISTANCES = POSITIONS[:, None] - POSITIONS


@pytest.mark.parametrize("bias", [torch.tensor(0.5), 0.3 * HEADS], ids=["one for all", "one for each head"])
def test_an_offset_of_the_scores_that_is_equal_at_all_distances_is_no_bias_by_distance(bias: Tensor) -> None:
    assert [found.name for found in _biased(bias)] == [None]


@pytest.mark.parametrize(
    "bias", [torch.sin(DISTANCES), 0.3 * HEADS + 1e-4 * torch.sin(DISTANCES), (HEADS == 2) * torch.sin(DISTANCES)],
    ids=["one for all heads", "besides one for each head", "in one head"],
)  # fmt: skip
def test_a_bias_by_distance_has_its_name(bias: Tensor) -> None:
    assert [found.name for found in _biased(bias)] == ["scores-bias-by-distance"]


def _normalised(of: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[NamedFinding, ...]:
    """Return the findings of a candidate whose norms of attention use another mean and variance."""

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean, variance = of(x)
        return (x - mean) * variance.rsqrt() * weight + bias

    return _with(attended=norm)


def test_a_wrong_mean_is_not_reported_as_a_wrong_deviation() -> None:
    (found,) = _normalised(lambda x: (x[..., :16].mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)))
    assert found.name == "norm-statistics-other"
    assert "error of the mean 0." in found.evidence


def test_a_wrong_deviation_is_reported_as_such() -> None:
    (found,) = _normalised(lambda x: (x.mean(-1, keepdim=True), (x - x.mean(-1, keepdim=True)).abs().mean(-1, keepdim=True) ** 2))
    assert found.name == "norm-statistics-other"
    assert "error of the deviation 0." in found.evidence


def _step(name: str) -> tuple[Step, Mask, Network]:
    """Return a step of the first layer of the golden `tiny`, its judged elements, and the network."""
    tiny = load_golden("tiny")
    network = Network(tiny.checkpoint.architecture, tiny.checkpoint.weights, tiny.batches["padded"])
    activation = network.table[f"encoder.layer.0.{name}"]
    values = dict(network.walk())
    step = network.step(activation.name, *(values[parent] for parent in activation.parents))
    return step, judged_elements(activation, network.batch, step.value.shape), network


def _fitted(fault: str, name: str, allowed: Array, change: Callable[[Step], Array]) -> tuple[Fit, Mask]:
    """Return the fit of a fault to the changed result of a step of the first layer, and the judged elements.

    Args:
        fault: name of the fault.
        name: activation in the layer.
        allowed: the allowed errors.
        change: function from the correct step to the changed result.
    """
    step, judged, network = _step(name)
    of_name = [one for one in FITTED if one.name == fault and one.is_possible_at(step.site.activation.kind, name)]
    fit = of_name[0].fit(step, FitData(change(step), judged, np.broadcast_to(allowed, step.value.shape), 6.0, network))
    assert fit is not None
    return fit, judged


def test_the_error_of_a_norms_mean_or_deviation_is_a_standard_deviation_and_fits_two_numbers_for_each_judged_token() -> None:
    """With errors of γ e the normalized features have errors of e, and mean and deviation over H of them errors of e / √H."""
    name, error = "attention.output.LayerNorm", 1e-6
    gamma = _step(name)[0].site.parameters["weight"]
    fit, judged = _fitted("norm-statistics-other", name, error * np.abs(gamma), lambda step: 1.01 * step.value)
    assert fit.deviation == pytest.approx(error / gamma.size**0.5, rel=1e-3)
    assert fit.free == 2 * judged.any(-1).sum()


def test_a_factor_is_fitted_for_each_judged_row_of_probabilities() -> None:
    fit, judged = _fitted("softmax-unnormalised", "attention.self.probs", np.full(1, 1e-6), lambda step: 1.01 * step.value)
    assert fit.free == judged.any(-1).sum()


def _noise(weight: Tensor) -> Tensor:
    return weight + 0.3 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))


def test_an_assignment_that_leaves_most_of_the_error_is_not_reported() -> None:
    """The decoder's inputs, from a norm, nearly determine one another, so that its estimated weight has large errors."""
    (found,) = _with(logits=lambda right, weight: right(weight=_noise(weight)))
    assert found.name == "parameters-other"
    assert "word_embeddings.weight, all 96 rows" in found.evidence
    assert "as by" not in found.evidence


def _block(weight: Array, bias: Array) -> None:
    weight[0:8, 0:20] *= 0.5


def _added(weight: Array, bias: Array) -> None:
    weight[4:12] += 0.0123


def _scaled(weight: Array, bias: Array) -> None:
    weight *= -1.7
    bias *= -1.7


def _turned(weight: Array, bias: Array) -> None:
    weight[:] = np.roll(weight, 1, 1)


def _part(gamma: Array, beta: Array) -> None:
    gamma[3:9] *= 1.5


DENSE, NORM = "attention.output.dense", "attention.output.LayerNorm"
ASSIGNED = {
    "as by weight[0:8, 0:20] *=": (DENSE, 0.5, _block),
    "as by weight[4:12] +=": (DENSE, 0.0123, _added),
    "and likewise bert.encoder.layer.0.attention.output.dense.bias, as by weight[:] *=": (DENSE, -1.7, _scaled),
    "as by weight with other columns: expected 0, estimated 31; expected 1 to 31, estimated 0 to": (DENSE, 30.0, _turned),
    "as by weight[3:9] *=": (NORM, 1.5, _part),
}


@pytest.mark.parametrize("unit", [2.0**-24, 2.0**-9], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("text", ASSIGNED)
def test_an_assignment_that_explains_the_result_is_reported(text: str, unit: float) -> None:
    """Prove it for parameters and results that are rounded to a format of this unit roundoff."""

    name, value, assign = ASSIGNED[text]

    def change(step: Step) -> Array:
        weight, bias = (np.array(step.site.parameters[role]) for role in ("weight", "bias"))
        assign(weight, bias)
        made = with_parameters(step, weight=_rounded(weight, unit), bias=_rounded(bias, unit))
        return _rounded(made.value, unit)

    right = _step(name)[0].value
    fit, *_ = _fitted("parameters-other", name, unit * np.abs(right) / 3.0**0.5, change)
    assert fit.parameter.endswith(text)
    assert abs(fit.value - value) <= 6.0 * fit.deviation + np.spacing(value)


def _rounded(x: Array, unit: float) -> Array:
    """Return x rounded to a binary format of this unit roundoff."""
    _, exponents = np.frexp(x)
    ulp = np.ldexp(unit, exponents)
    return as_array(np.rint(x / ulp) * ulp)


IDS = np.random.default_rng(0).integers(1, 40, (4, 9))
SMALL = Architecture(40, 32, 1, 4, 48, 32, heads=("masked_lm", "next_sentence"))


def _golden(ids: Any = IDS, architecture: Architecture = SMALL, **changed: tuple[slice | int, Any]) -> Golden:
    """Return a golden of one layer, with rows of parameters that are assigned to.

    Args:
        ids: the token ids.
        architecture: the architecture.
        changed: the rows and what they are set to, by the end of the parameters' names, with `_` for `.`.
    """
    made = {name: np.array(value) for name, value in weights(7, architecture).items()}
    for end, (rows, value) in changed.items():
        for name in made:
            if name.replace(".", "_").endswith(end):
                made[name][rows] = made[name][value] if isinstance(value, slice) else value
    return golden_of("own", Checkpoint(architecture, made), {"own": Batch.of({"input_ids": ids})})


WITHOUT_THIRD_HEAD = "right() * (arange(32) // 8 != 2)"


WITH_FIRST_FEATURE = "cat([right()[..., :1] + 50 * hidden[..., :1], right()[..., 1:]], -1)"


@pytest.mark.filterwarnings("error")
def test_an_output_that_is_zero_in_the_checkpoint_is_judged_without_a_warning() -> None:
    """Its sigma is 0, and the ratio of its size to the expected one is not finite."""
    zero_output = _golden(self_query_weight=(0, 0.0), self_query_bias=(0, 0.0))
    result = check(_first(query=WITH_FIRST_FEATURE), zero_output)
    assert (result.outcome, [v.activation for v in result.origins]) == ("fail", ["encoder.layer.0.attention.self.query"])


def test_a_head_that_is_zero_in_the_checkpoint_is_not_reported_as_zeroed() -> None:
    zero_head = _golden(self_value_weight=(slice(8), 0.0), self_value_bias=(slice(8), 0.0))
    (found,) = _with(zero_head, context=WITHOUT_THIRD_HEAD)
    assert (found.name, found.evidence.split(", ")[-1]) == ("head-zero", "estimated: head 2")


def test_features_with_equal_rows_are_not_reported_as_reordered() -> None:
    equal = _golden(intermediate_dense_weight=(slice(20, 26), slice(3, 9)), intermediate_dense_bias=(slice(20, 26), slice(3, 9)))
    order = [*range(30), 31, 30, *range(32, 48)]
    (found,) = _with(equal, inner=lambda right: right()[..., order])
    assert found.name == "features-reordered"
    assert found.evidence.endswith("the order of the features: expected 30 to 31, estimated 31 to 30")


def _with_added(rows: Callable[[Tensor], Tensor]) -> Formula:
    """Return the look-up that adds the embeddings of other ids."""
    return lambda right, ids: right() + right(ids=rows(ids))


def test_a_row_that_is_added_to_a_single_id_is_not_added_to_each_token() -> None:
    """Row 0 of the table is zero, so that it could be the one added to all others."""
    golden = _golden(word_embeddings_weight=(0, 0.0))
    first = int(golden.batches["own"].input_ids[0, 0])
    (found,) = _with(golden, word=_with_added(lambda ids: torch.where(ids == first, 7, 0)))
    assert found.name == "parameters-other"


@pytest.mark.parametrize("has_zero_row", [False, True])
def test_a_row_that_is_added_to_several_ids_is_named(has_zero_row: bool) -> None:
    golden = _golden(word_embeddings_weight=(0, 0.0)) if has_zero_row else _golden()
    (found,) = _with(golden, word=_with_added(lambda ids: torch.where(ids < 20, 20, 0)))
    assert found.name == "words-added"


@pytest.mark.parametrize(("golden", "function"), [("odd-width", F.relu), ("tiny", F.gelu)], ids=["ReLU", "GELU"])
def test_a_result_in_unsigned_bytes_is_not_said_to_lose_what_the_function_does_not_have(golden: str, function: Function) -> None:
    def rounded(x: Tensor) -> Tensor:
        unit = function(x).max() / 255
        return (function(x) / unit).round().clamp(min=0) * unit

    (found,) = _with(golden, activated=rounded, transform_activated=lambda x: function(x))
    assert found.name == "result-unsigned-bytes"
    assert found.sentence.endswith("from zero up: none is negative")


def _classified(ids: Any, change: Function) -> list[str | None]:
    """Return the names of what is found if a single logit per row is changed."""
    golden = _golden(ids, Architecture(40, 32, 1, 4, 48, 32, heads=("classification",), num_labels=1))
    candidate = MadeOf(lambda found: {**found, "classifier": change(found["classifier"])})
    return [found.name for found in findings_of(check(candidate, golden))]


@pytest.mark.parametrize("change", [torch.sigmoid, lambda y: 3.0 * y, lambda y: y + 0.3], ids=["sigmoid", "factor", "bias"])
def test_no_name_with_a_number_is_given_to_a_single_logit_which_all_of_them_explain(change: Function) -> None:
    """All rows have the same text, so that they show no more than one does."""
    assert _classified(np.repeat(IDS[:1], 4, 0), change) == [None]


def test_a_factor_of_different_logits_has_its_name() -> None:
    assert _classified(IDS, lambda y: 3.0 * y) == ["result-scaled"]


def test_two_names_with_a_number_each_are_not_given_to_two_logits() -> None:
    """The batch has one token."""

    wrong = "right() + 0.1 * torch.cos(17 * right()) * right().abs().mean()"
    assert [found.name for found in _with(_golden(IDS[:1, :1]), pair=wrong)] == [None]


def test_an_offset_is_not_named_where_all_inputs_are_equal() -> None:
    """A norm of one feature makes all tokens equal."""

    wrong = "right() + 0.1 * torch.cos(17 * right())"
    golden = _golden(IDS[:1, :3], Architecture(40, 1, 1, 1, 1, 32, heads=("masked_lm", "next_sentence")))
    assert [found.name for found in _with(golden, query=wrong)] == [None]
