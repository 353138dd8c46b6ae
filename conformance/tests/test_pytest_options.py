"""The options of the pytest plug-in: invalid ones are usage errors, and one without effect is reported."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("number", ["0", "-3", "many"])
def test_a_number_of_examples_is_at_least_one(number: str, pytester: pytest.Pytester) -> None:
    ended = pytester.runpytest_subprocess("--bert-examples", number)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines([f"*--bert-examples: '{number}' is not an integer of at least 1*"])


def test_an_output_folder_that_cannot_be_made_is_a_usage_error(pytester: pytest.Pytester, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = pytester.runpytest_subprocess("--bert-out", str(tmp_path / "file" / "out"))
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["ERROR: --bert-out *Not a directory*"])
    assert "INTERNALERROR" not in ended.stdout.str() + ended.stderr.str()
