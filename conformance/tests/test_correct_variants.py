"""Correct BERTs with unusual computations raise no alarm, in any format."""

from typing import Any

import pytest
import torch
from torch import Tensor

from conformance import check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.networks import network
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.model.batch import Batch
from conformance.results.result import Result


def _require_conforming(result: Result) -> None:
    assert result.conforms, (result.reason, [(v.place, v.local and v.local.error) for v in result.origins])


# Every variant once: in bfloat16, which has the most arithmetics, or in float32.
HALVES = [name for name, variant in VARIANTS.items() if "float32" not in variant.dtypes]
IN_BFLOAT16 = [*HALVES, *[name for name in VARIANTS if "bfloat16" in VARIANTS[name].dtypes][::2]]


@pytest.mark.landing({"dtype": "bfloat16", "name": IN_BFLOAT16}, dtype="float32", name=[*VARIANTS.keys() - IN_BFLOAT16])
@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, variant in VARIANTS.items() for dtype in variant.dtypes])
def test_a_correct_variant_raises_no_alarm(name: str, dtype: str) -> None:
    _require_conforming(check(VARIANTS[name], "tiny", dtype=dtype))


@pytest.mark.parametrize(("golden", "dtype"), [("sinusoidal", "float16"), ("deep", "bfloat16"), ("wide", "float32")])
def test_the_architecture_of_every_golden_has_a_candidate_that_passes_all_checks(golden: str, dtype: str) -> None:
    result = check(Candidate(), golden, dtype=dtype)
    _require_conforming(result)
    judged, activations = result.coverage
    assert judged == activations


@pytest.mark.landing(dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["norm, every operation rounded", "norm in float32", "softmax, every operation rounded"])
def test_a_correct_variant_passes_on_as_many_rows_as_a_real_run_has(name: str, dtype: str) -> None:
    tiny = load_golden("tiny")
    many = Batch.of({n: a.repeat(24, 0) for n, a in tiny.batches["padded"].arrays().items()})
    _require_conforming(check(VARIANTS[name], golden_of("long", tiny.checkpoint, {"long": many}), dtype=dtype))


def _norms_alone(activation: str) -> bool:
    return activation.endswith("LayerNorm")


BEHIND_HIDDEN_STEPS = VARIANTS["several kinds, norms only"]


@pytest.mark.parametrize(
    ("variant", "kind", "seed", "dtype"),
    [
        (BEHIND_HIDDEN_STEPS, "bert", 101, "bfloat16"),
        (BEHIND_HIDDEN_STEPS, "sinusoidal", 101, "bfloat16"),
        (BEHIND_HIDDEN_STEPS, "bert", 103, "float16"),
        (BEHIND_HIDDEN_STEPS, "sinusoidal", 103, "bfloat16"),
        (BEHIND_HIDDEN_STEPS, "initial, 0.02", 105, "bfloat16"),  # The inverse roots of all rows round to one number.
        (BEHIND_HIDDEN_STEPS.in_layer(1), "bert", 1, "bfloat16"),
        pytest.param(BEHIND_HIDDEN_STEPS.in_layer(1), "minilm", 1, "bfloat16", marks=pytest.mark.thorough),
        (VARIANTS["products in eight parts, stored and added"], "initial, 0.002", 102, "float16"),  # The parts are subnormal.
        (VARIANTS["norm with stored statistics"], "sinusoidal", 107, "float16"),
        (VARIANTS["norm with stored statistics"], "bert", 104, "bfloat16"),
        (VARIANTS["norm in float32, rounded before the scale"], "tanh-form", 104, "bfloat16"),
    ],
)
def test_a_correct_variant_of_another_network_raises_no_alarm(variant: Any, kind: str, seed: int, dtype: str) -> None:
    _require_conforming(check(variant, network(kind, seed), dtype=dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stored_statistics_do_not_hide_a_mistake_of_the_norm(dtype: str) -> None:
    def wrong(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        variance, mean = torch.var_mean(x.float(), -1, unbiased=True, keepdim=True)
        mean, inverse = (statistic.to(x.dtype).float() for statistic in (mean, torch.rsqrt(variance + eps)))
        return ((x.float() - mean) * inverse * weight.float() + bias.float()).to(x.dtype)

    assert check(Candidate([changed("norms", wrong)]), "tiny", dtype=dtype).outcome == "fail"


@pytest.mark.parametrize("name", ["epsilon", "norm-unbiased-deviation"])
def test_a_mistaken_norm_behind_hidden_steps_fails_in_half_precision(name: str) -> None:
    result = check(Candidate([MISTAKES[name].at(0)], _norms_alone), network("bert", 1), dtype="float16")
    assert [v.activation for v in result.verdicts if v.outcome == "fail"] == ["encoder.layer.0.attention.output.LayerNorm"]


@pytest.mark.parametrize("epsilon", [3e-7, 1e-6])
def test_after_hidden_steps_only_a_filter_finds_a_small_epsilon_in_one_layer(epsilon: float) -> None:
    wrong = changed("attended", f"right(eps={epsilon})", layers=(0,))
    (verdict,) = check(Candidate([wrong], _norms_alone), "tiny", dtype="bfloat16").origins
    assert verdict.local
    assert verdict.local.fails_by_filters_alone
    assert "epsilon" in {f.name for e in (*verdict.local.explanations,) for f in e.faults}


@pytest.mark.parametrize("factor", [1.01, 1.003])
def test_a_small_error_of_the_scale_is_found_and_estimated_in_float16(factor: float) -> None:
    wrong = Candidate([changed("scores", f"q @ k.mT * ({factor} * d**-0.5)")])
    result = check(wrong, "tiny", dtype="float16")
    assert {v.activation for v in result.origins} == {f"encoder.layer.{i}.attention.self.scores" for i in range(2)}
    for verdict in result.origins:
        assert verdict.local
        (fault,) = verdict.local.named
        assert fault.estimate
        assert fault.estimate.value == pytest.approx(factor * 8**-0.5, abs=5 * fault.estimate.deviation)
        assert fault.estimate.deviation < 1e-5


@pytest.mark.parametrize("epsilon", [1e-6, 1e-5, 1e-3])
def test_any_wrong_epsilon_is_named_with_its_value(epsilon: float) -> None:
    wrong = Candidate([changed("norms", f"right(eps={epsilon})")])
    result = check(wrong, "tiny")
    assert len(result.origins) == 6
    for verdict in result.origins:
        assert verdict.local
        (fault,) = verdict.local.named
        assert fault.estimate
        room = fault.estimate.room(verdict.local.filter_threshold)
        assert (fault.name, fault.estimate.value) == ("epsilon", pytest.approx(epsilon, abs=room))
        assert room < epsilon


def test_a_fault_in_the_first_layer_is_named_from_the_last_hidden_state() -> None:
    first = "encoder.layer.0.intermediate.intermediate_act_fn"
    wrong = Candidate(
        [changed("activated", "tanh_gelu(x)", layers=(0,))], exposes=lambda n: n == "encoder.layer.1.output.LayerNorm"
    )
    (verdict,) = check(wrong, "tiny").origins
    assert verdict.local
    assert [(f.name, f.step) for f in verdict.local.named] == [("gelu-variant", first)]
