"""What the judge states of a fitted fault, its name, its numbers and the places, is what the array shows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import Architecture, Checkpoint, Golden, check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.equations import LAYER_STEPS, Formula
from conformance.faults.fault import with_parameters
from conformance.faults.fitted import FITTED, Fit, FitData
from conformance.goldens.generated_weights import weights
from conformance.judge import explanation_search
from conformance.judge.judged_elements import judged_elements
from conformance.model.batch import Batch
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Network, Step
from conformance.report.finding import Finding
from conformance.tests.planted_mistakes import MadeOf

pytestmark = pytest.mark.usefixtures("one_thread")

Function = Callable[[Tensor], Tensor]


def _first(**steps: Formula) -> Candidate:
    """Return a candidate with other steps in the first layer and outside of the layers."""
    return Candidate([changed(step, formula, layers=(0,) if step in LAYER_STEPS else None) for step, formula in steps.items()])


def _with(golden: Any = "tiny", dtype: str = "float32", **steps: Formula) -> tuple[Finding, ...]:
    return check(_first(**steps), golden, dtype=dtype).findings


# The mean or the deviation of a norm.

NORMALISED = "(x - {mean}) * ({variance}).rsqrt() * weight + bias"
MEAN, DEVIATION = "x.mean(-1, keepdim=True)", "(x - x.mean(-1, keepdim=True)).abs().mean(-1, keepdim=True) ** 2"
VARIANCE = "x.var(-1, keepdim=True, correction=0)"


@pytest.mark.parametrize(
    ("mean", "variance", "said"),
    [("x[..., :16].mean(-1, keepdim=True)", VARIANCE, "error of the mean 0."), (MEAN, DEVIATION, "error of the deviation 0.")],
)
def test_a_wrong_mean_is_not_reported_as_a_wrong_deviation_and_vice_versa(mean: str, variance: str, said: str) -> None:
    (found,) = _with(attended=NORMALISED.format(mean=mean, variance=variance))
    assert found.name == "norm-statistics-other"
    assert said in found.evidence


# Fits to arrays.


def _step(name: str) -> tuple[Step, Mask, Network]:
    """Return a step of the first layer of the golden `tiny`, its judged elements, and the network."""
    tiny = load_golden("tiny")
    network = Network(tiny.checkpoint.architecture, tiny.checkpoint.weights, tiny.batches["padded"])
    activation = network.table[f"encoder.layer.0.{name}"]
    values = dict(network.walk())
    step = network.step(activation.name, *(values[parent] for parent in activation.parents))
    return step, judged_elements(activation, network.batch, step.value.shape), network


def _scaled(step: Step) -> Array:
    return 1.01 * step.value


def _fits(fault: str, name: str, allowed: Array, change: Callable[[Step], Array] = _scaled) -> list[Fit]:
    """Return the fits of a fault, and those with fewer numbers, to the changed result of a step of the first layer."""
    step, judged, network = _step(name)
    data = FitData(change(step), judged, np.broadcast_to(allowed, step.value.shape), 6.0, network)
    kind = step.site.activation.kind
    fits = [one.fit(step, data) for one in FITTED if one.name == fault and one.is_possible_at(kind, name)]
    return [one for fit in fits if fit for one in (*fit.simpler, fit)]


def _fitted(fault: str, name: str, allowed: Array) -> tuple[Fit, Mask]:
    """Return the fit of a fault to the scaled result of a step of the first layer, and the judged elements."""
    (fit,) = _fits(fault, name, allowed)
    return fit, _step(name)[1]


def test_the_error_of_a_norms_mean_or_deviation_is_a_standard_deviation_and_fits_two_numbers_for_each_judged_token() -> None:
    """With errors of γ e the normalized features have errors of e, and mean and deviation over H of them errors of e / √H."""
    name, error = "attention.output.LayerNorm", 1e-6
    gamma = _step(name)[0].site.parameters["weight"]
    fit, judged = _fitted("norm-statistics-other", name, error * np.abs(gamma))
    assert fit.deviation == pytest.approx(error / gamma.size**0.5, rel=1e-3)
    assert fit.free == 2 * judged.any(-1).sum()


def _rounded(x: Array, unit: float) -> Array:
    """Return x rounded to a binary format of this unit roundoff."""
    _, exponents = np.frexp(x)
    ulp = np.ldexp(unit, exponents)
    return as_array(np.rint(x / ulp) * ulp)


DENSE, NORM = "attention.output.dense", "attention.output.LayerNorm"
ROWS, COLUMNS = np.arange(32)[:, None], np.arange(32)
# By what is stated after the step's name: the step, the number, and the parameters that are assigned of the right weight and bias.
ASSIGNED: dict[str, tuple[str, float, Callable[[Array, Array], tuple[Array, Array]]]] = {
    ".weight[0:8, 0:20] *=": (DENSE, 0.5, lambda w, b: (np.where((ROWS < 8) & (COLUMNS < 20), 0.5 * w, w), b)),
    ".weight[4:12] +=": (DENSE, 0.0123, lambda w, b: (np.where((ROWS >= 4) & (ROWS < 12), w + 0.0123, w), b)),
    ".bias[:] *=": (DENSE, -1.7, lambda w, b: (-1.7 * w, -1.7 * b)),
    ".weight with other columns: expected 0, estimated 31; expected 1 to 31, estimated 0 to": (
        DENSE,
        30.0,
        lambda w, b: (np.roll(w, 1, 1), b),
    ),
    ".weight[3:9] *=": (NORM, 1.5, lambda w, b: (np.where((COLUMNS >= 3) & (COLUMNS < 9), 1.5 * w, w), b)),
}


@pytest.mark.parametrize("unit", [2.0**-24, 2.0**-9], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("text", ASSIGNED)
def test_an_assignment_that_makes_the_result_is_fitted_with_few_numbers(text: str, unit: float) -> None:
    """Prove it for parameters and results that are rounded to a format of this unit roundoff."""
    name, value, assigned = ASSIGNED[text]

    def change(step: Step) -> Array:
        weight, bias = assigned(step.site.parameters["weight"], step.site.parameters["bias"])
        return _rounded(with_parameters(step, weight=_rounded(weight, unit), bias=_rounded(bias, unit)).value, unit)

    step = _step(name)[0]
    fits = _fits("parameters-other", name, unit * np.abs(step.value) / 3.0**0.5, change)
    fit = next(fit for fit in fits if fit.parameter.endswith(f"{name}{text}"))
    assert abs(fit.value - value) <= 6.0 * fit.deviation + np.spacing(value)
    assert fit.free <= 32


# Other parameters.

NOISY = "right(weight=weight + normal(weight.shape, 1, weight) * weight.std())"


# Each token's deviations are divided by a standard deviation that is off by up to a part in 100.
ANOTHER_DEVIATION = "(right() - bias) * torch.linspace(0.99, 1.01, x.shape[1])[:, None] + bias"


@pytest.mark.parametrize(("formula", "name"), [(NOISY, "parameters-other"), (ANOTHER_DEVIATION, "norm-statistics-other")])
def test_other_factors_or_statistics_of_a_norm_are_named_where_one_factor_is_zero(formula: str, name: str) -> None:
    tiny, factors = load_golden("tiny"), f"bert.encoder.layer.0.{NORM}.weight"
    zeroed = np.where(np.arange(32) == 5, 0.0, tiny.checkpoint.weights[factors])
    checkpoint = Checkpoint(tiny.checkpoint.architecture, {**tiny.checkpoint.weights, factors: zeroed})
    assert {found.name for found in _with(golden_of("zero", checkpoint, dict(tiny.batches)), attended=formula)} == {name}


# Checkpoints and batches that cannot tell.

IDS = np.random.default_rng(0).integers(1, 40, (4, 9))
SMALL = Architecture(40, 32, 1, 4, 48, 32, heads=("masked_lm", "next_sentence"))
ONE_LABEL = Architecture(40, 32, 1, 4, 48, 32, heads=("classification",), num_labels=1)


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


@pytest.mark.filterwarnings("error")
def test_an_output_that_is_zero_in_the_checkpoint_is_judged_without_a_warning() -> None:
    """Its sigma is 0, and the ratio of its size to the expected one is not finite."""
    zero_output = _golden(self_query_weight=(0, 0.0), self_query_bias=(0, 0.0))
    result = check(_first(query="cat([right()[..., :1] + 50 * hidden[..., :1], right()[..., 1:]], -1)"), zero_output)
    assert (result.outcome, [v.activation for v in result.origins]) == ("fail", ["encoder.layer.0.attention.self.query"])


def test_a_head_that_is_zero_in_the_checkpoint_is_not_reported_as_zeroed() -> None:
    zero_head = _golden(self_value_weight=(slice(8), 0.0), self_value_bias=(slice(8), 0.0))
    (found,) = _with(zero_head, context="right() * (arange(32) // 8 != 2)")
    assert found.name == "result-other"
    assert found.evidence.endswith("result by head[2] = 0")


def _classified(ids: Any, change: Function) -> list[str | None]:
    """Return the names of what is found if a single logit per row is changed."""
    candidate = MadeOf(lambda made: {**made, "classifier": change(made["classifier"])})
    return [found.name for found in check(candidate, _golden(ids, ONE_LABEL)).findings]


def test_no_name_with_a_number_is_given_to_a_single_logit_which_all_of_them_explain() -> None:
    """All rows have the same text, so that they show no more than one does."""
    for change in (torch.sigmoid, lambda y: 3.0 * y, lambda y: y + 0.3):
        assert _classified(np.repeat(IDS[:1], 4, 0), change) == [None]
    assert _classified(IDS, lambda y: 3.0 * y) == ["parameters-other"]


def test_a_fit_whose_effect_is_not_significant_gives_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation_search, "sets_of_faults", lambda *_: ())
    keys_of_bytes = changed("scores", "right(k=levels(k.float(), 127, -1).to(k.dtype))")
    assert [found.name for found in check(Candidate([keys_of_bytes]), "tiny", dtype="bfloat16").findings] == [None, None]


def test_an_assignment_that_leaves_most_of_the_error_is_not_reported() -> None:
    """The decoder's inputs, from a norm, nearly determine one another, so that its estimated weight has large errors."""
    (found,) = _with(logits="right(weight=weight + 0.3 * weight.std() * normal(weight.shape, 0, weight))")
    assert found.name == "parameters-other"
    assert "word_embeddings.weight, all 96 rows" in found.evidence
    assert "as by" not in found.evidence


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
    assert fit.free == 1
