"""What known failures may refer to: anything that exists, in this run or another; a misspelt name is reported with the nearest
one."""

from pathlib import Path

import pytest

from conformance.checks.apply_known_failures import apply_known_failures, expected
from conformance.checks.known_failures import KnownFailure, matched, read
from conformance.checks.validate_patterns import missing
from conformance.cli import main
from conformance.errors import UsageError
from conformance.judge.evidence import Verdict
from conformance.results.case import Case
from conformance.results.result import Result

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
        ({"activation": "encodr.layer.*"}, "no activation 'encodr.layer.*'; did you mean encoder.layer.*"),
        ({"activation": "*.output.LayerNrm"}, "no activation '*.output.LayerNrm'; did you mean *.output.LayerNorm"),
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


@pytest.mark.parametrize(
    "other",
    [
        {"check": "published-values"},
        {"check": "padding-*"},
        {"golden": "tiny"},
        {"golden": "min*"},
        {"implementation": "hf-*"},
        {"implementation": "conformance.tests.planted_mistakes:anything"},  # A candidate given by such a name is not imported.
        {"implementation": __file__},
        {"dtype": "bfloat16"},
        {"device": "cuda:1"},
        {"device": "cu*"},
    ],
    ids=str,
)
def test_an_entry_about_something_that_is_not_run_is_ignored(other: dict[str, str]) -> None:
    assert matched([KnownFailure(**{"check": "values", "reason": "x", **other})], [CASE]) == {}


@pytest.mark.parametrize(
    "placed",
    [
        {"activation": "encoder.layer.11.*"},
        {"activation": "encoder.layer.*[0-9].output.LayerNorm"},
        {"activation": "embeddings.sum"},
        {"activation": "cls.predictions.log_probs"},
        {"activation": "*", "fault": "epsilon-outside-root"},
    ],
    ids=str,
)
def test_an_entry_may_use_the_names_of_this_run_and_activations_of_any_architecture(placed: dict[str, str]) -> None:
    entry = KnownFailure("values", "x", implementation="min*", golden="my-checkpoint", **placed)
    assert matched([entry], [CASE]) == {CASE: [entry]}


def test_an_entry_about_this_run_that_matches_no_case_is_an_error() -> None:
    cases = [CASE, Case("hf-eager", "tiny")]
    with pytest.raises(UsageError, match="match nothing that is run: check 'values' of mine on tiny"):
        matched([KnownFailure("values", "x", implementation="mine", golden="tiny")], cases)


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


def _file(folder: Path) -> Path:
    file = folder / "known.toml"
    file.write_text(SLIPS)
    return file


def test_the_command_line_reports_every_error_in_a_file_before_anything_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _file(tmp_path)
    out = tmp_path / "out"
    assert main(["run", "-i", "hf-eager", "--golden", "tiny", "--known-failures", str(file), "--out", str(out)]) == 2
    rendered = capsys.readouterr().err
    assert rendered.count(f"{file}, entry 2: no ") == 4
    assert "entry 1" not in rendered
    assert not out.exists()


class Bringing:
    """A candidate that has its own file of known failures."""

    def __init__(self, file: Path) -> None:
        self.known_failures = file

    def prepare(self, checkpoint: object, device: str, dtype: str) -> object:
        raise NotImplementedError


def test_a_candidates_own_file_is_checked_in_the_same_way(tmp_path: Path) -> None:
    failed = Result(CASE, "fail", "3 activations fail", 1, executed=True, by_values=True)
    wrong = apply_known_failures(failed, Bringing(_file(tmp_path)), ())
    assert (wrong.outcome, wrong.exit_code) == ("error", 2)
    assert "no golden 'tinny'; did you mean tiny?" in wrong.reason

    right = tmp_path / "right.toml"
    right.write_text(SLIPS.split("[[known-failure]]")[1].join(["[[known-failure]]", ""]))
    assert len(read(right)) == 1
    assert apply_known_failures(failed, Bringing(right), ()).outcome == "xfail"


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


@pytest.mark.parametrize(
    "pattern",
    ["*.grad", "embeddings.LayerNorm.grad", "bert.pooler.dense.weight.grad", "step.*", "step.12.bert.pooler.dense.bias",
     "qa_outputs.loss", "encoder.layer.0.crossattention.self.query", "sentence_embedding"],
)  # fmt: skip
def test_activations_that_only_some_networks_or_checks_have_are_known(pattern: str) -> None:
    assert missing("activation", pattern) is None


@pytest.mark.parametrize("pattern", ["embeddings.LayerNomr.grad", "step.1.bert.nothing", "qa_output"])
def test_a_misspelled_gradient_or_step_of_training_is_unknown(pattern: str) -> None:
    assert f"no activation {pattern!r}" in str(missing("activation", pattern))
