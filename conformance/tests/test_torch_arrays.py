"""NumPy's functions have NumPy's results and data types on tensors, and a judgement of tensors is that of NumPy's arrays."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from conformance import check
from conformance.judge import judge as judging
from conformance.judge.evidence import Verdict
from conformance.judge.observation import Observation
from conformance.model.activation import Activation
from conformance.numerics.torch_array import TorchArray, in_memory
from conformance.results.result import Result

FIRST_THIRD = np.array([True, False, True])
RNG = np.random.default_rng(0)
DOUBLE, SINGLE = RNG.standard_normal((3, 4, 5)), RNG.standard_normal((3, 5, 4)).astype(np.float32)


def _filled_where_positive(a: Any, b: Any) -> Any:
    np.copyto(a, 0.5, where=a > 0)
    a[0] = 1.0
    a[a < 0] = np.float32(3.0)
    a += b.swapaxes(-1, -2)
    return a


def _with_nan(a: Any) -> Any:
    return np.where(a > 0, a, np.nan)


EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a product of two formats": lambda a, b: a @ b,
    "a Python number is weak": lambda a, b: b * 2.0,
    "a NumPy number is not": lambda a, b: b * np.float64(2.0),
    "integers and a Python number": lambda a, b: np.arange(5, like=None) * 0.5 + (a > 0),
    "the result in an operand": lambda a, b: np.maximum(a, 0.0, out=a),
    "a quotient where it is defined": lambda a, b: np.divide(1.0, a, out=np.zeros_like(a), where=a > 0),
    "a mean along no axis": lambda a, b: a.mean((), keepdims=True),
    "a sum of selected elements": lambda a, b: np.sum(np.log(np.abs(a)), where=a > 0),
    "the reduction of a sum": lambda a, b: np.add.reduce(a) + np.add.reduce(a, 1, keepdims=True)[0],
    "the reduction of a maximum of integers": lambda a, b: np.maximum.reduce(a.astype(int), -1, initial=0),
    "a deviation of integers": lambda a, b: a.astype(int).std(-1),
    "a choice by numbers": lambda a, b: np.where(np.maximum(a, 0.0), b[:, :4, :4].sum(-1, keepdims=True), 1.0),
    "a concatenation of two formats": lambda a, b: np.concatenate([b, b.astype(np.float64)], -1),
    "reversed axes": lambda a, b: a[::-1, ::-1] + a[..., ::-1],
    "a reversed axis beside a mask": lambda a, b: a[FIRST_THIRD, ::-2, None],
    "a part of a reversed axis": lambda a, b: a[:, 3:0:-1],
    "an integer beside indices": lambda a, b: a[0, :, np.array([1, 2])],
    "bytes as indices": lambda a, b: a[np.array([2, 0, 1], np.uint8)],
    "elements set": _filled_where_positive,
    "an array clipped to another format": lambda a, b: np.clip(b, -np.ones(4), 1.0),
    "a sum of products of two formats": lambda a, b: np.einsum("bij,bjk->bik", a, b),
    "an array like another, in a format": lambda a, b: np.asarray(b, np.float64, like=a),
    "a sum of weights by index": lambda a, b: np.bincount((b.ravel() > 0).astype(int), b.ravel(), 3),
    "a broadcast array in memory": lambda a, b: np.where(np.broadcast_to(np.arange(5) > 2, (3, 4, 5)), a, -np.inf),
    "axes in another order": lambda a, b: a.transpose(2, 0, 1) + a.T.swapaxes(1, 2),
    "the sign of zero": lambda a, b: np.copysign(1.0, np.minimum(np.abs(a), 0.0) * -1.0),
    "the sign of what is not a number": lambda a, b: np.sign(_with_nan(a)),
    "the first of equal elements": lambda a, b: (a > 0).argmax(),
    "the first that is not a number": lambda a, b: np.argmax(_with_nan(a), -1, keepdims=True),
    "distinct elements": lambda a, b: np.unique(np.sign(a), return_inverse=True, return_counts=True)[2],
    "distinct elements that are not numbers": lambda a, b: np.unique(_with_nan(a)),
    "a function that torch has not": lambda a, b: np.median(a, 0),
    "a method that is computed in memory": lambda a, b: a.round(1),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_has_numpys_value_and_data_type(name: str) -> None:
    expected = np.asarray(EXPRESSIONS[name](DOUBLE.copy(), SINGLE.copy()))
    found = EXPRESSIONS[name](*(TorchArray(torch.from_numpy(x.copy())) for x in (DOUBLE, SINGLE)))
    assert isinstance(found, TorchArray) or not np.ndim(found)
    assert np.asarray(found).dtype == expected.dtype
    np.testing.assert_allclose(in_memory(found), expected, rtol=1e-14 if expected.dtype == np.float64 else 1e-6)


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (lambda a: np.fill_diagonal(a, 1.0), ValueError, "read-only"),
        (lambda a: np.sum(a, 0, None, a[0]), ValueError, "read-only"),
        (lambda a: operator.itruediv(a.astype(int), 2), TypeError, "a result of float64 cannot be stored in an array of int64"),
        (
            lambda a: operator.setitem(a, slice(None, None, -1), 1.0),
            NotImplementedError,
            "elements of a reversed axis cannot be set",
        ),
        (lambda a: range(a.max()), TypeError, "cannot be interpreted as an integer"),
        (lambda a: a.sort(), AttributeError, "sort"),
        (lambda a: a.no_such_method(), AttributeError, "no_such_method"),
    ],
)
def test_what_would_change_a_copy_or_lose_digits_is_refused(
    change: Callable[[Any], Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        change(TorchArray(torch.ones(2, 2)))


@pytest.fixture
def everything_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Let arrays of any size be judged on a device that torch has everywhere, or in memory."""

    def select(device: str | None) -> None:
        monkeypatch.setattr(judging, "SMALL", 0)
        monkeypatch.setattr(judging, "judging_device", lambda _: device)

    return select


