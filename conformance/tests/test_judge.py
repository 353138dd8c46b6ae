"""The judge, on planted mistakes and on correct candidates."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance import Result, check, golden_of, load_golden
from conformance.errors import DependencyMissingError
from conformance.implementations.hugging_face import HuggingFace
from conformance.tests.planted_mistakes import (
    MadeOf,
    NativeNorm,
    Plant,
    Planted,
    epsilon,
    short_constant_gelu,
    tanh_gelu,
    unscaled,
)

GELU = "encoder.layer.{}.intermediate.intermediate_act_fn"
NORM = "encoder.layer.{}.attention.output.LayerNorm"
QUERY = "encoder.layer.0.attention.self.query"  # up to 5.2 on `tiny`; float16 ends at 65504
Function = Callable[[Tensor], Tensor]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> str:
    """The name of a golden, whose network may need a package that is not installed."""
    try:
        assert load_golden(request.param).checkpoint
    except DependencyMissingError as why:
        pytest.skip(str(why))
    return str(request.param)


def _origins(result: Result) -> list[str]:
    return [v.activation for v in result.origins]


def _names(result: Result) -> dict[str, str]:
    return {f.step: f.name for v in result.origins if v.local for f in v.local.named}


class Written(torch.nn.Module):
    """A module that applies a function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _gelu(layer: int, function: Function) -> Plant:
    return lambda model: setattr(model["bert"].encoder.layer[layer].intermediate, "intermediate_act_fn", Written(function))


def _by_hand(constant: float, epsilon: float | None = None) -> Plant:
    """GELU and LayerNorm composed of elementary operations, in one layer."""

    def plant(model: Any) -> None:
        _gelu(1, lambda x: x * 0.5 * (1.0 + torch.erf(x * constant)))(model)
        output = model["bert"].encoder.layer[1].output
        output.LayerNorm = NativeNorm(output.LayerNorm)
        output.LayerNorm.eps = output.LayerNorm.eps if epsilon is None else epsilon

    return plant


@pytest.mark.landing({"golden": "tiny", "threads": 1}, golden="minilm", attention="sdpa", dtype="float32", threads=1)
@pytest.mark.parametrize("golden", ["tiny", "minilm"], indirect=True)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_hugging_face_conforms_and_sigma_fits(golden: str, attention: str, dtype: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        result = check(HuggingFace(attention), golden, dtype=dtype)
    finally:
        torch.set_num_threads(before)
    assert result.conforms, (result.reason, _origins(result))
    # In float64 a product of torch can equal NumPy's to the last bit, for instance on processors with AVX-512.
    assert result.median_rms is not None
    assert (0.0 if dtype == "float64" else 0.3) <= result.median_rms <= 2.0


@pytest.mark.landing(golden="tiny")
@pytest.mark.parametrize("golden", ["tiny", "minilm"], indirect=True)
def test_three_faults_in_three_layers_are_three_origins_and_no_other_step_is_blamed(golden: str) -> None:
    last = load_golden(golden).checkpoint.architecture.num_hidden_layers - 1
    result = check(Planted(epsilon(0), tanh_gelu(1), unscaled(last)), golden)
    scores = f"encoder.layer.{last}.attention.self.scores"
    assert _names(result) == {NORM.format(0): "epsilon", GELU.format(1): "gelu-variant", scores: "scale-missing"}
    assert len(result.origins) == 3
    (of_norm,) = [v.local.named[0] for v in result.origins if v.activation == NORM.format(0) and v.local]
    assert of_norm.estimate
    assert of_norm.estimate.value == pytest.approx(1e-5, rel=0.01)


@pytest.mark.parametrize(
    ("plant", "dtype", "origins"),
    [
        (short_constant_gelu(1), "float32", [GELU.format(1)]),  # 0.70711 in place of 1/√2
        (tanh_gelu(1), "bfloat16", [GELU.format(1)]),
        (_by_hand(0.75, 1e-2), "bfloat16", [GELU.format(1), "encoder.layer.1.output.LayerNorm"]),
    ],
)
def test_a_mistake_in_one_layer_is_an_origin_there_alone(plant: Plant, dtype: str, origins: list[str]) -> None:
    assert _origins(check(Planted(plant), "tiny", dtype=dtype)) == origins


TANH_FORMS: dict[str, Function] = {
    "torch's": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "cube": lambda x: 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "power": lambda x: x * 0.5 * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0)))),
    "factored": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
}


@pytest.mark.landing(golden="tiny", form="torch's")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("golden", ["tiny", "wide", "deep", "minilm"], indirect=True)
@pytest.mark.parametrize("form", TANH_FORMS)
def test_tanh_gelu_in_every_layer_is_named_under_the_tightest_arithmetic(golden: str, dtype: str, form: str) -> None:
    layers = range(load_golden(golden).checkpoint.architecture.num_hidden_layers)
    result = check(Planted(*(_gelu(layer, TANH_FORMS[form]) for layer in layers)), golden, dtype=dtype)
    assert _origins(result) == [GELU.format(layer) for layer in layers]
    assert _names(result) == {GELU.format(layer): "gelu-variant" for layer in layers}


def test_correct_steps_composed_of_operations_are_evidence_against_a_wider_arithmetic_for_a_mistaken_one() -> None:
    """The tanh form composed of operations in bfloat16 in one of twelve layers would pass as native arithmetic if judged alone."""
    others = [_gelu(layer, lambda x: x * 0.5 * (1.0 + torch.erf(x * 0.5**0.5))) for layer in range(11)]
    result = check(Planted(*others, _gelu(11, TANH_FORMS["cube"])), "deep", dtype="bfloat16")
    assert _origins(result) == [GELU.format(11)]


