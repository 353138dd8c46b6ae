"""What users see: the command line, exit codes, the results file, and errors for invalid input."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from conformance import Checkpoint, check, load_golden, trace
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.candidates import capture
from conformance.checks.search.plan import Plan
from conformance.cli import main
from conformance.cli.arguments import argument_parser
from conformance.errors import CheckpointError, ConformanceError, FixtureError, UnknownNameError
from conformance.goldens import golden as golden_module
from conformance.goldens.manifest import fixtures_directory, of_entry
from conformance.implementations.hugging_face import HuggingFace
from conformance.judge.verify_goldens import verify
from conformance.model.checkpoint import check_parameters
from conformance.model.directory import load_directory
from conformance.results.file import Writer, read_results
from conformance.results.records import Footer, json_schema
from conformance.tests.lawless import BROKEN


def test_a_run_writes_records_that_fit_their_schema(tmp_path: Path) -> None:
    assert main(["run", "-i", "hf-eager", "--golden", "tiny", "--out", str(tmp_path)]) == 0
    schema = json_schema()
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    for line in lines:
        jsonschema.validate(line, schema)
    assert [line["kind"] for line in lines] == ["header", *["activation"] * 47, "check", "footer"]
    assert lines[-1]["exit_code"] == 0
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**lines[1], "outcome": "fine"}, schema)


@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_the_user_has_set_another_policy(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", before or "")
    if before is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    assert main(["list"]) == 0
    assert capsys.readouterr().out
    assert os.environ["OMP_WAIT_POLICY"] == after


def test_a_truncated_results_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Writer(path) as writer:
        writer.write(Footer(1, 1, {"pass": 1}, 0))
    path.write_bytes(path.read_bytes() + b'{"kind":"act')
    assert read_results(path).footer == Footer(1, 1, {"pass": 1}, 0)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-i", "hf-eagr"], 2, "did you mean hf-eager"),
        (["-i", "hf-eager", "--golden", "tinny"], 2, "did you mean tiny"),
        (["-i", "hf-eager", "--dtype", "float31"], 2, "did you mean float32"),
        (["-i", "conformance.tests.broken_plugin:bert"], 1, "could not be imported"),
        (["-i", "hf-eager", "--device", "cuda:99"], 1, "is not available here"),
    ],
)
def test_invalid_input_is_one_clear_error_and_the_other_candidates_run(
    arguments: list[str], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--golden" not in arguments:
        arguments = [*arguments, "--golden", "tiny"]
    assert main(["run", *arguments, "--out", str(tmp_path)]) == code
    rendered = capsys.readouterr()
    assert words in " ".join((rendered.out + rendered.err).split())


@pytest.mark.parametrize("slip", [["-i", "hf-eagr"], ["-i", "making-bert", "--dtype", "float31"]])
def test_a_usage_error_leaves_earlier_results_unchanged(slip: list[str], tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("of yesterday")
    assert main(["run", *slip, "--golden", "tiny", "--out", str(tmp_path)]) == 2
    assert (tmp_path / "results.jsonl").read_text() == "of yesterday"


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
    ],
)
def test_the_name_of_no_candidate_is_refused_before_a_process_is_started_or_a_file_written(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conformance.cli.run.WorkerProcess", lambda *_: pytest.fail("a worker was started"))
    (tmp_path / "my_bert.py").write_text("raise RuntimeError('imported')\nbert = None\n")
    (tmp_path / "notes.txt").touch()
    assert main(["run", "-i", name, "--out", "results"]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "conformance.implementations.making_bert:making_brt",
            "conformance.implementations.making_bert has no object 'making_brt'; did you mean making_bert?",
        ),
        ("conformance.implementations.making_brt:bert", "no module 'conformance.implementations.making_brt', here or installed"),
        ("conformance.implementations.hugging_face:HuggingFace", "HuggingFace is a class; give an object of it: HuggingFace()"),
    ],
)
@pytest.mark.parametrize("more", [["--golden", "tiny"], ["--check", "padding-length"]], ids=" ".join)
def test_an_object_that_is_not_there_is_one_usage_error_and_leaves_earlier_results_unchanged(
    name: str, words: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.jsonl").write_text("of yesterday")
    assert main(["run", "-i", name, *more, "--out", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("results.jsonl", "of yesterday")]


def test_every_object_of_a_file_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "berts.py").write_text("def bert(): ...\nbert = 1\nsmall, (large, _x) = 2, (3, 4)\ntyped: int = 5\nsmall.x = 6\n")
    assert main(["run", "-i", "berts.py", "--out", "results"]) == 2
    objects = ", ".join(f"berts.py:{name}" for name in ("bert", "small", "large", "typed"))
    assert f"name one of its objects: {objects}\n" in capsys.readouterr().err


def test_all_names_are_refused_together_if_none_is_that_of_a_candidate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["run", "-i", "hf-eagr", "-i", "conformance.implementations.making_bert:making_brt", "--out", str(tmp_path / "out")])
        == 2
    )
    said = capsys.readouterr().err
    assert "did you mean hf-eager" in said
    assert "did you mean making_bert" in said
    assert not (tmp_path / "out").exists()


def test_a_candidate_that_raises_when_it_is_imported_is_an_error_of_every_check_and_no_usage_error(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("bert = None\nraise RuntimeError('no weights here')\n")
    assert main(["run", "-i", f"{tmp_path / 'raises.py'}:bert", "--check", "repeated", "--out", str(tmp_path / "out")]) == 1
    checks = read_results(tmp_path / "out" / "results.jsonl").checks
    assert [c.outcome for c in checks] == ["error"] * len(checks)
    assert all("RuntimeError: no weights here" in c.reason for c in checks)


def test_a_plugin_that_ends_the_process_affects_no_other_candidate(tmp_path: Path) -> None:
    ends = "conformance.tests.broken_plugin:ends"
    assert main(["run", "-i", ends, "-i", "making-bert", "--golden", "tiny", "--out", str(tmp_path)]) == 1
    results = read_results(tmp_path / "results.jsonl")
    assert [c.outcome for c in results.checks] == ["error", "pass"]
    assert "could not be imported: SystemExit: 0" in results.checks[0].reason


def test_a_broken_harness_says_so_and_does_not_blame_the_candidate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("conformance.cli.commands.listing", lambda arguments: {}["no such"])
    assert main(["list"]) == 3
    assert "internal error, please report it: KeyError: 'no such'" in capsys.readouterr().err
    monkeypatch.setattr("conformance.cli.commands.listing", lambda arguments: sys.exit(0))
    assert main(["list"]) == 3


@pytest.mark.parametrize(
    ("arguments", "outcome", "words"),
    [
        ((lambda checkpoint, device, dtype: None, "tiny"), "fail", "returned None; it returns a runner, a function of a batch"),
        ((torch.nn.Linear(2, 2), "tiny"), "fail", "no way of calling it gives a tensor"),
        ((HuggingFace, "tiny"), "error", "give an object of it"),
        (("making-bert", None), "error", "a golden is a name or what golden_of() makes, not None"),
    ],
)
def test_an_invalid_candidate_or_golden_is_reported_without_an_exception(
    arguments: tuple[Any, Any], outcome: str, words: str
) -> None:
    result = check(*arguments)
    assert (result.outcome, words in result.reason) == (outcome, True)


def test_patterns_must_be_a_list() -> None:
    assert "require is a list of patterns: ['encoder.*']" in check("making-bert", require="encoder.*").reason


def test_an_activation_that_is_yielded_twice_is_refused_by_a_run_and_by_a_trace() -> None:
    def prepare(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        runner = HuggingFace("eager").prepare(checkpoint, device, dtype)

        def run(batch: Any) -> Any:
            for name, value in runner(batch):
                yield from [(name, value)] * (1 + (name == "pooler.dense"))

        return run

    refused = [v.reason for v in check(prepare).verdicts if v.activation == "pooler.dense" and v.reason]
    assert refused == ["yielded twice"]
    with pytest.raises(ConformanceError, match="pooler.dense: yielded twice"):
        trace(prepare)


def test_a_run_that_ends_early_reports_how_far_it_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "-i", "making-bert", "-i", "hf-eager", "--golden", "tiny", "--out", str(tmp_path)]
    assert main(run) == 0
    lines = (tmp_path / "results.jsonl").read_text().splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if '"kind":"check"' in line)
    (tmp_path / "results.jsonl").write_text("".join(lines[: end + 2]))
    capsys.readouterr()
    assert main(["report", str(tmp_path / "results.jsonl")]) == 1
    assert "it was cut short after 1 of 2 checks" in " ".join(capsys.readouterr().out.split())


def test_an_unknown_name_does_not_stop_the_others(tmp_path: Path) -> None:
    assert main(["run", "-i", "nobody", "-i", "hf-eager", "--golden", "tiny", "--out", str(tmp_path)]) == 2
    footer = read_results(tmp_path / "results.jsonl").footer
    assert footer
    assert footer.outcomes == {"error": 1, "pass": 1}


@pytest.mark.parametrize("command", [["list"], ["--help"]])
def test_list_and_help_import_neither_torch_nor_transformers(command: list[str]) -> None:
    code = (
        "import sys\nfrom conformance.cli import main\n"
        f"try:\n    main({command!r})\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'heavy imports'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_plugins_are_loaded_when_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BERT_CONFORMANCE_NO_PLUGINS", "1")
    assert main(["run", "--golden", "tiny", "--out", str(tmp_path)]) == 1


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
    data = bytearray(file.read_bytes())
    if damage == "cut short":
        file.write_bytes(data[:-100])
    elif damage == "altered":
        data[-5] ^= 1
        file.write_bytes(data)
    else:
        file.unlink()
    result = check(HuggingFace("eager"), "tiny")
    assert (result.outcome, result.exit_code) == ("error", 3)
    assert "tiny" in result.reason
    assert [v.outcome for v in verify("tiny", fixtures)][0] == "fail"


def test_a_wrong_digest_of_the_weights_is_a_broken_harness(fixtures: Path) -> None:
    manifest = json.loads((fixtures / "manifest.json").read_text())
    entry = manifest["goldens"]["tiny"]
    entry["weights_digest"] = "0" * 64
    entry["digest"] = of_entry(
        *(entry[k] for k in ("version", "architecture", "batches", "weights_digest", "stored_digest", "gradients_digest"))
    )
    (fixtures / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FixtureError, match="expected 0000"):
        assert load_golden("tiny", fixtures).checkpoint


def test_the_goldens_verify_part_by_part() -> None:
    assert [(v.part, v.outcome) for v in verify("tiny")] == [
        ("stored files", "pass"),
        ("weights and batches", "pass"),
        ("activations", "pass"),
        ("gradients", "pass"),
    ]
    assert {v.outcome for v in verify("minilm")} <= {"pass", "skip"}


def test_missing_extra_and_misshapen_parameters_are_listed_together() -> None:
    with pytest.raises(CheckpointError) as caught:
        check_parameters({"a": (2,), "b": (3,)}, {"b": (4,), "c": (1,)})
    assert str(caught.value).splitlines()[1:] == [
        "  missing: a (2,)",
        "  unexpected: c (1,)",
        "  wrong shape: b is (4,), should be (3,)",
    ]


def test_a_directory_without_weights_is_answered_with_what_a_checkpoint_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"directory with config\.json and model\.safetensors"):
        load_directory(tmp_path)


def test_a_candidate_that_raises_is_a_crash_and_keeps_earlier_judgements() -> None:
    class Crashes:
        def prepare(self, checkpoint: object, device: str, dtype: str) -> object:
            runner = HuggingFace("eager").prepare(checkpoint, device, dtype)  # type: ignore[arg-type]

            def run(batch: object):  # type: ignore[no-untyped-def]
                for name, value in runner(batch):  # type: ignore[arg-type]
                    if name == "encoder.layer.1.attention.self.query":
                        raise RuntimeError("out of luck")
                    yield name, value

            return run

    result = check(Crashes())  # type: ignore[arg-type]
    assert result.outcome == "crash"
    assert "out of luck" in result.reason
    assert result.coverage[0] > 10


def test_hooks_are_removed_even_when_the_stream_is_not_read_to_the_end() -> None:
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(20)))
    taps = {str(i): capture.Tap(str(i)) for i in range(20)}
    stream = capture.captured(model, taps, lambda: {"end": model(torch.ones(1, 2))})
    assert next(stream)[0] == "0"
    stream.close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert [name for name, _ in capture.captured(model, taps, lambda: {"end": model(torch.ones(1, 2))})][-1] == "end"


def test_a_result_in_python_has_the_contents_of_the_report() -> None:
    result = check(Candidate([changed("functions", "tanh_gelu(x)")]), "tiny")
    assert result.outcome == "fail"
    (finding, *others) = result.findings
    assert not others
    assert finding.name == "gelu-variant"
    assert finding.sentence in " ".join(str(result).split())
    assert finding.evidence.startswith("gelu-variant: amplitude 1.0")
    assert finding.cause.startswith("usual cause: ")
    assert set(finding.activations) == {v.activation for v in result.failures}
    assert check("hf-eager", "tiny").findings == check("hf-eager", "tiny").failures == ()


def test_a_check_is_run_from_python_by_its_name() -> None:
    clean = check("hf-eager", "tiny", check="padding-length", plan=Plan(examples=3))
    assert (clean.outcome, clean.case.check) == ("pass", "padding-length")
    assert clean.searched
    assert clean.searched.tried == 3
    leaking = check(BROKEN["padding-length"], "tiny", check="padding-length")
    assert leaking.outcome == "fail"
    assert leaking.counterexample
    with pytest.raises(UnknownNameError, match="did you mean padding-length"):
        check("hf-eager", "tiny", check="padding-lenght")


def test_a_failure_for_a_reason_other_than_its_values_states_it() -> None:
    result = check(HuggingFace("sdpa"), "tiny", require=["*.probs"])
    assert result.outcome == "fail"
    assert "required activations are not exposed" in result.reason
    assert result.findings == ()


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                yield from _parsers(part)


@pytest.mark.parametrize("parser", list(_parsers(argument_parser())), ids=lambda parser: parser.prog)
def test_every_argument_has_a_help_text_and_a_mistake_is_called_so(parser: argparse.ArgumentParser) -> None:
    assert parser.description or parser.prog.endswith(" golden")
    assert [a.dest for a in parser._actions if not a.help and not isinstance(a, argparse._SubParsersAction)] == []
    words = set(re.findall(r"\w+", parser.format_help().replace('fault = "epsilon"', "").replace("at fault", "")))
    assert not words & {"fault", "faults", "harness"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "hf-sdpa"], "unrecognized arguments: hf-sdpa; a candidate is given with -i: bert-conformance run -i hf-sdpa"),
        (["diagnose", "--outputs", "out.txt"], "for explanations and examples: bert-conformance diagnose --help"),
    ],
)
def test_an_error_in_the_arguments_says_what_to_do(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trace", "tiny"], "tiny is a golden, a network to run on, and no implementation: give it as --golden tiny"),
        (["run", "-i", "hf-sdpa", "--out", __file__], "is a file; give a folder"),
        (["replay", "nothing.safetensors"], "nothing.safetensors cannot be read as a saved failure"),
    ],
)
def test_a_mistaken_argument_is_one_usage_error(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_missing_option_is_reported_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "required: --checkpoint, --outputs\n" in said
    assert "\n  --checkpoint DIR: the folder of the Hugging Face BERT" in said
    assert "\n  --outputs FILE: a file with the system's outputs, or - for standard input: " in said


def test_a_run_that_saves_failures_names_their_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "two_berts.py").write_text(
        "from conformance.tests.planted_mistakes import Planted, epsilon\nright, wrong = Planted(), Planted(epsilon(0))\n"
    )
    for name, out in (("right", tmp_path / "a"), ("wrong", tmp_path / "b")):
        run = ["run", "--in-process", "-i", f"{tmp_path / 'two_berts.py'}:{name}", "--golden", "tiny", "--out", str(out)]
        assert main(run) == (name == "wrong")
        assert (f"failures: {out / 'failures'}: " in capsys.readouterr().out) == (out / "failures").is_dir() == (name == "wrong")
