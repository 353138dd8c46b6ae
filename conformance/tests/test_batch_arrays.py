"""Conversion of arrays and lists to a batch: what is accepted, and the messages about what is not."""

from typing import Any

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.model.batch import Batch


def test_an_array_that_is_none_is_not_given() -> None:
    batch = Batch.of({"input_ids": [[1, 2]], "attention_mask": None, "encoder_hidden_states": None})
    assert batch.attention_mask is None


@pytest.mark.parametrize("mask", [[[True, False]], np.array([[True, False]])])
def test_a_mask_may_have_booleans(mask: Any) -> None:
    assert np.array_equal(Batch.of({"input_ids": [[1, 2]], "attention_mask": mask}).mask, [[True, False]])


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([[2**63]], "input_ids has the value 9223372036854775808, expected integers of at most 64 bits"),
        ([[1, -(2**64)]], "input_ids has the value -18446744073709551616, expected integers of at most 64 bits"),
        ([[1, None]], "input_ids has the value None, expected integers"),
        ([[True, False]], "input_ids has bool values, expected integers"),
        (None, "a batch has input_ids"),
    ],
)
def test_values_that_are_no_integers_of_64_bits_are_named(ids: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Batch.of({"input_ids": ids})
