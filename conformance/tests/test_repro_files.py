"""What is written for a failure: a script, and a record that suffices elsewhere; and its replay."""

import ast
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.checks.check import Plan, Request
from conformance.checks.recording import Recording
from conformance.checks.replay import replayed
from conformance.checks.repro import leave, script_path
from conformance.checks.run_check import run_check
from conformance.checks.run_header import header_of
from conformance.checks.snippet import decorator, snippet
from conformance.cli import main
from conformance.model.batch import Batch
from conformance.report.case import command as command_of
from conformance.results.case import Case
from conformance.results.example import Example, LawBroken, Location, Run
from conformance.results.file import read_results
from conformance.results.result import Counterexample, Result
from conformance.results.to_records import records_of
from conformance.tests.commands import Command
from conformance.tests.forked import run_python
from conformance.tests.lawless import BROKEN
from conformance.tests.planted_mistakes import MadeOf, Planted, epsilon
from conformance.tests.test_own_checkpoints import LAST, _write

leaking = BROKEN["padding-length"]
clipping = BROKEN["ids-refused"]
mutating = BROKEN["inputs-untouched"]
stale = BROKEN["called-again"]
misreading = BROKEN["tokenization"]
training = BROKEN["dropout-off"]
untied = BROKEN["tied-weights"]
unregistered = BROKEN["registered-tensors"]
halved = Planted(epsilon(0))

CASES = {
    "leaking": ("padding-length", "differ by"),
    "clipping": ("ids-refused", "is accepted, where it must be refused"),
    "mutating": ("inputs-untouched", "[[0, 1]"),
    "stale": ("called-again", "differ by"),
    "training": ("dropout-off", "eval() was not called"),
    "untied": ("tied-weights", "are equal and not tied"),
    "unregistered": ("registered-tensors", "neither parameter nor buffer"),
    "misreading": ("tokenization", "AssertionError"),
    "halved": ("values", "expected"),
}
HERE = "conformance.tests.test_repro_files"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run in which each of the candidates fails its check."""
    out = tmp_path_factory.mktemp("left")
    for name, (failing, _) in CASES.items():
        assert main(["run", f"{HERE}:{name}", "--golden", "tiny", "--check", failing, "--in-process", "-o", str(out / name)]) == 1
    return out


def _left(folder: Path) -> Path:
    (found,) = (folder / "failures").glob("*.py")
    return found


SHOWN = f"""
import os, runpy, sys
import {HERE}, transformers.models.bert.modeling_bert  # what all of them import, once

