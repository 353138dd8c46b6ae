"""Types of command-line arguments: texts in another encoding than that of the locale."""

import argparse
import os

import pytest

from conformance.cli.argument_types import utf8


@pytest.mark.parametrize("text", ["I love cats!", "I løve cats!", "猫"])
def test_a_text_that_was_decoded_is_unchanged(text: str) -> None:
    assert utf8(text) == text


def test_utf8_under_an_ascii_locale_is_decoded() -> None:
    assert utf8("I løve cats!".encode().decode("ascii", "surrogateescape")) == "I løve cats!"


def test_other_bytes_are_refused_by_name() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not UTF-8"):
        utf8(os.fsdecode("I løve cats!".encode("latin-1")))
