"""Additive masks with the wrong sign, and inverted ones, are named by one name for every usual constant."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import check
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.faults.attention import softmax
from conformance.judge.non_finite_places import mask_that_explains
from conformance.model.activations import table
from conformance.model.batch import Batch
from conformance.model.gradients import grad
from conformance.numerics.formats import Array, Mask
from conformance.report.findings import findings
from conformance.results.to_records import activation_records
from conformance.tests.test_faults_of_masks import DECODER, ENCODER, LENGTH, PADDED, PROBS, _applied

Constant = Callable[[torch.dtype], float]

CONSTANTS: dict[str, Constant] = {
    "10000": lambda _: 1e4,
    "1e9": lambda _: 1e9,
    "largest": lambda dtype: torch.finfo(dtype).max,
    "infinity": lambda _: math.inf,
}


def _all(name: str) -> bool:
    return True


def _without_scores(name: str) -> bool:
    return not name.endswith("self.scores")


def _layers(name: str) -> bool:
    return not name.startswith("encoder.") or (name.endswith("output.LayerNorm") and "attention" not in name)


def _candidate(added: Callable[[Tensor, Constant], Tensor], constant: str, exposes: Callable[[str], bool]) -> Candidate:
    """Return a candidate that adds `added(mask, constant)`, (B, 1, 1, S), to the scores of every layer."""

    def softmax_of(scores: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(scores + added(mask[:, None, None, :].to(scores.dtype), CONSTANTS[constant]), -1)

    return Candidate([changed("probs", softmax_of)], exposes)


def _wrong_sign(mask: Tensor, constant: Constant) -> Tensor:
    return (1.0 - mask) * constant(mask.dtype)


def _inverted(mask: Tensor, constant: Constant) -> Tensor:
    return mask * -constant(mask.dtype)


def _names(candidate: Candidate, golden: str, dtype: str) -> list[set[str]]:
    """Return the names of each finding, which are several if the result does not distinguish them."""
    result = check(candidate, golden, dtype=dtype)
    assert result.outcome == "fail", result.reason
    return [{found.fault.name, *found.others} if found.fault else set() for found in findings(activation_records(result))]


of_exposed = pytest.mark.parametrize("exposes", [_all, _without_scores, _layers], ids=["all", "without scores", "layers"])


@of_exposed
@pytest.mark.parametrize(
    ("constant", "dtype", "name"),
    [
        ("10000", "float32", "mask-sign-10000"),
        ("1e9", "float32", "mask-sign"),
        ("largest", "float32", "mask-sign"),
        ("10000", "bfloat16", "mask-sign"),
        ("largest", "bfloat16", "mask-sign"),
    ],
)
def test_a_mask_added_with_the_wrong_sign_has_one_name(
    constant: str, dtype: str, name: str, exposes: Callable[[str], bool]
) -> None:
    assert _names(_candidate(_wrong_sign, constant, exposes), "tiny", dtype) == [{name}]


@of_exposed
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("constant", ["10000", "largest"])
def test_an_inverted_mask_has_no_other_name(constant: str, dtype: str, exposes: Callable[[str], bool]) -> None:
    (names,) = _names(_candidate(_inverted, constant, exposes), "tiny", dtype)
    assert names
    assert names <= {"mask-inverted", "mask-inverted-lowest"}


def _filled(mask: Tensor, constant: Constant) -> Tensor:
    return torch.zeros_like(mask).masked_fill(mask.bool(), -constant(mask.dtype))


def _subtracted(mask: Tensor, constant: Constant) -> Tensor:
    return (1.0 - mask) * -constant(mask.dtype)


@of_exposed
def test_an_inverted_mask_of_infinity_is_said_where_it_leaves_no_number(exposes: Callable[[str], bool]) -> None:
    (origin,) = check(_candidate(_filled, "infinity", exposes), "tiny").origins
    assert "all of the sequences without padding, and nothing else, as an inverted mask (mask-inverted)" in origin.reason


@pytest.mark.parametrize("exposes", [_all, _without_scores])
def test_a_mask_of_zero_times_infinity_is_said_where_it_leaves_no_number(exposes: Callable[[str], bool]) -> None:
    (origin,) = check(_candidate(_subtracted, "infinity", exposes), "tiny").origins
    assert "all of it, as a mask leaves it that is added as (1 − mask) · −∞" in origin.reason


@pytest.mark.parametrize("row", [0, 1], ids=["a row without padding", "a padded row"])
def test_other_numbers_that_are_missing_say_nothing_of_a_mask(row: int) -> None:
    """One of two sequences without padding, or a padded one."""
    mask = np.ones((3, LENGTH), np.int64)
    mask[1, 2:] = 0
    batch = Batch(mask, np.zeros_like(mask), mask)
    activation = table(ENCODER)[PROBS]
    places = np.zeros((3, ENCODER.num_attention_heads, LENGTH, LENGTH), np.bool_)
    places[[0, 2]] = True
    assert "mask-inverted" in mask_that_explains(activation, batch, places)
    assert mask_that_explains(replace(activation, name=grad(PROBS)), batch, places) == ""
    places[[0, 2]] = False
    places[row] = True
    assert mask_that_explains(activation, batch, places) == ""
    assert (
        mask_that_explains(activation, Batch(np.ones_like(mask), np.zeros_like(mask), np.ones_like(mask)), np.ones_like(places))
        == ""
    )


@pytest.mark.parametrize(("added", "name"), [(_wrong_sign, "mask-sign"), (_inverted, "mask-inverted-lowest")])
def test_twelve_layers_with_the_same_mask_are_one_mistake(added: Callable[[Tensor, Constant], Tensor], name: str) -> None:
    assert _names(_candidate(added, "largest", _without_scores), "deep", "float32") == [{name}]


def _additive(scores: Array, added: Mask, constant: float) -> Array:
    """Return the softmax of the scores, rounded to float32 with the constant where it is added."""
    summed = np.where(added, (scores + constant).astype(np.float32), scores)
    return softmax(summed, np.ones_like(summed, np.bool_))


@pytest.mark.parametrize(("name", "constant"), [("mask-sign", float(np.finfo(np.float32).max)), ("mask-sign-10000", 1e4)])
def test_a_wrong_sign_is_the_softmax_of_the_rounded_sum(name: str, constant: float) -> None:
    mask = np.concatenate([np.ones((1, LENGTH), np.int64), PADDED[:1]])
    step, wrong = _applied(name, ENCODER, PROBS, attention_mask=mask)
    assert wrong
    expected = _additive(step.parents[0], np.broadcast_to(mask[:, None, None, :] == 0, step.value.shape), constant)
    np.testing.assert_allclose(wrong.value, expected, atol=1e-12)


def test_an_inverted_mask_of_the_lowest_number_is_the_softmax_of_the_rounded_sum() -> None:
    mask = np.concatenate([np.ones((1, LENGTH), np.int64), PADDED[:1]])
    step, wrong = _applied("mask-inverted-lowest", ENCODER, PROBS, attention_mask=mask)
    assert wrong
    hidden = np.broadcast_to(mask[:, None, None, :] == 1, step.value.shape)
    np.testing.assert_allclose(wrong.value, _additive(step.parents[0], hidden, float(np.finfo(np.float32).min)), atol=1e-12)


@pytest.mark.parametrize("name", ["mask-sign", "mask-sign-10000"])
def test_a_wrong_sign_lets_no_token_of_a_decoder_attend_to_a_later_one(name: str) -> None:
    step, wrong = _applied(name, DECODER, PROBS, attention_mask=PADDED)
    assert wrong
    assert not np.triu(wrong.value, 1).any()
    assert (wrong.value != step.value).any()


@pytest.mark.parametrize("name", ["mask-sign", "mask-sign-10000", "mask-inverted-lowest"])
def test_a_mask_without_padding_has_no_sign(name: str) -> None:
    assert _applied(name, ENCODER, PROBS)[1] is None


def test_an_inverted_mask_of_padded_rows_alone_is_the_same_with_any_constant() -> None:
    lowest, inverted = (
        _applied(name, ENCODER, PROBS, attention_mask=PADDED)[1] for name in ("mask-inverted-lowest", "mask-inverted")
    )
    assert lowest
    assert inverted
    np.testing.assert_array_equal(lowest.value, inverted.value)
