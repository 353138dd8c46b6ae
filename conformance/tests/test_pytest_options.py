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


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("--bert-dtype", "floaty", "no floating-point format 'floaty'; did you mean float*"),
        ("--bert-device", "cpuu", "no device 'cpuu'; did you mean cpu?"),
    ],
)
def test_an_unknown_format_or_device_is_reported_with_the_nearest_name(
    option: str, name: str, words: str, pytester: pytest.Pytester
) -> None:
    suite = ("--pyargs", "conformance.suite", "--bert-implementation", "making-bert", "--bert-golden", "tiny")
    ended = pytester.runpytest_subprocess(*suite, option, name)
    ended.assert_outcomes(errors=1)
    ended.stdout.fnmatch_lines([f"*{words}"])


OWN = """
from conformance import parametrize_with_checks

@parametrize_with_checks(["making-bert"], goldens=["tiny"], checks=["values", "stages"])
def test_mine(check): check()
"""


@pytest.mark.parametrize("option", ["--bert-dtype", "--bert-known-failures"])
@pytest.mark.parametrize("also", [(), ("--pyargs", "conformance.suite", "--bert-implementation", "making-bert")])
def test_an_option_of_the_suite_that_has_no_effect_on_own_tests_is_reported(
    option: str, also: tuple[str, ...], pytester: pytest.Pytester, tmp_path: Path
) -> None:
    (tmp_path / "known.toml").write_text('[[known-failure]]\ncheck = "values"\nreason = "x"\n')
    value = {"--bert-dtype": "bfloat16", "--bert-known-failures": str(tmp_path / "known.toml")}[option]
    own = pytester.makepyfile(OWN)
    ended = pytester.runpytest_subprocess(str(own), "--collect-only", option, value, *also)
    assert ended.ret == 0
    warned = f"{option}: without effect on tests that are decorated with parametrize_with_checks" in ended.stdout.str()
    assert warned == (not also)
