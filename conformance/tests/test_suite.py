"""The checks and their pytest interface: what each check catches, test ids, known failures and options."""

import subprocess
import sys
from collections.abc import Mapping
from xml.etree import ElementTree

import pytest

from conformance import check as judge
from conformance.benchmarks.gradients.correct import CORRECT
from conformance.benchmarks.gradients.wrong import WRONG, WithWrongBackward
from conformance.benchmarks.training import dropouts, initial, loops
from conformance.checks.catalogue import CHECKS
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.implementations.hugging_face import HuggingFace
from conformance.results.file import read_results
from conformance.tests.broken_pipelines import BROKEN as BROKEN_PIPELINES
from conformance.tests.planted_mistakes import Planted, epsilon, unscaled

pytest_plugins = ["pytester"]


BROKEN = {
    "values": Planted(epsilon(0)),
    "outputs": Planted(unscaled(1)),
    "stages": Planted(unscaled(0)),
    "gradients": WithWrongBackward(WRONG["mean detached"]),
    "training-mode": dropouts.WRONG["rate doubled"].candidate,
    "initialization": initial.WRONG["torch's defaults"].candidate,
    "optimizer-step": loops.WRONG["decay on biases and norms"].loop.candidate,
    "schedule": loops.WRONG["warm-up one step ahead"].loop.candidate,
}

_SHOWN = CORRECT["everything in float32, rounded when shown"]
UNUSUAL = dict.fromkeys(BROKEN, _SHOWN.variant) | {
    "gradients": _SHOWN,
    "training-mode": dropouts.CORRECT["filled, then multiplied"].candidate,
    "initialization": initial.CORRECT["truncated at two deviations, as in Google's code"].candidate,
    "optimizer-step": loops.CORRECT["accumulated over micro-batches"].candidate,
    "schedule": loops.CORRECT["fused"].candidate,
}


# The other checks have their broken candidates in tests of their own: `test_pretraining_data`, `test_loss_curve`.
ELSEWHERE = {*(name for _, name, _ in BROKEN_PIPELINES.values()), "learning", "loss-curve"}


def test_every_judgement_has_a_broken_candidate() -> None:
    assert set(BROKEN) | ELSEWHERE == {name for name, check in CHECKS.items() if not check.searches}


@pytest.mark.parametrize("name", BROKEN)
def test_the_judgement_catches_its_broken_candidate(name: str) -> None:
    result = run_check(Request.of(BROKEN[name], "tiny", "cpu", "float32", name))
    assert result.outcome == "fail", result
    assert result.case.check == name


# Other correct loops are judged by default in `test_training_loops`.
@pytest.mark.landing({"name": ["values", "gradients"]}, name=[*BROKEN][:-2], dtype="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", BROKEN)
def test_the_judgement_passes_an_unusual_correct_candidate(name: str, dtype: str) -> None:
    result = run_check(Request.of(UNUSUAL[name], "tiny", "cpu", dtype, name))
    assert result.outcome == "pass", result.reason


def test_required_activations_that_are_hidden_fail_without_a_finding() -> None:
    result = judge(HuggingFace("sdpa"), "tiny", require=["*.probs"], depth="screen")
    assert (result.outcome, result.findings) == ("fail", ())
    assert "required activations are not exposed: encoder.layer.0.attention.self.probs" in result.reason
    assert judge(HuggingFace("eager"), "tiny", require=["*.probs"], depth="screen").conforms


FILE = """
from conformance import parametrize_with_checks
from conformance.tests.planted_mistakes import Planted, epsilon
from conformance.implementations.hugging_face import HuggingFace

good, bad = HuggingFace("eager"), Planted(epsilon(0))
good.name, bad.name = "good", "bad"

@parametrize_with_checks([good, bad], goldens=["tiny"], checks=["values", "stages"] {known})
def test_bert(check): check()
"""

ENTRY = '[[known-failure]]\ncheck = "{check}"\nimplementation = "{who}"\nreason = "epsilon is 1e-5"\nissue = "#17"\n'
PLACED = ENTRY.format(check="values", who="bad") + 'activation = "{at}"\nfault = "{fault}"\n'

# Test files of users, by the known failures in each.
KNOWN = {
    "none": "",
    "all_of_one": ENTRY.format(check="*", who="bad"),
    "that_passes": ENTRY.format(check="values", who="good"),
    "at_its_place": PLACED.format(at="encoder.layer.0.*", fault="epsilon"),
    "elsewhere": PLACED.format(at="encoder.layer.1.*", fault="epsilon"),
    "another_mistake": PLACED.format(at="encoder.layer.0.*", fault="norm-variance"),
}
WRONG = {
    "matches_nothing": (
        ENTRY.format(check="valeus", who="bad"),
        "no check 'valeus'; did you mean values?",
    ),
    "lacks_reason": ('[[known-failure]]\ncheck = "values"\n', "lacks reason"),
    "unknown_layer": ('[[known-failure]]\ncheck = "values"\nreason = "x"\nlayer = "3"\n', "unknown layer"),
    "lacks_activation": ('[[known-failure]]\ncheck = "values"\nreason = "x"\nfault = "epsilon"\n', "lacks activation"),
    "unreadable": ("[[known", "cannot be read"),
}

