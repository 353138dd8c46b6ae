"""What users see: exit codes, the results file, and one clear error for each invalid input."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from conformance import check, load_golden, trace
from conformance.checks.check import Plan
from conformance.cli.arguments import parsed
from conformance.cli.run_options import options_of
from conformance.errors import CheckpointError, ConformanceError, FixtureError, UnknownNameError
from conformance.goldens import golden as golden_module
from conformance.goldens.manifest import fixtures_directory, manifest, of_entry
from conformance.implementations.hugging_face import HuggingFace
from conformance.judge.verify_goldens import verify
from conformance.model.checkpoint import check_parameters
from conformance.model.directory import load_directory
from conformance.results.file import read_results
from conformance.results.records import json_schema
from conformance.tests.commands import Command
from conformance.tests.lawless import BROKEN


def test_a_run_writes_records_that_fit_their_schema_and_keeps_what_was_judged_before_a_crash(results: Path) -> None:
    schema = json_schema()
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    validator = jsonschema.validators.validator_for(schema)(schema)
    for line in lines:
        validator.validate(line)
    checks = [part for judged in (47, 47, 20) for part in (*["activation"] * judged, "check")]
    assert [line["kind"] for line in lines] == ["header", *checks, "footer"]
    assert [line["exit_code"] for line in lines if line["kind"] in ("check", "footer")] == [1, 0, 1, 1]
    assert not validator.is_valid({**lines[1], "outcome": "fine"})
    *_, crash = read_results(results).checks
    assert (crash.outcome, "out of luck" in crash.reason, crash.judged > 10) == ("crash", True, True)


# Arguments, and what the usage error says.
REFUSED = [
    ("run hf-eagr --golden tiny making-bert", "no implementation 'hf-eagr'; did you mean hf-eager"),
    ("run hf-eager --golden tiny --no-such-option", "unrecognized arguments: --no-such-option"),
    (f"run hf-sdpa -o {__file__}", "is a file; give a folder"),
    ("run hf-eager --golden tinny", "did you mean tiny"),
    ("run hf-eagr making-bert --golden tiny --check padding-length", "no implementation 'hf-eagr'; did you mean hf-eager"),
    ("run hf-eager --golden tiny --golden wied", "did you mean wide"),
    ("run hf-eager --golden tiny --dtype float32 --dtype bfloat17", "did you mean bfloat16"),
    ("run making-bert --golden tiny --dtype float31", "did you mean float32"),
    ("run making-bert --golden tiny --device banana", "no device 'banana': Expected one of cpu, cuda"),
    ("trace tiny", "tiny is a golden, a network to run on, and no implementation: give it as --golden tiny"),
    ("trace golden:tiny -o trace.pdf", "expected a suffix of .html, .md, .json, .txt, .safetensors"),
    ("trace golden:tiny golden:tiny", "unrecognized arguments: golden:tiny"),
    ("trace hf-eager --golden tiny --text hello", "golden tiny has no tokenizer"),
    ("trace golden:tiny --text hello", "golden tiny has no tokenizer"),
    ("trace hf-eager --golden tiny --checkpoint somewhere", "are two networks"),
    ("trace golden:tiny --golden deep", "add --golden tiny"),
    ("trace nowhere.safetensors", "nowhere.safetensors cannot be read as a trace: No such file"),
    ("replay nothing.jsonl", "nothing.jsonl cannot be read as results"),
    ("report RESULTS/results.jsonl -o out.doc", "out.doc: expected a suffix of .html, .md, "),
    ("diff RESULTS/results.jsonl RESULTS/results.jsonl -o out.doc", "expected a suffix of .html, .md, "),
    ("diff RESULTS/results.jsonl hf-eager", "give"),
    ("explain no-such-name", "no-such-name"),
    ("diagnose out.txt", "for explanations and examples: bert-conformance diagnose --help"),
    ("diagnose", "required: FILE, --checkpoint"),
    ("diagnose", "--checkpoint DIR: the folder of the Hugging Face BERT"),
]


def test_candidates_stand_before_between_and_behind_the_options_of_a_run() -> None:
    assert parsed(["run", "a", "--golden", "tiny", "b", "-i", "d", "c"]).implementation == ["a", "b", "c", "d"]
    assert parsed(["run", "--golden", "tiny"]).implementation == []


@pytest.mark.parametrize("installed", [True, False])
def test_a_named_candidate_runs_on_the_smallest_golden_and_the_trained_one_if_it_is_installed(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        monkeypatch.setattr("conformance.goldens.recipe.DISTRIBUTION", "not-installed")
    assert list(options_of(parsed(["run", "mine.py:Bert"])).goldens) == ["tiny", "minilm"][: 1 + installed]
    assert list(options_of(parsed(["run", "mine.py:Bert", "--golden", "deep"])).goldens) == ["deep"]
    for every in (["run"], ["run", "mine.py:Bert", "--golden", "*"]):
        assert list(options_of(parsed(every)).goldens) == list(manifest())


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_a_mistaken_argument_is_one_usage_error_and_earlier_results_are_unchanged(
    arguments: str, words: str, command: Command, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conformance-results").mkdir()
    (tmp_path / "conformance-results" / "results.jsonl").write_text("of yesterday")
    ended = command(*(part.replace("RESULTS", str(results.parent)) for part in arguments.split()))
    assert (ended.code, words in ended.words) == (2, True), ended.err
    assert [path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()] == ["of yesterday"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_file.py:bert", "there is no file 'no_file.py'"),
        ("no_file.onnx", "there is no file 'no_file.onnx'"),
        ("trace.safetensors", "there is no file 'trace.safetensors'"),
        ("no_folder/bert.pt2", "the folder 'no_folder' does not exist"),
        ("my_bert.py", "my_bert.py is a file; name one of its objects: my_bert.py:bert"),
        ("./my_bert:bert", "write package.module:object with dots, or FILE.py:object"),
        ("my_bret.py:bert", "did you mean my_bert.py:bert?"),
        ("my_bret:bert", "no module 'my_bret', here or installed, for the implementation 'my_bret:bert'; did you mean my_bert?"),
        ("my_bert:", "not of the form package.module:object"),
        (":bert", "not of the form package.module:object"),
        ("making-bert:bert", "write making-bert, without ':bert'"),
        ("notes.txt", "no exported program that can be read"),
        (".", "if it is a checkpoint, give it as --checkpoint ."),
        ("nobody", "a candidate is a registered name (`bert-conformance list`), package.module:object, FILE.py:object"),
        ("making-brt", "did you mean making-bert"),
        ("berts.py", f"name one of its objects: {', '.join(f'berts.py:{name}' for name in ('bert', 'small', 'large', 'typed'))}\n"),
    ],
)
def test_the_name_of_no_candidate_is_refused_before_a_process_is_started_or_a_file_written(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conformance.cli.work.WorkerProcess", lambda *_: pytest.fail("a worker was started"))
    (tmp_path / "my_bert.py").write_text("raise RuntimeError('imported')\nbert = None\n")
    (tmp_path / "berts.py").write_text("def bert(): ...\nbert = 1\nsmall, (large, _x) = 2, (3, 4)\ntyped: int = 5\nsmall.x = 6\n")
    (tmp_path / "notes.txt").touch()
    ended = command("run", name, "-o", "results")
    assert (ended.code, words in ended.err) == (2, True), ended.err
    assert not (tmp_path / "results").exists()


def test_a_candidate_that_cannot_be_imported_is_an_error_of_every_check_and_affects_no_other(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "raises.py").write_text("bert = None\nraise RuntimeError('no weights here')\n")
    broken = {
        "conformance.tests.broken_plugin:bert": "could not be imported",
        "conformance.tests.broken_plugin:ends": "could not be imported: SystemExit: 0",
        f"{tmp_path / 'raises.py'}:bert": "RuntimeError: no weights here",
    }
    names = (*broken, "making-bert")
    checks = ("--check", "repeated", "--check", "inputs-untouched", "--examples", "2")
    assert command("run", *names, "--golden", "tiny", *checks, "-o", tmp_path / "out").code == 1
    outcomes = [
        (c.outcome, broken.get(c.implementation, "") in c.reason) for c in read_results(tmp_path / "out/results.jsonl").checks
    ]
    assert outcomes == [("error", True)] * 6 + [("pass", True)] * 2


def test_a_broken_harness_says_so_and_does_not_blame_the_candidate(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.setattr("conformance.cli.commands.listing", lambda arguments: {}["no such"])
    ended = command("list")
    assert (ended.code, "internal error, please report it: KeyError: 'no such'" in ended.err) == (3, True)
    monkeypatch.setattr("conformance.cli.commands.listing", lambda arguments: sys.exit(0))
    assert command("list").code == 3


@pytest.mark.parametrize(
    ("candidate", "golden", "fields", "outcome", "words"),
    [
        (lambda checkpoint, device, dtype: None, "tiny", {}, "fail", "returned None; it returns a runner, a function of a batch"),
        (torch.nn.Linear(2, 2), "tiny", {}, "fail", "no way of calling it gives a tensor"),
        ("making-bert", None, {}, "error", "a golden is a name or what golden_of() makes, not None"),
        ("making-bert", "tiny", {"require": "encoder.*"}, "error", "require is a list of patterns: ['encoder.*']"),
        ("making-bert", "tiny", {"device": "cuda:99"}, "skip", "is not available here"),
    ],
)
def test_an_invalid_argument_of_check_is_reported_without_an_exception(
    candidate: Any, golden: Any, fields: dict[str, Any], outcome: str, words: str
) -> None:
    result = check(candidate, golden, **fields)
    assert (result.outcome, words in result.reason) == (outcome, True), result


def test_a_device_that_is_absent_is_no_success(command: Command, tmp_path: Path) -> None:
    ended = command("run", "hf-eager", "--golden", "tiny", "--device", "cuda:99", "-o", tmp_path)
    assert (ended.code, "is not available here" in ended.words) == (1, True)


def test_an_activation_that_is_yielded_twice_is_refused_by_a_run_and_by_a_trace() -> None:
    def prepare(checkpoint: Any, device: str, dtype: str) -> Any:
        runner = HuggingFace("eager").prepare(checkpoint, device, dtype)
        return lambda batch: (pair for pair in runner(batch) for _ in range(1 + (pair[0] == "pooler.dense")))

    refused = [v.reason for v in check(prepare, depth="screen").verdicts if v.activation == "pooler.dense" and v.reason]
    assert refused == ["yielded twice"]
    with pytest.raises(ConformanceError, match="pooler.dense: yielded twice"):
        trace(prepare)


def test_list_and_help_import_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\nfrom conformance.cli import main\n"
        "for argument in ('list', '--help'):\n"
        "    try:\n        main([argument])\n    except SystemExit:\n        pass\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy imports'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "making-bert" in done.stdout


def test_no_plugins_are_loaded_when_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command) -> None:
    monkeypatch.setenv("BERT_CONFORMANCE_NO_PLUGINS", "1")
    assert command("run", "--golden", "tiny", "-o", tmp_path).code == 2


@pytest.fixture
def fixtures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fixtures that replaces the real ones."""
    folder = tmp_path / "fixtures"
    shutil.copytree(fixtures_directory(), folder)
    monkeypatch.setattr(golden_module, "fixtures_directory", lambda: folder)
    return folder


