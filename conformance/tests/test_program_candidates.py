"""Programs as candidates: a correct one conforms with every file format, and each misbehaviour is reported as a failure of the
program."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conformance import check, isolation, load_golden
from conformance.candidates.registry import load_implementation
from conformance.checks.trace import record
from conformance.cli import main
from conformance.implementations.making_bert import making_bert
from conformance.model.files import scratch_folder
from conformance.results.file import read_results
from conformance.results.records import CheckRecord
from conformance.results.to_records import activation_records

PROGRAMS = Path(__file__).parent / "programs"
CLIENTS = Path(isolation.__file__).parent
TINY = load_golden("tiny")
FORMATS = ("float64", "float32", "bfloat16", "float16")

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no program `node` here")


def recorded(folder: Path, dtype: str, changes: Mapping[str, torch.Tensor] | None = None) -> Path:
    """Return the activations of a correct candidate on the batch of `tiny`, as a program would write them."""
    (values,) = record(making_bert, TINY, "cpu", dtype).activations.values()
    path = folder / f"{dtype}.safetensors"
    right = {n: torch.from_numpy(np.array(v, order="C")).to(getattr(torch, dtype)) for n, v in values.items()}
    save_file(right | dict(changes or {}), path)
    return path


@pytest.fixture(scope="module")
def beside_clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs, copies of the clients, and activations in every file format."""
    folder = tmp_path_factory.mktemp("programs")
    for path in (*PROGRAMS.iterdir(), CLIENTS / "client.py", CLIENTS / "client.mjs"):
        shutil.copy(path, folder) if path.is_file() else None
    for dtype in FORMATS:
        recorded(folder, dtype)
    return folder


def python(program: Path, *arguments: object) -> str:
    return f"cmd:{shlex.join(map(str, (sys.executable, program, *arguments)))}"


def scripted(folder: Path, mode: str, answers: Path | None = None) -> str:
    return python(folder / "scripted.py", mode, answers or folder / "float32.safetensors")


def run(name: str, out: Path, *options: str) -> tuple[CheckRecord, int]:
    """Run the check in a worker; return its record and the exit code."""
    code = main(["run", name, "--golden", "tiny", "-o", str(out), *options])
    (record,) = read_results(out / "results.jsonl").checks
    return record, code


def test_a_bert_in_numpy_conforms_in_a_worker_and_files_are_deleted_when_the_worker_ends(
    beside_clients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def watched() -> Path:
        made.append(scratch_folder())
        return made[-1]

    monkeypatch.setattr("conformance.isolation.worker_process.scratch_folder", watched)
    name = python(beside_clients / "numpy_bert.py")
    code = main(["run", name, "--golden", "tiny", "--dtype", "float32", "--dtype", "float64", "-o", str(tmp_path)])
    assert [c.outcome for c in read_results(tmp_path / "results.jsonl").checks] == ["pass", "pass"]
    assert code == 0
    assert made
    assert not any(folder.exists() for folder in made)


def test_the_backward_pass_of_a_program_is_judged_and_a_detached_mean_in_it_is_named(beside_clients: Path) -> None:
    assert check(python(beside_clients / "torch_bert.py"), "tiny", check="gradients", depth="screen").conforms
    wrong = check(python(beside_clients / "torch_bert.py", "--detached"), "tiny", check="gradients")
    assert wrong.outcome == "fail"
    assert [finding.name for finding in wrong.findings] == ["gradient-norm-mean-detached"]


@pytest.mark.landing(dtype=["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_every_file_format_is_accepted(dtype: str, beside_clients: Path) -> None:
    result = check(scripted(beside_clients, "right", beside_clients / f"{dtype}.safetensors"), "tiny", dtype=dtype, depth="screen")
    assert result.conforms, result.reason


@needs_node
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_javascript_client_reads_and_writes_every_format(dtype: str, beside_clients: Path) -> None:
    result = check(f"cmd:node {beside_clients / 'echo.mjs'} {beside_clients}", "tiny", dtype=dtype)
    assert result.conforms, result.reason


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("exit", "crash", "it ended the process that it ran in (exit code 3)"),
        ("killed", "crash", "it ended the process that it ran in (Segmentation fault)"),
        ("error", "crash", "ValueError: of the program's own"),
        ("version", "fail", "it answers in version 3 of the protocol, expected 2; `bert-conformance explain cmd` has the protocol"),
        ("feature", "fail", "no-such"),
        ("garbage", "crash", "something else was written: 'Loading weights: 100%"),
        ("binary", "crash", "what it prints belongs on standard error; `bert-conformance explain cmd` has the protocol"),
        ("other", "crash", "neither a reply to request 3 nor progress"),
        ("twice", "crash", "neither a reply to request 4 nor progress"),
        ("short", "crash", "something else was written"),
        ("kind", "crash", "a failure of the kind CandidateNameError"),
        ("endless", "fail", "yielded twice"),
        ("endless names", "fail", "more invalid activations than the network has"),
        ("unsupported", "skip", "there is no such kernel"),
    ],
)
def test_each_misbehaviour_of_a_program_is_reported_as_its_failure(
    mode: str, outcome: str, words: str, beside_clients: Path
) -> None:
    result = check(scripted(beside_clients, mode), "tiny")
    assert result.outcome == outcome
    assert words in result.reason


def test_values_in_another_format_than_the_program_says_fail(beside_clients: Path) -> None:
    result = check(scripted(beside_clients, "format", beside_clients / "float64.safetensors"), "tiny", depth="screen")
    assert result.outcome == "fail"
    assert "the values are in float64, and said to be in float32" in result.verdicts[0].reason


def test_a_program_that_hangs_times_out_and_ends_with_its_worker(beside_clients: Path, tmp_path: Path) -> None:
    name = scripted(beside_clients, "hang")
    found, code = run(name, tmp_path, "--timeout", "1.5")
    assert (found.outcome, code) == ("timeout", 1)
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(beside_clients).encode() in line and b"hang" in line for line in lines)


