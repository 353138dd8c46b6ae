"""What known failures may refer to: a check, a format or a fault that does not exist is reported with the nearest name."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.checks.check import Request
from conformance.checks.known_failures import apply_known_failures, expected, read, require_matches
from conformance.errors import UsageError
from conformance.judge.evidence import Verdict
from conformance.results.case import Case, KnownFailure
from conformance.results.result import Result
from conformance.tests.commands import Command

CASE = Case("mine", "my-checkpoint")  # Neither is registered.
ENTRY = '[[known-failure]]\ncheck = "values"\nreason = "x"\n'


@pytest.mark.parametrize(
    ("slip", "rendered"),
    [
        ('[[known-failure]]\nreason = "x"\ncheck = "valeus"', "no check 'valeus'; did you mean values?"),
        ('[[known-failure]]\nreason = "x"\ncheck = "*-omited"', "no check '*-omited'; did you mean mask-omitted"),
        (f'{ENTRY}dtype = "float31"', "no dtype 'float31'; did you mean float32"),
        (f'{ENTRY}activation = "encoder.layer.7.outptu.LayerNorm"', "did you mean encoder.layer.0.output.LayerNorm"),
        (f'{ENTRY}activation = "*"\nfault = "epsilom"', "no fault 'epsilom'; did you mean epsilon"),
        (f'{ENTRY}activation = "*"\nfault = "epsilon*"', "no fault 'epsilon*'; did you mean epsilon"),  # A name and no pattern.
    ],
)
def test_a_name_that_does_not_exist_is_an_error_with_the_nearest_name(slip: str, rendered: str, tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(f"{ENTRY}{slip}")
    with pytest.raises(UsageError) as caught:
        read(file)
    assert f"{file}, entry 2: no " in str(caught.value)
    assert rendered in str(caught.value)


@pytest.mark.parametrize(
    ("slip", "why"),
    [
        ('golden = "minlm"', "no golden 'minlm'; did you mean minilm"),
        ('implementation = "hf-egaer"', "no implementation 'hf-egaer'; did you mean hf-eager"),
        ('golden = "wide"\ndtype = "bfloat16"', "check 'values' of * on wide, *, bfloat16 is not run"),
    ],
)
def test_an_entry_that_matches_nothing_is_an_error(slip: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(f"{ENTRY}{slip}")
    cases = [CASE, replace(CASE, golden="wide"), replace(CASE, dtype="bfloat16")]
    with pytest.raises(UsageError) as caught:
        require_matches(read(file), cases)
    assert f"{file}, entry 1: {why}" in str(caught.value)


def test_an_entry_of_another_run_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    for other in (
        'golden = "min*"',
        'implementation = "no_such_package:bert"',
        'device = "cuda:1"',
        'golden = "wide"',
        'activation = "encoder.layer.40.output.LayerNorm"',
    ):
        file.write_text(f"{ENTRY}{other}")
        require_matches(read(file), [CASE])


def test_an_entry_about_something_that_is_not_run_is_ignored(tmp_path: Path) -> None:
    failed, file = Result(CASE, "fail", "3 activations fail", 1, executed=True, by_values=True), tmp_path / "known.toml"
    for other in ('golden = "min*"', 'implementation = "no_such_package:bert"', 'device = "cuda:1"', 'dtype = "bfloat16"'):
        file.write_text(f"{ENTRY}{other}")
        assert expected(failed, read(file)) == failed


def test_a_wrong_file_is_reported_before_anything_is_run(tmp_path: Path, command: Command) -> None:
    file, out = tmp_path / "known.toml", tmp_path / "out"
    file.write_text(f'{ENTRY}dtype = "float31"')
    ended = command("run", "hf-eager", "--golden", "tiny", "--known-failures", file, "-o", out)
    assert (ended.code, f"{file}, entry 1: no dtype" in ended.err) == (2, True)
    assert not out.exists()


def test_a_candidates_own_file_is_checked_in_the_same_way(tmp_path: Path) -> None:
    failed, file = Result(CASE, "fail", "3 activations fail", 1, executed=True, by_values=True), tmp_path / "known.toml"
    request = Request.of(SimpleNamespace(known_failures=file, prepare=print))
    file.write_text(f'{ENTRY}dtype = "float31"')
    refused = apply_known_failures(failed, request)
    assert (refused.outcome, refused.exit_code) == ("error", 2)
    assert "no dtype 'float31'; did you mean float32" in refused.reason
    file.write_text(ENTRY)
    assert apply_known_failures(failed, request).outcome == "xfail"


def test_an_attribute_that_is_no_path_is_the_candidates_crash_and_ends_no_run() -> None:
    result = apply_known_failures(Result(CASE, "pass"), Request.of(SimpleNamespace(prepare=print, known_failures=5)))
    assert (result.outcome, result.exit_code) == ("crash", 1)
    assert "PathLike object, not int" in result.reason


def test_a_known_failure_that_is_not_finite_does_not_excuse_the_activations_not_judged_because_of_it() -> None:
    broken = Verdict("embeddings.LayerNorm", "norm", "fail", "origin", reason="not finite")
    name = "encoder.layer.0.attention.self.query"
    after = Verdict(name, "linear", "not_observed", reason="embeddings.LayerNorm is not finite", why_unjudged="non-finite parent")
    result = Result(CASE, "fail", "1 of 2 fails", 1, verdicts=(broken, after), by_values=True)
    there = KnownFailure("values", "it overflows", activation="embeddings.LayerNorm")
    alone = expected(result, [there])
    assert (alone.outcome, alone.exit_code) == ("fail", 1)
    assert "1 activations are not judged: encoder.layer.0.attention.self.query" in alone.reason
    assert expected(result, [there, KnownFailure("values", "so is the rest", activation="encoder.*")]).outcome == "xfail"
    assert expected(result, [KnownFailure("values", "it overflows")]).outcome == "xfail"