@pytest.mark.parametrize("damage", ["cut short", "altered", "missing"])
def test_a_damaged_fixture_is_a_broken_harness(fixtures: Path, damage: str) -> None:
    file = fixtures / "tiny.safetensors"
    data = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(data[:-100] if damage == "cut short" else data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    result = check(HuggingFace("eager"), "tiny")
    assert (result.outcome, result.exit_code, "tiny" in result.reason) == ("error", 3, True)
    assert verify("tiny", fixtures)[0].outcome == "fail"


def test_missing_extra_and_misshapen_parameters_are_listed_together_and_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_parameters({"a": (2,), "b": (3,)}, {"b": (4,), "c": (1,)})
    listed = ["  missing: a (2,)", "  unexpected: c (1,)", "  wrong shape: b is (4,), should be (3,)"]
    assert str(caught.value).splitlines()[1:] == listed
    with pytest.raises(CheckpointError, match=r"directory with config\.json and model\.safetensors"):
        load_directory(tmp_path)


def test_a_run_that_saves_failures_names_their_folder(tmp_path: Path, command: Command) -> None:
    (tmp_path / "two_berts.py").write_text(
        "from conformance.tests.planted_mistakes import Planted, epsilon\nright, wrong = Planted(), Planted(epsilon(0))\n"
    )
    for name, fails in (("right", False), ("wrong", True)):
        out = tmp_path / name
        run = ("run", "--in-process", f"{tmp_path / 'two_berts.py'}:{name}", "--golden", "tiny", "--depth", "screen")
        ended = command(*run, "-o", out)
        is_named = f"failures: a script of each in {out / 'failures'}; " in ended.out
        assert (ended.code, is_named, (out / "failures").is_dir()) == (fails, fails, fails)


def test_a_wrong_digest_of_the_weights_is_a_broken_harness(fixtures: Path) -> None:
    manifest = json.loads((fixtures / "manifest.json").read_text())
    entry = manifest["goldens"]["tiny"]
    entry["weights_digest"] = "0" * 64
    parts = ("version", "architecture", "batches", "weights_digest", "stored_digest", "gradients_digest")
    entry["digest"] = of_entry(*(entry[part] for part in parts))
    (fixtures / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FixtureError, match="expected 0000"):
        assert load_golden("tiny", fixtures).checkpoint


def test_a_check_is_run_from_python_by_its_name() -> None:
    clean = check("hf-eager", "tiny", check="padding-length", plan=Plan(examples=3))
    assert (clean.outcome, clean.case.check, clean.searched and clean.searched.tried) == ("pass", "padding-length", 3)
    leaking = check(BROKEN["padding-length"], "tiny", check="padding-length", plan=Plan(examples=3))
    assert (leaking.outcome, leaking.counterexample is not None) == ("fail", True)
    with pytest.raises(UnknownNameError, match="did you mean padding-length"):
        check("hf-eager", "tiny", check="padding-lenght")
