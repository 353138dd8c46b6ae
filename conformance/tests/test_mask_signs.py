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
from conformance.judge.requirements import mask_that_explains
from conformance.model.activations import Activation, table
from conformance.model.batch import Batch
from conformance.model.gradients import grad
from conformance.numerics.formats import Array
from conformance.tests.test_faults_of_masks import DECODER, ENCODER, LENGTH, PADDED, PROBS, _applied

Constant = Callable[[torch.dtype], float]

CONSTANTS: dict[str, Constant] = {
    "10000": lambda _: 1e4,
    "1e9": lambda _: 1e9,
    "largest": lambda dtype: torch.finfo(dtype).max,
    "infinity": lambda _: math.inf,
}


EXPOSED: dict[str, Callable[[str], bool]] = {
    "all": lambda _: True,
    "without scores": lambda name: not name.endswith("self.scores"),
    "layers": lambda name: not name.startswith("encoder.") or (name.endswith("output.LayerNorm") and "attention" not in name),
}


def _candidate(added: Callable[[Tensor, Constant], Tensor], constant: str, exposed: str) -> Candidate:
    """Return a candidate that adds `added(mask, constant)`, (B, 1, 1, S), to the scores of every layer."""

    def softmax_of(scores: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(scores + added(mask[:, None, None, :].to(scores.dtype), CONSTANTS[constant]), -1)

    return Candidate([changed("probs", softmax_of)], EXPOSED[exposed])


def _wrong_sign(mask: Tensor, constant: Constant) -> Tensor:
    return (1.0 - mask) * constant(mask.dtype)


def _filled(mask: Tensor, constant: Constant) -> Tensor:
    return torch.zeros_like(mask).masked_fill(mask.bool(), -constant(mask.dtype))


def _subtracted(mask: Tensor, constant: Constant) -> Tensor:
    return (1.0 - mask) * -constant(mask.dtype)


def _names(candidate: Candidate, golden: str, dtype: str) -> list[set[str]]:
    """Return the names of each finding, which are several if the result does not distinguish them."""
    result = check(candidate, golden, dtype=dtype)
    assert result.outcome == "fail", result.reason
    return [{name for name in (found.name, *found.others) if name} for found in result.findings]


@pytest.mark.parametrize(
    ("constant", "dtype", "exposed", "name"),
    [
        ("10000", "float32", "all", "mask-sign-10000"),
        ("10000", "float32", "layers", "mask-sign-10000"),
        ("1e9", "float32", "without scores", "mask-sign"),
        ("largest", "float32", "layers", "mask-sign"),
        ("10000", "bfloat16", "without scores", "mask-sign"),
        ("largest", "bfloat16", "all", "mask-sign"),
    ],
)
def test_a_mask_added_with_the_wrong_sign_has_one_name(constant: str, dtype: str, exposed: str, name: str) -> None:
    assert _names(_candidate(_wrong_sign, constant, exposed), "tiny", dtype) == [{name}]


INVERTED = "all of the sequences without padding, and nothing else, as an inverted mask (mask-inverted)"
SUBTRACTED = "all of it, as a mask leaves it that is added as (1 − mask) · −∞"


@pytest.mark.parametrize(
    ("added", "exposed", "said"),
    [
        *((_filled, exposed, INVERTED) for exposed in EXPOSED),
        *((_subtracted, some, SUBTRACTED) for some in ("all", "without scores")),
    ],
)
def test_a_mask_of_infinity_is_said_where_it_leaves_no_number(
    added: Callable[[Tensor, Constant], Tensor], exposed: str, said: str
) -> None:
    (origin,) = check(_candidate(added, "infinity", exposed), "tiny").origins
    assert said in origin.reason


def test_other_numbers_that_are_missing_say_nothing_of_a_mask() -> None:
    ids, mask = np.zeros((3, LENGTH), np.int64), np.ones((3, LENGTH), np.int64)
    mask[1, 2:] = 0
    activation = table(ENCODER)[PROBS]

    def explained(*rows: int, activation: Activation = activation, mask: Array = mask) -> str:
        places = np.zeros((3, ENCODER.num_attention_heads, LENGTH, LENGTH), np.bool_)
        places[[*rows]] = True
        return mask_that_explains(activation, Batch(ids, ids, mask), places)

    assert "mask-inverted" in explained(0, 2)
    assert explained(0, 2, activation=replace(activation, name=grad(PROBS))) == ""
    assert explained(0) == ""  # one of two sequences without padding
    assert explained(1) == ""  # the padded one
    assert explained(0, 1, 2, mask=np.ones_like(mask)) == ""


# The faults are the functions that they describe.

UNPADDED_TOO = np.concatenate([np.ones((1, LENGTH), np.int64), PADDED[:1]])
LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(("name", "constant", "added"), [("mask-sign", LARGEST, 0), ("mask-inverted-lowest", -LARGEST, 1)])
def test_a_wrong_mask_is_the_softmax_of_the_sum_rounded_to_float32(name: str, constant: float, added: int) -> None:
    step, wrong = _applied(name, ENCODER, PROBS, attention_mask=UNPADDED_TOO)
    assert wrong
    scores, is_added = step.parents[0], np.broadcast_to(UNPADDED_TOO[:, None, None, :] == added, step.value.shape)
    summed = np.where(is_added, (scores + constant).astype(np.float32), scores)
    np.testing.assert_allclose(wrong.value, softmax(summed, np.ones_like(is_added)), atol=1e-12)


@pytest.mark.parametrize("name", ["mask-sign", "mask-sign-10000"])
def test_a_wrong_sign_lets_no_token_of_a_decoder_attend_to_a_later_one(name: str) -> None:
    step, wrong = _applied(name, DECODER, PROBS, attention_mask=PADDED)
    assert wrong
    assert not np.triu(wrong.value, 1).any()
    assert (wrong.value != step.value).any()
