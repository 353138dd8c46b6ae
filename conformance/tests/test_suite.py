"""The checks and their pytest surface: what each catches, ids, known failures, options."""

from typing import Any

import pytest

from conformance import check as judge
from conformance import golden_of, load_golden
from conformance.batch import Batch
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.rewritten import places
from conformance.checks.catalogue import CHECKS, named
from conformance.checks.check import run
from conformance.errors import UnknownNameError
from conformance.tests.planted import Planted, epsilon, unscaled
from implementations.hugging_face import HuggingFace

pytest_plugins = ["pytester"]


def _no_norm(norm: Any, x: Any) -> Any:
    return x * norm.weight + norm.bias


BROKEN = {
    "values": Planted(epsilon(0)),
    "outputs": Planted(unscaled(1)),
    "stages": Planted(unscaled(0)),
    "moments": Candidate((places.norms(_no_norm),)),
}


def test_every_judgement_has_a_broken_candidate() -> None:
    assert set(BROKEN) == {name for name, check in CHECKS.items() if not check.searches}


@pytest.mark.parametrize("name", BROKEN)
def test_the_judgement_catches_its_broken_candidate(name: str) -> None:
    result = run(named(name), BROKEN[name], "tiny", "cpu", "float32")
    assert result.outcome == "fail", result
    assert result.case.check == name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", BROKEN)
def test_the_judgement_lets_an_unusual_but_correct_candidate_through(name: str, dtype: str) -> None:
    result = run(named(name), Candidate(computes="float32"), "tiny", "cpu", dtype)
    assert result.outcome == "pass", result.reason


def test_a_batch_as_small_as_they_come_is_judged() -> None:
    tiny = load_golden("tiny")
    assert judge(HuggingFace("eager"), golden_of("one", tiny.checkpoint, {"one": Batch.of({"input_ids": [[7]]})})).conforms


def test_an_unknown_check_is_told_with_those_that_there_are() -> None:
    with pytest.raises(UnknownNameError, match="there are values"):
        named("valeus")


def test_required_activations_that_are_hidden_fail() -> None:
    result = judge(HuggingFace("sdpa"), "tiny", require=["*.probs"])
    assert result.outcome == "fail"
    assert "encoder.layer.0.attention.self.probs" in result.reason
    assert judge(HuggingFace("eager"), "tiny", require=["*.probs"]).conforms


FILE = """
from conformance import parametrize_with_checks
from conformance.tests.planted import Planted, epsilon
from implementations.hugging_face import HuggingFace

good, bad = HuggingFace("eager"), Planted(epsilon(0))
good.name, bad.name = "good", "bad"

@parametrize_with_checks([good, bad], goldens=["tiny"], checks=["values", "stages"] {known})
def test_bert(check): check()
"""


def _outcomes(pytester: pytest.Pytester, known: str = "", toml: str = "") -> Any:
    pytester.makefile(".toml", known=toml)
    pytester.makepyfile(FILE.replace("{known}", known))
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rA")


KNOWN = ', known_failures="known.toml"'
ENTRY = '[[known-failure]]\ncheck = "{check}"\nimplementation = "{who}"\nreason = "epsilon is 1e-5"\nissue = "#17"\n'


def test_a_strangers_file_gets_one_test_id_a_check(pytester: pytest.Pytester) -> None:
    result = _outcomes(pytester)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        ["*epsilon is 1e-05, the checkpoint says*", "PASSED*values-good-tiny-cpu-float32?", "FAILED*bad-tiny*"]
    )


def test_known_failures_are_xfail_and_their_reason_is_told(pytester: pytest.Pytester) -> None:
    result = _outcomes(pytester, KNOWN, ENTRY.format(check="*", who="bad"))
    result.assert_outcomes(passed=2, xfailed=2)
    result.stdout.fnmatch_lines(["*epsilon is 1e-5 (#17)*"])


def test_a_known_failure_that_passes_is_a_failure(pytester: pytest.Pytester) -> None:
    result = _outcomes(pytester, KNOWN, ENTRY.format(check="values", who="good"))
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["*known failures that do not fail, to be taken off the list: values: epsilon is 1e-5 (#17)*"])


PLACED = ENTRY.format(check="values", who="bad") + 'activation = "{at}"\nfault = "{fault}"\n'


@pytest.mark.parametrize(
    ("at", "fault", "outcomes"),
    [
        ("encoder.layer.0.*", "epsilon", {"xfailed": 1}),
        ("encoder.layer.1.*", "epsilon", {"failed": 1}),
        ("encoder.layer.0.*", "norm-variance", {"failed": 1}),
    ],
    ids=["at its place", "elsewhere", "another mistake"],
)
def test_a_known_failure_holds_for_its_mistake_at_its_activation(
    pytester: pytest.Pytester, at: str, fault: str, outcomes: dict[str, int]
) -> None:
    pytester.makefile(".toml", known=PLACED.format(at=at, fault=fault))
    pytester.makepyfile(FILE.replace("{known}", KNOWN))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-k", "values-bad")
    result.assert_outcomes(**outcomes, deselected=3)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (ENTRY.format(check="valeus", who="bad"), "known failures that match nothing that is run: check 'valeus' of bad"),
        ('[[known-failure]]\ncheck = "values"\n', "lacks reason"),
        ('[[known-failure]]\ncheck = "values"\nreason = "x"\nlayer = "3"\n', "unknown layer"),
        ('[[known-failure]]\ncheck = "values"\nreason = "x"\nfault = "epsilon"\n', "lacks activation"),
        ("[[known", "cannot be read"),
    ],
)
def test_an_entry_that_is_wrong_or_idle_is_an_error(pytester: pytest.Pytester, entry: str, words: str) -> None:
    result = _outcomes(pytester, KNOWN, entry)
    assert result.ret != 0
    assert words in result.stdout.str()


def test_the_shipped_suite_takes_its_options_and_runs_under_xdist(pytester: pytest.Pytester) -> None:
    options = ("--bert-implementation", "hf-eager", "--bert-golden", "tiny", "--bert-dtype", "float32", "--bert-dtype", "bfloat16")
    result = pytester.runpytest_subprocess("--pyargs", "conformance.suite", *options, "-k", "values or outputs", "-n", "2")
    result.assert_outcomes(passed=4)


def test_the_shipped_suite_says_what_it_does_not_know(pytester: pytest.Pytester) -> None:
    options = ("--bert-implementation", "hf-eagr", "--bert-golden", "tiny")
    result = pytester.runpytest_subprocess("--pyargs", "conformance.suite", *options)
    assert result.ret != 0
    assert "did you mean hf-eager" in result.stdout.str()


def test_the_plugin_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\ndef test_light():\n    assert not {'torch', 'transformers', 'numpy', 'scipy'} & set(sys.modules)\n"
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