@pytest.mark.landing(golden="tiny")
@pytest.mark.parametrize("golden", ["tiny", "minilm"], indirect=True)
def test_epsilon_in_bfloat16_is_an_origin_where_it_is_separable_and_reported_as_not_separable_elsewhere(golden: str) -> None:
    result = check(Planted(epsilon(1)), golden, dtype="bfloat16")
    (verdict,) = [v for v in result.verdicts if v.activation == NORM.format(1)]
    assert verdict.local
    filtered = max((f for f in verdict.local.filters if f.name == "epsilon"), key=lambda f: f.expected_z)
    assert filtered.separable or golden != "tiny"
    if filtered.separable:
        assert _origins(result) == [NORM.format(1)]
    else:
        assert result.conforms
        assert 0.0 <= filtered.expected_z < 12.0


def test_a_candidate_that_shows_only_the_last_hidden_state_is_judged_by_it_and_one_that_shows_nothing_fails() -> None:
    def last(by_name: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"encoder.layer.1.output.LayerNorm": by_name["encoder.layer.1.output.LayerNorm"]}

    assert check(MadeOf(last)).conforms
    assert check(MadeOf(lambda by_name: {k: v * 1.001 for k, v in last(by_name).items()})).outcome == "fail"
    assert check(MadeOf(lambda _: {})).outcome == "fail"


def _nudged(table: Tensor) -> Tensor:
    moved = table.clone()
    moved[0, 0, 0] = torch.nextafter(moved[0, 0, 0], torch.tensor(9.0))
    return moved


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("pooler.dense", lambda x: x[:, :-1], "shape is"),
        ("pooler.dense", lambda x: x.double(), "dtype is float64, expected float32; convert it"),
        ("pooler.dense", lambda x: x * torch.nan, "not finite"),
        ("embeddings.word_embeddings", _nudged, "by up to 1 unit in the last place"),
    ],
    ids=["shape", "dtype", "nan", "an exact look-up"],
)
def test_a_value_that_cannot_be_right_fails_alone_with_the_reason(name: str, change: Function, words: str) -> None:
    result = check(MadeOf(lambda by_name: {**by_name, name: change(by_name[name])}))
    (failed,) = [v for v in result.verdicts if v.outcome == "fail" and v.role != "downstream"]
    assert (failed.activation, words in failed.reason) == (name, True)
    assert result.coverage[0] >= 42


def test_an_unknown_name_fails_with_the_likeliest_one() -> None:
    result = check(MadeOf(lambda by_name: {**by_name, "pooler.dens": by_name["pooler.dense"]}))
    (failed,) = [v for v in result.verdicts if v.outcome == "fail"]
    assert "did you mean 'pooler.dense'" in failed.reason


def _scaled_norm(factor: float, *, infinite: bool) -> Any:
    """Return a candidate whose embeddings' norm is multiplied, and the largest element of whose first query may be infinite."""

    def scaled(model: Any) -> None:
        for parameter in model["bert"].embeddings.LayerNorm.parameters():
            parameter.data.mul_(factor)

    def prepare(*case: Any) -> Any:
        run = Planted(scaled).prepare(*case)

        def changed(batch: Any) -> dict[str, Tensor]:
            by_name = dict(run(batch))
            query = by_name[QUERY]
            return {**by_name, QUERY: query.masked_fill(query == query.max(), torch.inf)} if infinite else by_name

        return changed

    return prepare


@pytest.mark.parametrize(
    ("factor", "infinite", "origins"),
    [
        (2e4, False, ["embeddings.LayerNorm"]),  # The inputs are too large.
        (1.0, True, [QUERY]),
        (2.0, True, ["embeddings.LayerNorm", QUERY]),  # The inputs are wrong and of usual size.
    ],
)
def test_an_overflow_is_an_origin_unless_wrong_inputs_are_too_large_for_the_format(
    factor: float, origins: list[str], *, infinite: bool
) -> None:
    result = check(_scaled_norm(factor, infinite=infinite), "tiny", dtype="float16")
    assert _origins(result) == origins
    assert "not finite" in next(v.reason for v in result.verdicts if v.activation == QUERY)


@pytest.mark.thorough
def test_repeated_values_are_treated_as_one_rounding() -> None:
    """A batch of 30 × 63 tokens evaluates GELU at 2564 distinct bfloat16 values, at 75600 elements."""
    edges = load_golden("edges")
    large = golden_of("large", edges.checkpoint, {"length-63": edges.batches["length-63"]})
    result = check("hf-eager", large, dtype="bfloat16")
    assert result.outcome == "pass", result.reason
    assert _names(check(Planted(tanh_gelu(1)), large, dtype="bfloat16")) == {GELU.format(1): "gelu-variant"}


def test_an_overflow_is_one_origin_and_later_steps_are_not_judged() -> None:
    def overflow(model: Any) -> None:
        model["bert"].encoder.layer[0].attention.output.LayerNorm.weight.data.mul_(torch.inf)

    result = check(Planted(overflow), "tiny", dtype="float16")
    (origin,) = result.origins
    assert origin.activation == NORM.format(0)
    assert "not finite" in origin.reason
    later = [v for v in result.verdicts if v.activation.startswith("encoder.layer.1.")]
    assert {v.outcome for v in later} == {"not_observed"}
    assert any(v.reason.endswith(f"computed from {origin.activation}, which is not finite") for v in later)
