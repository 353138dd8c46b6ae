"""A candidate that starts a program that is not installed, like a library that compiles at run time and finds no compiler."""

import subprocess
from typing import Any

import pytest

from conformance import check

PROGRAM = "no-such-compiler"


def _compiled(checkpoint: Any, device: str, dtype: str) -> Any:
    subprocess.run([PROGRAM, "-shared"], check=True)


def _wrapped(checkpoint: Any, device: str, dtype: str) -> Any:
    try:
        _compiled(checkpoint, device, dtype)
    except OSError as error:
        raise RuntimeError("no usable device") from error


def _in_a_ring(checkpoint: Any, device: str, dtype: str) -> Any:
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def _unread(checkpoint: Any, device: str, dtype: str) -> Any:
    return open("no such file").read()


@pytest.mark.parametrize("candidate", [_compiled, _wrapped])
def test_the_missing_program_is_named_with_the_remedy(candidate: Any) -> None:
    result = check(candidate, "tiny")
    assert result.outcome == "crash"
    assert f"the candidate starts the program '{PROGRAM}', which is not found: install it" in result.reason


@pytest.mark.parametrize("candidate", [_unread, _in_a_ring])
def test_other_errors_are_not_reported_as_a_missing_program(candidate: Any) -> None:
    result = check(candidate, "tiny")
    assert result.outcome == "crash"
    assert "starts the program" not in result.reason
