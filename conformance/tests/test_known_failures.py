"""What known failures may refer to: anything that exists, in this run or another; a misspelt name is reported with the nearest
one."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.checks.check import Request
from conformance.checks.known_failures import apply_known_failures, expected, matched, read
from conformance.errors import UsageError
from conformance.judge.evidence import Verdict
from conformance.results.case import Case, KnownFailure
from conformance.results.result import Result
from conformance.tests.commands import Command

CASE = Case("mine", "my-checkpoint")  # Neither is registered.


@pytest.mark.parametrize(
    ("slip", "rendered"),
    [
        ({"check": "valeus"}, "no check 'valeus'; did you mean values?"),
        ({"check": "*-omited"}, "no check '*-omited'; did you mean mask-omitted"),
        ({"golden": "tinny"}, "no golden 'tinny'; did you mean tiny?"),
        ({"golden": "my-chekpoint"}, "no golden 'my-chekpoint'; did you mean my-checkpoint?"),
        ({"implementation": "hf-egaer"}, "no implementation 'hf-egaer'; did you mean hf-eager?"),
        ({"implementation": "no_such_package.conformance:bert"}, "no implementation 'no_such_package.conformance:bert'; there are"),
        ({"dtype": "float31"}, "no dtype 'float31'; did you mean float32"),
        ({"device": "cdua"}, "no device 'cdua'; did you mean cuda?"),
        ({"activation": "x"}, "no activation 'x'; `bert-conformance trace golden:tiny` prints those that there are"),
        ({"activation": "*", "fault": "epsilom"}, "no fault 'epsilom'; did you mean epsilon"),
        ({"activation": "*", "fault": "epsilon*"}, "no fault 'epsilon*'; did you mean epsilon"),  # A name and no pattern.
    ],
)
def test_an_entry_that_matches_nothing_is_an_error_with_the_nearest_name(slip: dict[str, str], rendered: str) -> None:
    entry = KnownFailure(**{"check": "values", "reason": "x", **slip})
    with pytest.raises(UsageError) as caught:
        matched([entry], [CASE])
    assert rendered in str(caught.value)


def test_an_entry_about_something_that_is_not_run_is_ignored() -> None:
    for other in (
        *({"check": name} for name in ("repeated", "padding-*")),
        *({"golden": name} for name in ("tiny", "min*")),
        # A candidate given by such a name is not imported.
        *({"implementation": name} for name in ("hf-*", "conformance.tests.planted_mistakes:anything", __file__)),
        *({"device": name} for name in ("cuda:1", "cu*")),
        {"dtype": "bfloat16"},
    ):
        assert matched([KnownFailure(**{"check": "values", "reason": "x", **other})], [CASE]) == {}, other


def test_an_entry_may_use_the_names_of_this_run_and_activations_of_any_architecture() -> None:
    names = ("encoder.layer.11.*", "encoder.layer.*[0-9].output.LayerNorm", "embeddings.sum", "cls.predictions.log_probs")
    for placed in (*({"activation": name} for name in names), {"activation": "*", "fault": "epsilon-outside-root"}):
        entry = KnownFailure("values", "x", implementation="min*", golden="my-checkpoint", **placed)
        assert matched([entry], [CASE]) == {CASE: [entry]}, placed


SLIPS = """
[[known-failure]]
check = "values"
reason = "x"
[[known-failure]]
check = "values"
golden = "tinny"
implementation = "hf-egaer"
activation = "encodr.layer.*"
fault = "epsilom"
reason = "x"
"""


def test_every_error_in_a_file_is_reported_before_anything_is_run(tmp_path: Path, command: Command) -> None:
    file, out = tmp_path / "known.toml", tmp_path / "out"
    file.write_text(SLIPS)
    ended = command("run", "hf-eager", "--golden", "tiny", "--known-failures", file, "-o", out)
    assert (ended.code, ended.err.count(f"{file}, entry 2: no "), "entry 1" in ended.err) == (2, 4, False)
    assert not out.exists()


def test_a_candidates_own_file_is_checked_in_the_same_way(tmp_path: Path) -> None:
    failed = Result(CASE, "fail", "3 activations fail", 1, executed=True, by_values=True)
    wrong, right = tmp_path / "wrong.toml", tmp_path / "right.toml"
    wrong.write_text(SLIPS)
    right.write_text(SLIPS.partition("[[known-failure]]")[0] + "[[known-failure]]" + SLIPS.split("[[known-failure]]")[1])
    of_wrong, of_right = (Request.of(SimpleNamespace(known_failures=file, prepare=print)) for file in (wrong, right))
    refused = apply_known_failures(failed, of_wrong)
    assert (refused.outcome, refused.exit_code) == ("error", 2)
    assert "no golden 'tinny'; did you mean tiny?" in refused.reason
    assert len(read(right)) == 1
    assert apply_known_failures(failed, of_right).outcome == "xfail"


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