Told = Mapping[str, Mapping[str, tuple[str, str]]]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Run all these files once; return the outcome and the report of each test, by file and test id."""
    folder = tmp_path_factory.mktemp("strangers")
    for name, toml in (KNOWN | {name: toml for name, (toml, _) in WRONG.items()}).items():
        (folder / f"{name}.toml").write_text(toml, "utf-8")
        known = f', known_failures="{name}.toml"' if toml else ""
        (folder / f"test_{name}.py").write_text(FILE.replace("{known}", known), "utf-8")
    options = ("-p", "no:cacheprovider", "--continue-on-collection-errors", "--junitxml", "results.xml")
    done = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for case in ElementTree.parse(folder / "results.xml").iter("testcase"):
        file = case.get("classname") or case.get("name", "")  # A collection error has no class name.
        (outcome, words), *_ = [(c.get("type") or c.tag, f"{c.get('message')}\n{c.text}") for c in case] or [("passed", "")]
        found.setdefault(file.removeprefix("test_"), {})[case.get("name", "")] = (outcome, words)
    return found


@pytest.mark.parametrize(
    ("file", "outcomes", "case", "words"),
    [
        ("none", ("failure", "failure"), "values-bad", "epsilon is 1e-05, the checkpoint says"),
        ("all_of_one", ("pytest.xfail", "pytest.xfail"), "values-bad", "epsilon is 1e-5 (#17)"),
        (
            "that_passes",
            ("failure", "failure"),
            "values-good",
            "known failures that do not fail, to be taken off the list: values: epsilon is 1e-5 (#17)",
        ),
        ("at_its_place", ("pytest.xfail", "failure"), "values-bad", "epsilon is 1e-5 (#17)"),
        ("elsewhere", ("failure", "failure"), "values-bad", "epsilon"),
        ("another_mistake", ("failure", "failure"), "values-bad", "epsilon"),
    ],
)
def test_a_users_file_gets_one_test_id_for_each_check_and_xfail_for_its_known_failures_alone(
    rendered: Told, file: str, outcomes: tuple[str, str], case: str, words: str
) -> None:
    good = "failure" if file == "that_passes" else "passed"
    values, stages = outcomes
    expected = {"values-good": good, "stages-good": "passed", "values-bad": values, "stages-bad": stages}
    assert {name: rendered[file][f"test_bert[{name}-tiny-cpu-float32]"][0] for name in expected} == expected
    assert len(rendered[file]) == len(expected)
    assert words in rendered[file][f"test_bert[{case}-tiny-cpu-float32]"][1]


@pytest.mark.parametrize("file", WRONG)
def test_a_wrong_or_idle_entry_is_an_error(rendered: Told, file: str) -> None:
    (outcome, words) = rendered[file][f"test_{file}"]
    assert outcome == "error"
    assert WRONG[file][1] in words
    assert len(rendered[file]) == 1  # None of its tests is run.


def test_the_plugin_imports_no_heavy_module(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\ndef test_light():\n    assert not {'torch', 'transformers', 'numpy', 'scipy'} & set(sys.modules)\n"
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


DYING = """
import os
from conformance import parametrize_with_checks
from conformance.implementations.making_bert import making_bert

class Dying:
    name = "dying"
    def prepare(self, checkpoint, device, dtype): os._exit(3)

@parametrize_with_checks([Dying(), making_bert], goldens=["tiny"], checks=["registered-tensors"])
def test_bert(check): check()
"""


def test_results_of_other_workers_are_reported_when_a_worker_dies(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(DYING)
    pytester.runpytest_subprocess("--bert-out", "out", "-n", "2").assert_outcomes(passed=1, failed=1)
    files = sorted((pytester.path / "out").glob("results-*.jsonl"))
    results = read_results(*files)
    assert [(check.implementation, check.outcome) for check in results.checks] == [("making-bert", "pass")]
    (note,) = results.notes
    assert note.text.endswith("it was cut short, and has no footer")


DELETING = """
import os
from conformance import parametrize_with_checks
from conformance.implementations.making_bert import making_bert

class Deleting:
    name = "deleting"
    def prepare(self, checkpoint, device, dtype):
        os.remove("out/results.jsonl")
        return making_bert.prepare(checkpoint, device, dtype)

@parametrize_with_checks([making_bert, Deleting()], goldens=["tiny"], checks=["values"])
def test_bert(check): check()
"""


def test_a_candidate_that_deletes_the_results_file_does_not_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(DELETING)
    ended = pytester.runpytest_subprocess("--bert-out", "out")
    ended.assert_outcomes(passed=1, failed=1)
    ended.stdout.fnmatch_lines(["*has been deleted or changed while it was written: the results are in no file*"])
