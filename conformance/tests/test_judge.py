"""The judge, on planted mistakes and on correct candidates."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from conformance import Result, check, golden_of, load_golden
from conformance.errors import DependencyMissingError
from conformance.implementations.hugging_face import HuggingFace
from conformance.judge.depth import Depth
from conformance.tests.planted_mistakes import (
    MadeOf,
    NativeNorm,
    Plant,
    Planted,
    epsilon,
    native_norms,
    short_constant_gelu,
    tanh_gelu,
    unscaled,
)


def _golden(name: str) -> str:
    try:
        assert load_golden(name).checkpoint
    except DependencyMissingError as why:
        pytest.skip(str(why))
    return name


@pytest.fixture(params=["tiny", "minilm"])
def golden(request: pytest.FixtureRequest) -> str:
    return _golden(request.param)


def _origins(result: Result) -> list[str]:
    return [v.activation for v in result.origins]


def _names(result: Result) -> list[tuple[str, str]]:
    return [(f.step, f.name) for v in result.origins if v.local for f in v.local.named]


# On a large network the thread count is varied in float32 only, to save time.
CORRECT = [("tiny", dtype, threads) for dtype in ("float64", "float32", "bfloat16", "float16") for threads in (1, 2)] + [
    ("minilm", "float32", 2),
    *(("minilm", dtype, 1) for dtype in ("float64", "float32", "bfloat16", "float16")),
]


@pytest.mark.landing({"golden": "tiny", "threads": 1}, golden="minilm", dtype="float32", threads=1)
@pytest.mark.parametrize(("golden", "dtype", "threads"), CORRECT, indirect=["golden"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_hugging_face_conforms_and_sigma_fits(golden: str, attention: str, dtype: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        result = check(HuggingFace(attention), golden, dtype=dtype)
    finally:
        torch.set_num_threads(before)
    assert result.conforms, (result.reason, _origins(result))
    rms = result.median_rms
    assert rms is not None
    # In float64 a product of torch can equal NumPy's to the last bit, for instance on processors with AVX-512.
    assert (0.0 if dtype == "float64" else 0.3) <= rms <= 2.0


def test_epsilon_in_one_layer_is_an_origin_there_alone_and_is_named_with_its_value(golden: str) -> None:
    result = check(Planted(epsilon(1)), golden)
    place = "encoder.layer.1.attention.output.LayerNorm"
    assert _origins(result) == [place]
    (verdict,) = result.origins
    assert verdict.local
    (fault,) = verdict.local.named
    assert fault.name == "epsilon"
    assert fault.estimate
    assert fault.estimate.value == pytest.approx(1e-5, rel=0.01)


def test_three_faults_in_three_layers_are_three_origins_and_no_other_step_is_blamed(golden: str) -> None:
    last = load_golden(golden).checkpoint.architecture.num_hidden_layers - 1
    result = check(Planted(epsilon(0), tanh_gelu(1), unscaled(last)), golden)
    assert sorted(_names(result)) == sorted(
        [
            ("encoder.layer.0.attention.output.LayerNorm", "epsilon"),
            ("encoder.layer.1.intermediate.intermediate_act_fn", "gelu-variant"),
            (f"encoder.layer.{last}.attention.self.scores", "scale-missing"),
        ]
    )
    assert len(_origins(result)) == 3


def test_gelu_with_five_digits_of_its_constant_is_an_origin_in_float32(golden: str) -> None:
    result = check(Planted(short_constant_gelu(1)), golden)
    assert _origins(result) == ["encoder.layer.1.intermediate.intermediate_act_fn"]


def test_tanh_gelu_is_an_origin_in_bfloat16(golden: str) -> None:
    result = check(Planted(tanh_gelu(1)), golden, dtype="bfloat16")
    place = "encoder.layer.1.intermediate.intermediate_act_fn"
    assert _origins(result) == [place]
    assert _names(result) == [(place, "gelu-variant")]


@pytest.mark.landing({"dtype": "bfloat16"}, name="tiny")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["tiny", "wide", "deep", "minilm"])
def test_tanh_gelu_in_every_layer_is_detected_under_the_tightest_arithmetic(name: str, dtype: str) -> None:
    layers = range(load_golden(_golden(name)).checkpoint.architecture.num_hidden_layers)
    result = check(Planted(*(tanh_gelu(layer) for layer in layers)), name, dtype=dtype)
    places = [f"encoder.layer.{layer}.intermediate.intermediate_act_fn" for layer in layers]
    assert _origins(result) == places
    assert _names(result) == [(place, "gelu-variant") for place in places]


def _by_hand(constant: float, epsilon: float | None = None) -> Plant:
    """GELU and LayerNorm composed of elementary operations, in one layer."""

    def plant(model: Any) -> None:
        layer = model["bert"].encoder.layer[1]
        layer.intermediate.intermediate_act_fn = Written(lambda x: x * 0.5 * (1.0 + torch.erf(x * constant)))
        layer.output.LayerNorm = NativeNorm(layer.output.LayerNorm)
        layer.output.LayerNorm.eps = layer.output.LayerNorm.eps if epsilon is None else epsilon

    return plant


@pytest.mark.landing(depth="full", golden="tiny")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("depth", ["full", "screen"])
def test_steps_composed_of_elementary_operations_in_one_layer_are_correct(golden: str, dtype: str, depth: Depth) -> None:
    result = check(Planted(_by_hand(0.5**0.5)), golden, dtype=dtype, depth=depth)
    assert result.conforms, [(v.activation, v.local) for v in result.origins]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_mistake_in_one_layer_does_not_affect_the_judgement_of_a_layer_composed_of_operations(dtype: str) -> None:
    for written in (lambda x: 0.5 * x + 0.5 * x * torch.erf(x * 0.5**0.5), lambda x: x * (1 - 0.5 * torch.erfc(x * 0.5**0.5))):
        by_hand = _gelu(1, written)
        assert check(Planted(by_hand), "tiny", dtype=dtype).conforms
        result = check(Planted(tanh_gelu(0), by_hand), "tiny", dtype=dtype)
        assert _names(result) == [("encoder.layer.0.intermediate.intermediate_act_fn", "gelu-variant")]


def test_correct_steps_composed_of_operations_are_evidence_against_a_wider_arithmetic_for_a_mistaken_one() -> None:
    """The tanh form composed of operations in bfloat16 in one of twelve layers would pass as native arithmetic if judged alone."""

    def tanh_form(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))

    others = [_gelu(layer, lambda x: x * 0.5 * (1.0 + torch.erf(x * 0.5**0.5))) for layer in range(11)]
    result = check(Planted(*others, _gelu(11, tanh_form)), "deep", dtype="bfloat16")
    assert _origins(result) == ["encoder.layer.11.intermediate.intermediate_act_fn"]


TANH_FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cube": lambda x: 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "power": lambda x: x * 0.5 * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0)))),
    "factored": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
}


@pytest.mark.landing(name="tiny", form="cube")
@pytest.mark.parametrize(
    ("name", "dtype", "form"),
    [("minilm", "bfloat16", "cube"), *((("tiny"), dtype, form) for dtype in ("bfloat16", "float16") for form in TANH_FORMS)],
)
def test_tanh_gelu_composed_of_operations_in_every_layer_is_named(name: str, dtype: str, form: str) -> None:
    layers = range(load_golden(_golden(name)).checkpoint.architecture.num_hidden_layers)
    result = check(Planted(*(_gelu(layer, TANH_FORMS[form]) for layer in layers)), name, dtype=dtype)
    places = [f"encoder.layer.{layer}.intermediate.intermediate_act_fn" for layer in layers]
    assert _names(result) == [(place, "gelu-variant") for place in places]


@pytest.mark.landing(name="tiny")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["tiny", "deep"])
def test_erf_gelu_in_an_order_of_operations_that_is_not_listed_is_correct(name: str, dtype: str) -> None:
    layers = range(load_golden(name).checkpoint.architecture.num_hidden_layers)
    by_distribution = (_gelu(layer, lambda x: x * torch.special.ndtr(x.double()).to(x.dtype)) for layer in layers)
    assert check(Planted(*by_distribution), name, dtype=dtype).conforms


class Written(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _gelu(layer: int, function: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    return lambda model: setattr(model["bert"].encoder.layer[layer].intermediate, "intermediate_act_fn", Written(function))


ROOTS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "one pass": lambda x, e: torch.sqrt((x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 + e),
    "deviation": lambda x, _: x.std(-1, keepdim=True, unbiased=False),
    "float32": lambda x, e: torch.sqrt(x.float().var(-1, keepdim=True, unbiased=False) + e).to(x.dtype),
}


@pytest.mark.landing(dtype="bfloat16", weight_first=True)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("weight_first", [True, False])
def test_norms_composed_of_operations_in_other_orders_in_one_layer_are_correct(
    root: str, dtype: str, *, weight_first: bool
) -> None:
    class Norm(NativeNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            centred, below = x - x.mean(-1, keepdim=True), ROOTS[root](x, self.eps)
            return (self.weight * centred / below if weight_first else centred / below * self.weight) + self.bias

    def plant(model: Any) -> None:
        output = model["bert"].encoder.layer[1].output
        output.LayerNorm = Norm(output.LayerNorm)

    result = check(Planted(plant), "tiny", dtype=dtype)
    assert result.conforms, [(v.activation, v.local) for v in result.origins]


def test_a_wrong_constant_and_epsilon_composed_of_operations_in_one_layer_are_origins() -> None:
    result = check(Planted(_by_hand(0.75, 1e-2)), "tiny", dtype="bfloat16")
    assert _origins(result) == ["encoder.layer.1.intermediate.intermediate_act_fn", "encoder.layer.1.output.LayerNorm"]


def test_epsilon_in_bfloat16_is_an_origin_where_it_is_separable_and_reported_as_not_separable_elsewhere(golden: str) -> None:
    result = check(Planted(epsilon(1)), golden, dtype="bfloat16")
    place = "encoder.layer.1.attention.output.LayerNorm"
    (verdict,) = [v for v in result.verdicts if v.activation == place]
    assert verdict.local
    filtered = max((f for f in verdict.local.filters if f.name == "epsilon"), key=lambda f: f.expected_z)
    if filtered.separable:
        assert _origins(result) == [place]
    else:
        assert result.conforms
        assert 0.0 <= filtered.expected_z < 12.0


def test_the_golden_tiny_separates_epsilon_in_bfloat16() -> None:
    result = check(HuggingFace("eager"), "tiny", dtype="bfloat16")
    (verdict,) = [v for v in result.verdicts if v.activation == "encoder.layer.1.attention.output.LayerNorm"]
    assert verdict.local
    assert all(f.separable for f in verdict.local.filters if f.name == "epsilon")


@pytest.mark.landing(golden="tiny")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_norm_with_every_operation_rounded_is_correct(golden: str, dtype: str) -> None:
    result = check(Planted(native_norms), golden, dtype=dtype)
    assert result.conforms, [(v.activation, v.local) for v in result.origins]


def test_a_candidate_that_shows_only_the_last_hidden_state_is_judged_by_it() -> None:
    def last(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"encoder.layer.1.output.LayerNorm": found["encoder.layer.1.output.LayerNorm"]}

    assert check(MadeOf(last)).conforms
    broken = MadeOf(lambda found: {k: v * 1.001 for k, v in last(found).items()})
    assert check(broken).outcome == "fail"


def test_values_at_padded_rows_are_not_judged() -> None:
    mask = torch.tensor(load_golden("tiny").batches["padded"].mask)

    def zeroed(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name = "encoder.layer.1.output.LayerNorm"
        return {**found, name: torch.where(mask[..., None], found[name], torch.nan)}

    assert check(MadeOf(zeroed)).outcome == "pass"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: {**f, "pooler.dense": f["pooler.dense"][:, :-1]}, "shape is"),
        (lambda f: {**f, "pooler.dense": f["pooler.dense"].double()}, "dtype is float64, expected float32; convert it"),
        (lambda f: {**f, "pooler.dense": f["pooler.dense"] * torch.nan}, "not finite"),
        (lambda f: {**f, "pooler.dens": f["pooler.dense"]}, "did you mean 'pooler.dense'"),
    ],
    ids=["shape", "dtype", "nan", "name"],
)
def test_a_broken_contract_fails_alone_with_the_expected_value(change, words) -> None:  # type: ignore[no-untyped-def]
    result = check(MadeOf(change))
    failed = [v for v in result.verdicts if v.outcome == "fail"]
    assert len(failed) == 1
    assert words in failed[0].reason
    assert result.coverage[0] >= 42


QUERY = "encoder.layer.0.attention.self.query"  # up to 5.2 on `tiny`; float16 ends at 65504


class ScaledNorm(HuggingFace):
    """The embeddings' norm multiplies by a factor; the largest element of the first layer's query is infinite if asked for."""

    def __init__(self, factor: float, *, infinite: bool = False) -> None:
        super().__init__("eager")
        self.factor, self.infinite = factor, infinite

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        def scaled(model: Any) -> None:
            model["bert"].embeddings.LayerNorm.weight.data.mul_(self.factor)
            model["bert"].embeddings.LayerNorm.bias.data.mul_(self.factor)

        run = Planted(scaled).prepare(checkpoint, device, dtype)

        def changed(batch: Any) -> dict[str, torch.Tensor]:
            found = dict(run(batch))
            query = found[QUERY]
            return {**found, QUERY: query.masked_fill(query == query.max(), torch.inf)} if self.infinite else found

        return changed


@pytest.mark.parametrize(
    ("candidate", "origins"),
    [
        (ScaledNorm(2e4), ["embeddings.LayerNorm"]),
        (ScaledNorm(1.0, infinite=True), [QUERY]),
        (ScaledNorm(2.0, infinite=True), ["embeddings.LayerNorm", QUERY]),
    ],
    ids=["inputs too large", "right inputs", "wrong inputs of usual size"],
)
def test_an_overflow_is_an_origin_unless_wrong_inputs_are_too_large_for_the_format(
    candidate: ScaledNorm, origins: list[str]
) -> None:
    result = check(candidate, "tiny", dtype="float16")
    assert [v.activation for v in result.origins] == origins
    assert "not finite" in next(v.reason for v in result.verdicts if v.activation == QUERY)


def test_an_overflow_is_one_origin_and_later_steps_are_not_judged() -> None:
    def overflow(model: Any) -> None:
        model["bert"].encoder.layer[0].attention.output.LayerNorm.weight.data.mul_(torch.inf)

    result = check(Planted(overflow), "tiny", dtype="float16")
    (origin,) = result.origins
    assert origin.activation == "encoder.layer.0.attention.output.LayerNorm"
    assert "not finite" in origin.reason
    later = [v for v in result.verdicts if v.activation.startswith("encoder.layer.1.")]
    assert {v.outcome for v in later} == {"not_observed"}
    assert any(v.reason.endswith(f"computed from {origin.activation}, which is not finite") for v in later)


def test_an_exact_activation_that_differs_by_one_ulp_fails() -> None:
    def nudged(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        table = found["embeddings.word_embeddings"].clone()
        table[0, 0, 0] = torch.nextafter(table[0, 0, 0], torch.tensor(9.0))
        return {**found, "embeddings.word_embeddings": table}

    result = check(MadeOf(nudged))
    assert "embeddings.word_embeddings" in _origins(result)
    assert "by up to 1 unit in the last place" in result.origins[0].reason


def test_probability_on_masked_keys_fails() -> None:
    name = "encoder.layer.0.attention.self.probs"
    leak = MadeOf(lambda found: {**found, name: found[name] + 1e-9})
    (verdict,) = [v for v in check(leak).verdicts if v.activation == name]
    assert verdict.outcome == "fail"
    assert "masked keys" in verdict.reason


def test_a_candidate_that_yields_nothing_does_not_pass() -> None:
    assert check(MadeOf(lambda _: {})).outcome == "fail"


def test_the_same_run_gives_the_same_verdicts() -> None:
    first, second = (check(HuggingFace("eager")).verdicts for _ in range(2))
    assert first == second
    assert np.isfinite([v.local.excess for v in first if v.local]).all()


def test_repeated_values_are_treated_as_one_rounding() -> None:
    """A batch of 30 × 63 tokens evaluates GELU at 2564 distinct bfloat16 values, at 75600 elements."""
    edges = load_golden("edges")
    large = golden_of("large", edges.checkpoint, {"length-63": edges.batches["length-63"]})
    result = check("hf-eager", large, dtype="bfloat16")
    assert result.outcome == "pass", result.reason
    result = check(Planted(tanh_gelu(1)), large, dtype="bfloat16")
    assert _names(result) == [("encoder.layer.1.intermediate.intermediate_act_fn", "gelu-variant")]