def test_after_a_crash_the_next_check_is_run_by_a_new_process(tmp_path: Path) -> None:
    candidate = load_implementation(scripted(PROGRAMS, "killed at first", recorded(tmp_path, "float32")))
    assert [check(candidate, "tiny", depth="screen").outcome for _ in range(2)] == ["crash", "pass"]


def test_a_program_without_a_backward_pass_or_training_mode_is_skipped_by_their_checks(beside_clients: Path) -> None:
    for name in ("gradients", "training-mode", "optimizer-step", "initialization"):
        result = check(python(beside_clients / "numpy_bert.py"), "tiny", check=name)
        assert (result.outcome, result.reason.partition("answer")[0]) == ("skip", "the program does not "), name


def test_a_program_that_does_not_exist_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in {
        "cmd:no-such-program --fast": "there is no program 'no-such-program' that can be run",
        "cmd:": "no program is named; write 'cmd:PROGRAM ARGS'",
        "cmd:python 'x": "the command line cannot be split: No closing quotation",
    }.items():
        assert main(["run", name, "--golden", "tiny", "-o", str(tmp_path)]) == 2
        assert words in " ".join(capsys.readouterr().err.split())


def test_a_wrong_epsilon_in_a_program_is_named_and_replayed_and_its_script_contains_the_command(
    beside_clients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = python(beside_clients / "numpy_bert.py", "--epsilon", "1e-5")
    record, code = run(name, tmp_path)
    assert (record.outcome, code) == ("fail", 1)
    (left,) = (tmp_path / "failures").glob("*.py")
    assert f"candidate = load_implementation({name!r})" in left.read_text()
    capsys.readouterr()
    assert main(["replay", str(tmp_path / "results.jsonl")]) == 1
    assert "epsilon: estimated epsilon = 1e-05" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder.layer.0.outptu": torch.zeros(1)}, "unknown activation 'encoder.layer.0.outptu'"),
        ({"embeddings.LayerNorm": torch.zeros(2, 2)}, "shape is (2, 2), expected (6, 16, 32)"),
        ({"embeddings.LayerNorm": torch.zeros(6, 16, 32, dtype=torch.float64)}, "dtype is float64, expected float32"),
        ({"embeddings.LayerNorm": torch.full((6, 16, 32), torch.nan)}, "are not finite"),
    ],
)
def test_activations_that_break_the_contract_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    answers = recorded(tmp_path, "float32", changes)
    result = check(scripted(PROGRAMS, "right", answers), "tiny")
    assert result.outcome == "fail"
    assert any(words in record.reason for record in activation_records(result)) or words in result.reason
