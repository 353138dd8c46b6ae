"""Correct BERTs that compute unusually: none may raise an alarm, in any format."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from conformance import check, golden_of, load_golden
from conformance.batch import Batch
from conformance.tests.functional import Functional, Pieces


def _fp32(function: Any) -> Any:
    """The function computed in at least float32, rounded once."""

    def wide(x: Any, *rest: Any) -> Any:
        dtype = torch.promote_types(x.dtype, torch.float32)
        return function(
            x.to(dtype), *(r.to(dtype) if isinstance(r, torch.Tensor) and r.is_floating_point() else r for r in rest)
        ).to(x.dtype)

    return wide


def _native_norm(x: Any, weight: Any, bias: Any, eps: float, name: str) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias


def _one_pass_norm(x: Any, weight: Any, bias: Any, eps: float, name: str) -> Any:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((x * x).mean(-1, keepdim=True) - mean * mean + eps) * weight + bias


def _folded_norm(x: Any, weight: Any, bias: Any, eps: float, name: str) -> Any:
    scale = weight * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + eps)
    return x * scale + (bias - x.mean(-1, keepdim=True) * scale)


def _native_softmax(scores: Any, keys: Any) -> Any:
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * keys.to(scores.dtype)
    return weights / weights.sum(-1, keepdim=True)


def _reciprocal_softmax(scores: Any, keys: Any) -> Any:
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * keys.to(scores.dtype)
    return weights * (1.0 / weights.sum(-1, keepdim=True))


def _logsumexp_softmax(scores: Any, keys: Any) -> Any:
    masked = scores.masked_fill(~keys, -math.inf)
    return torch.exp(masked - torch.logsumexp(masked, -1, keepdim=True))


def _base_two_softmax(scores: Any, keys: Any) -> Any:
    masked = scores.masked_fill(~keys, -math.inf)
    weights = torch.exp2((masked - masked.amax(-1, keepdim=True)) * math.log2(math.e))
    return weights / weights.sum(-1, keepdim=True)


def _native_gelu(x: Any, name: str) -> Any:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _permuted(x: Any, weight: Any, bias: Any, name: str) -> Any:
    return F.linear(x.flip(-1), weight.flip(-1), bias)


VARIANTS = {
    "as the paper writes it": Functional(),
    "norm, every operation rounded": Functional(Pieces(norm=_native_norm)),
    "norm in float32": Functional(Pieces(norm=_fp32(_native_norm))),
    "norm in one pass, float32": Functional(Pieces(norm=_fp32(_one_pass_norm))),
    "norm folded into scale and shift": Functional(Pieces(norm=_fp32(_folded_norm))),
    "embedding norm native, others not": Functional(
        Pieces(norm=lambda x, w, b, e, n: (_native_norm if n.startswith("emb") else _fp32(_native_norm))(x, w, b, e, n))
    ),
    "softmax, every operation rounded": Functional(Pieces(softmax=_native_softmax)),
    "softmax with a reciprocal": Functional(Pieces(softmax=_reciprocal_softmax)),
    "softmax by logsumexp": Functional(Pieces(softmax=_fp32(_logsumexp_softmax))),
    "softmax to base two": Functional(Pieces(softmax=_fp32(_base_two_softmax))),
    "GELU, every operation rounded": Functional(Pieces(activation=_native_gelu)),
    "GELU by erfc": Functional(Pieces(activation=_fp32(lambda x, n: x * 0.5 * torch.special.erfc(-x * math.sqrt(0.5))))),
    "GELU in float64": Functional(Pieces(activation=lambda x, n: F.gelu(x.double()).to(x.dtype))),
    "query scaled before the product": Functional(Pieces(scores=lambda q, k: (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2))),
    "query and key scaled by the fourth root": Functional(
        Pieces(scores=lambda q, k: (q * q.shape[-1] ** -0.25) @ (k * k.shape[-1] ** -0.25).transpose(-1, -2)),
        exposes=lambda n: not n.endswith("scores"),
    ),
    "einsum": Functional(
        Pieces(
            scores=lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5,
            context=lambda p, v: torch.einsum("bhqk,bhkd->bhqd", p, v),
        )
    ),
    "products summed backwards": Functional(Pieces(linear=_permuted)),
    "bias as a call of its own": Functional(Pieces(linear=lambda x, w, b, n: x @ w.T + b)),
    "products in float64": Functional(Pieces(linear=lambda x, w, b, n: F.linear(x.double(), w.double(), b.double()).to(x.dtype))),
    "everything in float32, rounded when shown": Functional(computes="float32"),
    "everything in float64, rounded when shown": Functional(computes="float64"),
    "norms only": Functional(exposes=lambda n: n.endswith("LayerNorm")),
    "the last hidden state only": Functional(exposes=lambda n: n == "encoder.layer.1.output.LayerNorm"),
    "logits only": Functional(exposes=lambda n: n in ("cls.predictions.decoder", "classifier")),
    "computed in float64, logits only": Functional(exposes=lambda n: n.endswith("decoder"), computes="float64"),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_correct_variant_raises_no_alarm(name: str, dtype: str) -> None:
    if dtype == "float64" and "float32" in name:
        pytest.skip("computing in float32 is no correct float64")
    result = check(VARIANTS[name], "tiny", dtype=dtype)
    assert result.conforms, (result.reason, [(v.place, v.local and v.local.error) for v in result.origins])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("golden", ["sinusoidal", "deep", "wide"])
def test_every_architecture_of_a_golden_has_a_candidate_that_passes_all_of_it(golden: str, dtype: str) -> None:
    result = check(Functional(), golden, dtype=dtype)
    assert result.conforms, (result.reason, [(v.place, v.local and v.local.error) for v in result.origins])
    judged, activations = result.coverage
    copies = sum(v.activation.endswith("dropout") for v in result.verdicts if v.hidden)
    assert judged == activations - copies


@pytest.fixture
def long_golden() -> Any:
    """The batch of `tiny` 24 times over: as many rows as a real run has."""
    tiny = load_golden("tiny")
    arrays = tiny.batches["padded"].arrays()
    many = Batch.of({n: a.repeat(24, 0) for n, a in arrays.items()})
    return golden_of("long", tiny.checkpoint, {"long": many})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["norm, every operation rounded", "norm in float32", "softmax, every operation rounded"])
def test_a_correct_variant_passes_on_a_large_batch(name: str, dtype: str, long_golden: Any) -> None:
    result = check(VARIANTS[name], long_golden, dtype=dtype)
    assert result.conforms, (result.reason, [(v.place, v.local and v.local.error) for v in result.origins])


@pytest.mark.parametrize("factor", [1.01, 1.003])
def test_a_small_error_of_the_scale_is_seen_in_float16_and_estimated(factor: float) -> None:
    wrong = Functional(Pieces(scores=lambda q, k: q @ k.transpose(-1, -2) * (factor * q.shape[-1] ** -0.5)))
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
    wrong = Functional(Pieces(norm=lambda x, w, b, e, n: F.layer_norm(x, x.shape[-1:], w, b, epsilon)))
    result = check(wrong, "tiny")
    assert len(result.origins) == 6
    for verdict in result.origins:
        assert verdict.local
        (fault,) = verdict.local.named
        assert fault.estimate
        assert (fault.name, fault.estimate.value) == ("epsilon", pytest.approx(epsilon, rel=1e-2))


def test_a_fault_in_the_first_layer_is_named_from_the_last_hidden_state_alone() -> None:
    first = "encoder.layer.0.intermediate.intermediate_act_fn"
    wrong = Functional(
        Pieces(activation=lambda x, n: F.gelu(x, approximate="tanh" if n == first else "none")),
        exposes=lambda n: n == "encoder.layer.1.output.LayerNorm",
    )
    (verdict,) = check(wrong, "tiny").origins
    assert verdict.local
    assert [(f.name, f.step) for f in verdict.local.named] == [("activation-form", first)]
