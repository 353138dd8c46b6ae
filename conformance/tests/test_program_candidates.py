"""Programs as candidates: a correct one conforms with every file format, and each misbehaviour is reported as a failure of the
program."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conformance import CandidateCrash, check, load_golden
from conformance.candidates import command
from conformance.candidates.command.command import Command
from conformance.checks.trace import record
from conformance.cli import main
from conformance.implementations.making_bert import making_bert
from conformance.model.files import scratch_folder
from conformance.results.file import read_results
from conformance.results.records import CheckRecord

PROGRAMS = Path(__file__).parent / "programs"
CLIENTS = Path(command.__file__).parent
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
        ("exit", "crash", "its process ended before it replied to `run` (exit code 3)"),
        ("killed", "crash", "its process ended before it replied to `run` (signal 11)"),
        ("error", "crash", "ValueError: of the program's own"),
        ("version", "fail", "it answers in version 2 of the protocol, expected 1"),
        ("feature", "fail", "no-such"),
        ("garbage", "fail", "its standard output has 'Loading weights: 100%'"),
        ("binary", "fail", "messages belong on standard error"),
        ("other", "fail", 'expected {"reply": "run", ...} on one line'),
        ("nothing", "fail", "outputs.safetensors cannot be read as the safetensors file that the reply to `run` announces"),
        ("short", "fail", "outputs.safetensors cannot be read"),
        ("link", "fail", "outputs.safetensors is a link"),
        ("unsupported", "skip", "there is no such kernel"),
    ],
)
def test_each_misbehaviour_of_a_program_is_reported_as_its_failure(
    mode: str, outcome: str, words: str, beside_clients: Path
) -> None:
    result = check(scripted(beside_clients, mode), "tiny")
    assert result.outcome == outcome
    assert words in result.reason


def test_a_program_that_hangs_times_out_and_ends_with_its_worker(beside_clients: Path, tmp_path: Path) -> None:
    name = scripted(beside_clients, "hang")
    found, code = run(name, tmp_path, "--timeout", "1.5")
    assert (found.outcome, code) == ("timeout", 1)
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(beside_clients).encode() in line and b"hang" in line for line in lines)


def test_after_a_crash_the_next_batch_is_run_by_a_new_process(tmp_path: Path) -> None:
    answers = recorded(tmp_path, "float32")
    runner = Command(scripted(PROGRAMS, "killed at first", answers)).prepare(TINY.checkpoint, "cpu", "float32")
    batch = TINY.batches["padded"].on("cpu")
    with pytest.raises(CandidateCrash, match="signal 11"):
        runner(batch)
    assert "embeddings.LayerNorm" in runner(batch)


def test_a_gradient_is_sent_only_to_a_program_that_has_a_backward_pass(beside_clients: Path) -> None:
    batch, gradient = TINY.batches["padded"].on("cpu"), torch.ones(6, 2, dtype=torch.bfloat16)
    runners = {
        mode: Command(scripted(beside_clients, mode)).prepare(TINY.checkpoint, "cpu", "float32") for mode in ("gradients", "right")
    }
    assert runners["right"].gradients is None
    assert "embeddings.LayerNorm" in runners["gradients"].gradients(batch, "logits", gradient)
    with pytest.raises(CandidateCrash, match="no gradient is given"):
        runners["gradients"](batch)


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
    (left,) = (tmp_path / "failures").glob("*.safetensors")
    assert f"candidate = load_implementation({name!r})" in left.with_suffix(".py").read_text()
    capsys.readouterr()
    assert main(["replay", str(left)]) == 1
    assert "epsilon: estimated epsilon = 1e-05" in capsys.readouterr().out