def _conclusions(result: Result) -> list[tuple[object, ...]]:
    return [
        (v.batch, v.activation, v.outcome, v.role, v.reason, v.residual_description)
        + (([m.name for m in v.local.named], [f.name for f in v.local.filters if f.detected]) if v.local else ())
        for v in result.verdicts
    ]


def _largest_difference(these: list[Verdict], those: list[Verdict]) -> float:
    pairs = [(a.local.error.rms, b.local.error.rms) for a, b in zip(these, those, strict=True) if a.local and b.local]
    return max(abs(a - b) / b for a, b in pairs if a and b)


@pytest.mark.landing(dtype=["float32", "float16"])
@pytest.mark.parametrize(
    ("name", "golden", "dtype", "checked", "outcome"),
    [
        ("hf-eager", "tiny", "float32", "values", "pass"),
        ("hf-sdpa", "wide", "bfloat16", "values", "pass"),
        ("inner-workings", "relative-key-query", "float64", "values", "pass"),
        ("torch-encoder-fast", "wide", "bfloat16", "values", "pass"),
        ("demystified-as-written", "sinusoidal", "float32", "values", "fail"),
        ("hf-eager", "tiny", "float32", "gradients", "pass"),
        ("inner-workings", "tiny", "bfloat16", "training-mode", "pass"),
    ],
)
def test_a_judgement_of_tensors_is_that_of_numpys_arrays(
    everything_on: Callable[[str | None], None], name: str, golden: str, dtype: str, checked: str, outcome: str
) -> None:
    results = []
    for device in (None, "cpu"):
        everything_on(device)
        results.append(check(name, golden, dtype=dtype, check=checked))
    here, there = results
    assert (there.outcome, there.reason) == (here.outcome, here.reason)
    assert there.outcome == outcome
    assert _conclusions(there) == _conclusions(here)
    if dtype != "float64":  # whose errors are no larger than those of the oracle's own products
        assert _largest_difference(list(there.verdicts), list(here.verdicts)) < 1e-5  # sigma is computed in float32


def _full_when_judged(monkeypatch: pytest.MonkeyPatch, refused: list[str]) -> None:
    whole = Observation.whole.func  # type: ignore[attr-defined]  # a cached property

    def full(self: Observation) -> Any:
        if self.on_device and self.activation.layer == 1:
            refused.append(self.name)
            raise torch.OutOfMemoryError
        return whole(self)

    monkeypatch.setattr(Observation, "whole", property(full))


def _full_when_received(monkeypatch: pytest.MonkeyPatch, refused: list[str]) -> None:
    accepted = judging.accepted_array

    def full(row: Activation, *arguments: Any) -> Any:
        if row.layer == 1 and arguments[-1]:
            refused.append(row.name)
            raise torch.OutOfMemoryError
        return accepted(row, *arguments)

    monkeypatch.setattr(judging, "accepted_array", full)


@pytest.mark.parametrize("full", [_full_when_judged, _full_when_received])
def test_what_does_not_fit_on_the_device_is_judged_in_memory(
    monkeypatch: pytest.MonkeyPatch,
    everything_on: Callable[[str | None], None],
    full: Callable[[pytest.MonkeyPatch, list[str]], None],
) -> None:
    everything_on("cpu")
    refused: list[str] = []
    full(monkeypatch, refused)
    result = check("hf-eager", "tiny")
    assert refused == ["encoder.layer.1.attention.self.query"]
    monkeypatch.undo()
    assert _conclusions(result) == _conclusions(check("hf-eager", "tiny"))
