"""Conversion of given texts, arrays and lists: what is accepted, and the messages about what is not."""

import argparse
import os
from typing import Any

import pytest

from conformance.cli.arguments import utf8
from conformance.errors import UsageError
from conformance.model.batch import Batch


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


def test_a_text_given_under_an_ascii_locale_is_decoded_and_other_bytes_are_refused_by_name() -> None:
    for text in ("I love cats!", "I løve cats!", "猫"):
        assert utf8(text) == utf8(text.encode().decode("ascii", "surrogateescape")) == text
    with pytest.raises(argparse.ArgumentTypeError, match="is not UTF-8"):
        utf8(os.fsdecode("I løve cats!".encode("latin-1")))
