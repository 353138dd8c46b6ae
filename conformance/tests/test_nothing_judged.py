"""The pytest interface: a session that judges nothing fails, and invalid lists, devices and options are reported."""

from types import SimpleNamespace

import pytest

from conformance import check
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.errors import Unavailable, UsageError
from conformance.implementations.making_bert import making_bert
from conformance.numerics.devices import require_device
from conformance.results.file import read_results
from conformance.suite.parametrize import bound_checks
from conformance.suite.pytest_session import Tally

pytest_plugins = ["pytester"]

QUICK = "registered-tensors"
FILE = """
import pytest
from conformance import parametrize_with_checks
from conformance.implementations.making_bert import making_bert

def test_own():
    pass

{mark}
@parametrize_with_checks({lists})
def test_bert(check):
    {body}
"""
ABSENT = f"[making_bert], devices=['cuda:99'], goldens=['tiny'], checks=['{QUICK}', 'repeated']"
NOTHING = "*BERT conformance: nothing was judged*"


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Import what a check imports: pytester forgets modules first imported while it runs, and torch cannot be imported twice."""
    assert run_check(Request.of(making_bert, "tiny", "cpu", "float32", QUICK)).conforms


def _ran(pytester: pytest.Pytester, lists: str, *options: str, body: str = "check()", mark: str = "") -> pytest.RunResult:
    pytester.makepyfile(FILE.format(lists=lists, body=body, mark=mark))
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)


CALLED = f"[making_bert], goldens=['tiny'], checks=['{QUICK}']"
UNSUPPORTED = "[making_bert], goldens=['sinusoidal'], checks=['values']"
MANY = CALLED.replace("goldens", f"devices={[f'cuda:{90 + i}' for i in range(7)] + ['cuda:95']}, goldens")
FAILS = "; a session that judges nothing fails"
IS_ABSENT = "2 skipped: device 'cuda:99' is not available here: *"

# Lists, options, the test's body, numbers of outcomes, and what is said.
NOTHING_JUDGED: dict[str, tuple[str, tuple[str, ...], str, dict[str, int], tuple[str, ...]]] = {
    "absent device": (ABSENT, (), "check()", {"passed": 1, "skipped": 2}, (f"ran 0 / 2 declared checks{FAILS}", IS_ABSENT)),
    "in a worker": (ABSENT, ("-n", "1"), "check()", {"passed": 1, "skipped": 2}, (f"ran 0 / 2 declared checks{FAILS}", IS_ABSENT)),
    "not supported": (
        UNSUPPORTED, (), "check()", {"passed": 1, "skipped": 1},
        (f"ran 0 / 0 declared checks, 1 more not supported by the candidate{FAILS}", "1 skipped: the exercise's Bert ends in a *"),
    ),
    "not called": (
        CALLED, (), "check", {"passed": 2},
        (f"ran 0 / 1 declared check{FAILS}", "1 not called by a test that takes its check and passes"),
    ),
    "many reasons": (
        MANY, (), "check()", {"passed": 1, "skipped": 8},
        ("ran 0 / 8 declared checks; *", "2 skipped: device 'cuda:95' *", "and 2 more reasons; pytest -rs lists all"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING_JUDGED)
def test_a_session_in_which_no_declared_check_ran_fails_though_all_other_tests_pass(name: str, pytester: pytest.Pytester) -> None:
    lists, options, body, outcomes, lines = NOTHING_JUDGED[name]
    result = _ran(pytester, lists, *options, "--bert-out", "out", body=body)
    result.assert_outcomes(**outcomes)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([NOTHING, *lines])
    if name == "absent device":
        footer = read_results(pytester.path / "out" / "results.jsonl").footer
        assert footer
        assert (footer.ran, footer.exit_code) == (0, 1)


@pytest.mark.parametrize(
    ("lists", "options", "mark", "outcomes", "code"),
    [
        (ABSENT.replace("['cuda", "['cpu', 'cuda").replace(", 'repeated'", ""), (), "", {"passed": 2, "skipped": 1}, 0),
        (ABSENT, ("-k", "own"), "", {"passed": 1, "deselected": 2}, 0),
        (ABSENT, ("--collect-only",), "", {}, 0),
        (ABSENT, (), "@pytest.mark.skipif(True, reason='no CUDA here')", {"passed": 1, "skipped": 2}, 0),
        (ABSENT, ("--maxfail", "1"), "def test_wrong(): assert False\n", {"passed": 1, "failed": 1}, 1),
    ],
    ids=["one of them ran", "deselected", "only collected", "a mark of one's own", "a test of one's own fails"],
)
def test_a_session_in_which_a_check_ran_or_none_was_started_keeps_its_exit_status(
    pytester: pytest.Pytester, lists: str, options: tuple[str, ...], mark: str, outcomes: dict[str, int], code: int
) -> None:
    result = _ran(pytester, lists, *options, mark=mark)
    result.assert_outcomes(**outcomes)
    assert result.ret == code
    result.stdout.no_fnmatch_line(NOTHING)


@pytest.mark.parametrize("check", ["values", "stages"])
def test_a_violation_of_the_contract_before_the_first_verdict_counts_as_a_check_that_ran(
    pytester: pytest.Pytester, check: str
) -> None:
    own = "def prepare(checkpoint, device, dtype): return lambda batch: {'embeddings.LayerNorm': batch.input_ids}"
    lists = f"[prepare], goldens=['tiny'], checks=['{check}']"
    result = _ran(pytester, lists, "--bert-out", "out", mark=own)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line(NOTHING)
    footer = read_results(pytester.path / "out" / "results.jsonl").footer
    assert footer is not None
    assert (footer.declared, footer.ran, footer.outcomes) == (1, 1, {"fail": 1})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"implementations": []}, "implementations is empty, so nothing would be checked; write one or more, as in impl"),
        (
            {"implementations": "hf-eager"},
            "implementations is the text 'hf-eager', and no list; write implementations=['hf-eager']",
        ),
        ({"implementations": making_bert}, "implementations is one TorchImplementation, and no list; put it in brackets"),
        ({"goldens": "tiny"}, "write goldens=['tiny']"),
        ({"devices": "cpu"}, "write devices=['cpu']"),
        ({"devices": []}, "devices is empty, so nothing would be checked; write one or more, as in devices=['cpu']"),
        ({"dtypes": ()}, "as in dtypes=['float32']"),
        ({"checks": "values"}, "write checks=['values']"),
        ({"goldens": ["tinny"]}, "no golden 'tinny', and no folder is called so; did you mean tiny?"),
        ({"goldens": ["none"]}, "there are tiny, edges"),
        ({"devices": ["cpu", "cpuu"]}, "no device 'cpuu'; did you mean cpu?"),
        ({"devices": ["cdua:1"]}, "no device 'cdua:1'; did you mean cuda?"),
        ({"devices": ["banana"]}, "no device 'banana': Expected one of cpu, cuda"),
        ({"dtypes": ["float32", "floaty"]}, "no floating-point format 'floaty'; did you mean float"),
        ({"dtypes": ["none"]}, "no floating-point format 'none'; there are float64, float32, bfloat16, float16"),
        ({"checks": ["valeus"]}, "no check 'valeus'; did you mean values?"),
        ({"checks": ["none"]}, "there are values, outputs"),
    ],
)
def test_an_invalid_list_or_one_with_unknown_names_is_reported(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        bound_checks(**{"implementations": [making_bert], **given})  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_an_unreadable_device_is_a_usage_error_and_an_absent_one_a_skip() -> None:
    with pytest.raises(UsageError, match="no device 'banana': Expected one of cpu, cuda"):
        require_device("banana")
    with pytest.raises(Unavailable, match="is not available here"):
        require_device("cuda:99")
    for of_golden in (
        check(making_bert, device="banana"),
        run_check(Request.of(making_bert, "tiny", "banana", "float32", "repeated")),
    ):
        assert (of_golden.outcome, of_golden.exit_code) == ("error", 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *((("--bert-examples", n), f"*--bert-examples: '{n}' is not an integer of at least 1*") for n in ("0", "-3", "many")),
        (("--bert-out", f"{__file__}/out"), "ERROR: --bert-out *Not a directory*"),
    ],
)
def test_an_invalid_option_is_a_usage_error(options: tuple[str, str], words: str, pytester: pytest.Pytester) -> None:
    ended = pytester.runpytest_subprocess(*options)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines([words])
    assert "INTERNALERROR" not in ended.stdout.str() + ended.stderr.str()


def test_the_summary_has_each_mistake_once_with_the_number_of_checks_that_found_it() -> None:
    tally, lines = Tally(), list[str]()
    tally.pytest_runtest_logreport(SimpleNamespace(bert_conformance=[(True, True, "", ("a", "b")), (True, True, "", ("a",))]))
    tally.pytest_terminal_summary(SimpleNamespace(section=lambda *_, **__: None, line=lines.append))
    assert lines == ["2 a", "1 b"]