for script in sys.argv[1:]:
    if not os.fork():
        output = os.open(script + ".output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1), os.dup2(output, 2)
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.fixture(scope="module")
def shown(left: Path) -> dict[str, tuple[int, str]]:
    """Return the exit code and the output of every script, each run in its own process."""
    scripts = {name: _left(left / name) for name in CASES}
    done = run_python("-c", SHOWN, *map(str, scripts.values()))
    assert done.returncode == 0, done.stderr
    codes = zip(scripts.items(), done.stdout.split(), strict=True)
    return {name: (int(code), Path(f"{script}.output").read_text("utf-8")) for (name, script), code in codes}


@pytest.mark.parametrize("name", CASES)
def test_the_script_reproduces_the_failure_without_the_suite(name: str, left: Path, shown: dict[str, tuple[int, str]]) -> None:
    script = _left(left / name).read_text("utf-8")
    imports = [line for line in script.splitlines() if line.startswith(("import ", "from ")) and HERE not in line]
    allowed = (
        "import sys",
        "import torch",
        "from conformance import Batch, load_golden, load_implementation",
        "from conformance.checks.laws.tokenization import VOCABULARY",
    )
    assert set(imports) <= set(allowed)
    code, rendered = shown[name]
    assert code == 1, rendered
    assert CASES[name][1] in rendered


@pytest.mark.parametrize("name", ["leaking", "clipping", "misreading", "halved"])
def test_replay_runs_the_failures_of_a_results_file(name: str, left: Path, command: Command) -> None:
    ended = command("replay", left / name / "results.jsonl", "--format", "json")
    record = json.loads(ended.out)["cases"][0]["check"]
    assert (ended.code, record["check"], record["outcome"]) == (1, CASES[name][0], "fail")
    assert record["tried"] in (0, 1)  # The stored example is run; there is no search.


def test_the_record_has_the_smallest_batch(left: Path) -> None:
    (check,) = read_results(left / "leaking" / "results.jsonl").checks
    assert check.counterexample
    found = check.counterexample
    assert (found.network, len(found.batch["input_ids"]), found.variation["tokens"], len(found.runs)) == ("tiny", 1, 1, 2)


HOSTILE_NAMES = (
    *("x\nimport os; os.abort()", 'a:b"""', "a:b'''", 'ends with "', "a.b:c-d", "a:class", "a b:c", "\u202e:x", "\ud800:x", "a\\"),
    "m:o.p",
)
NAMES = st.one_of(st.text(max_size=60), st.sampled_from(HOSTILE_NAMES))


@given(NAMES, st.text(max_size=60), st.sampled_from(["tiny", "checkpoint:/a'b\"\n/c"]))
def test_a_script_and_its_line_for_a_test_parse_and_contain_names_only_as_string_literals(
    name: str, reason: str, network: str
) -> None:
    batch = Batch.of({"input_ids": [[1, 2]]})
    example, place = Example(batch), Location("pooler.dense", (0, 1), (0, 1), (1.0, 2.0))
    case = Case(name, "tiny", check="values")
    once, other = {"run-1": Run(batch, {})}, {"run-2": Run(batch, {})}
    afresh = {"run-2": Run(batch, {}, afresh=True)}
    broken = LawBroken(reason, place=place, excess=2.0)
    found_in = [Counterexample(example, runs, broken, network=network) for runs in (once, once | other, once | afresh)]
    for found in (*found_in, *(Counterexample(example, {}, crashes=crashes, network=network) for crashes in (True, False))):
        source = snippet(case, name, found, reason)
        source.encode()  # The name can be encoded.
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
        assert calls <= CALLS
    (added,) = ast.parse(f"{decorator(case, example)}\ndef test(): pass").body[0].decorator_list  # type: ignore[attr-defined]
    assert ast.unparse(added.func) == "conformance.example"


CALLS = {
    "sys.path.insert", "load_golden", "load_directory", "load_implementation", "Path", "candidate.prepare", "dict", "runner",
    "Batch.of", "run", "float", "print", "abs", "SystemExit", "getattr", "prepared", "Batch.of(inputs).on",
}  # fmt: skip


def test_a_script_that_cannot_be_written_or_removed_is_reported_and_the_result_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, passed = (run_check(Request.of(candidate, "tiny")) for candidate in (halved, "hf-eager"))

    def recorded(result: Result) -> str:
        with Recording(tmp_path / "results.jsonl", header_of("cpu", {}, Plan())) as recording:
            leave(result, tmp_path / "failures")
            recording.add(records_of(result))
        assert [found.outcome for found in read_results(tmp_path / "results.jsonl").checks] == [result.outcome]
        return capsys.readouterr().err

    for result, done in ((failed, "written"), (passed, "removed")):
        script_path(result.case, tmp_path / "failures").mkdir(parents=True, exist_ok=True)  # a folder in the file's place
        assert recorded(result).startswith(f"the script that shows the failure of {result.case} could not be {done}: ")


HIDING = f"{HERE}:hiding_the_last"
hiding_the_last = MadeOf(lambda found: {name: value for name, value in found.items() if name != LAST})
REQUIRED = ("--require-activations", "*.layer.1.output.LayerNorm")


def test_required_activations_are_required_again_and_by_the_pages_command(tmp_path: Path) -> None:
    run = ["run", "hf-sdpa", "--golden", "tiny", "--require-activations", "*.scores", "--in-process"]
    assert main([*run, "--depth", "screen", "-o", str(tmp_path)]) == 1
    (repeated,) = replayed(tmp_path / "results.jsonl")
    assert (repeated.outcome, repeated.require) == ("fail", ("*.scores",))
    assert "required activations are not exposed: encoder.layer.0.attention.self.scores" in repeated.reason
    results = read_results(tmp_path / "results.jsonl")
    again = command_of(results.cases[0].check, results.headers)
    assert again.startswith("bert-conformance run hf-sdpa --golden tiny --require-activations '*.scores'")


def test_a_failure_that_cannot_be_replayed_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _write(tmp_path / "tiny-bert")
    run = ["run", HIDING, "--checkpoint", str(folder), "--golden", "tiny", *REQUIRED, "--in-process"]
    assert main([*run, "-o", str(tmp_path / "out")]) == 1
    results = read_results(tmp_path / "out" / "results.jsonl")
    again = command_of(results.cases[0].check, results.headers)
    assert again.startswith(f"bert-conformance run {HIDING} --checkpoint {folder}")
    shutil.rmtree(folder)
    cannot, can = replayed(tmp_path / "out" / "results.jsonl")
    assert (cannot.case, cannot.outcome, cannot.exit_code) == (Case(HIDING, "tiny-bert"), "error", 2)
    assert (can.case.check, can.case.golden, can.outcome) == ("values", "tiny", "fail")
    assert main(["replay", str(tmp_path / "out" / "results.jsonl")]) == 2
    assert "does not conform" in capsys.readouterr().out
