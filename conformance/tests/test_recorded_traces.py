"""Recorded traces: a trace recorded by another library is judged like a run, and the metadata in its file are checked."""

import hashlib
import runpy
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

from conformance import RecordedTrace, Unavailable, check, load_golden
from conformance.candidates import recorded_trace
from conformance.candidates.recorded_trace import recorded_on
from conformance.checks import candidate_device
from conformance.checks.trace import record
from conformance.cli import main
from conformance.glossary.entry import documentation
from conformance.implementations.making_bert import making_bert
from conformance.numerics.devices import require_device
from conformance.results.file import read_results

TINY = load_golden("tiny")
TAMPERED = "encoder.layer.1.attention.output.dense"


def as_described(text: str) -> Callable[[dict[str, Any]], str]:
    """Return the function `digest` of the snippet in the description of the format."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if "def digest" in line)
    last = next(i for i, line in enumerate(lines) if "return found.hexdigest()" in line)
    names: dict[str, Any] = {"hashlib": hashlib}
    exec(textwrap.dedent("\n".join(lines[first : last + 1])), names)
    return names["digest"]


digest = as_described(documentation(recorded_trace.__name__))


def test_the_printed_snippet_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "trace"]) == 0
    arrays = TINY.batches["padded"].arrays()
    assert as_described(capsys.readouterr().out)(arrays) == digest(arrays)


class Foreign:
    """The data of another program: activations of `tiny` on its own batch."""

    def __init__(self, dtype: str = "float32") -> None:
        batch = TINY.batches["padded"].cut(slice(1, 4))
        self.inputs = batch.arrays()
        weights = load_file(TINY.checkpoint.path)
        mine = type(TINY)("mine", 0, {"mine": batch}, lambda: TINY.checkpoint)
        values = record(making_bert, mine, "cpu", dtype).activations["mine"]
        self.activations = {name: np.array(value, np.float32, order="C") for name, value in values.items()}
        self.metadata = {
            "name": "my-bert", "golden": "tiny", "checkpoint": digest(weights), "batch/mine": digest(self.inputs), "dtype": dtype,
            "device": "cpu", "library": "my-library 1.2",
        }  # fmt: skip

    def saved(self, path: Path) -> Path:
        tensors = {f"batch/mine/{name}": array for name, array in self.inputs.items()}
        tensors |= {f"activation/mine/{name}": array for name, array in self.activations.items()}
        save_file(tensors, path, self.metadata)
        return path


def run(path: Path, *options: str) -> int:
    return main(["run", str(path), "-o", str(path.parent / "out"), *options])


def outcomes(path: Path) -> list[str]:
    return [check.outcome for check in read_results(path.parent / "out" / "results.jsonl").checks]


def test_a_trace_of_another_library_on_its_batch_and_one_of_the_oracle_conform(tmp_path: Path) -> None:
    path = Foreign().saved(tmp_path / "trace.safetensors")
    assert run(path) == 0
    assert outcomes(path) == ["pass"]
    assert main(["diff", str(path), "making-bert"]) == 0
    assert main(["trace", "golden:tiny", "-o", str(path)]) == 0
    assert run(path) == 0
    assert outcomes(path) == ["pass"]


def test_half_formats_are_accepted_as_stored_or_wider(tmp_path: Path) -> None:
    foreign = Foreign("bfloat16")
    wide, path = foreign.saved(tmp_path / "wide.safetensors"), tmp_path / "half.safetensors"
    half = {key: torch.from_numpy(array) for key, array in load_file(wide).items()}
    half = {key: t.bfloat16() if t.is_floating_point() else t for key, t in half.items()}
    save_tensors(half, path, foreign.metadata)
    assert (run(wide), run(path)) == (0, 0)
    assert outcomes(path) == ["pass"]


def without(name: str) -> Callable[[Foreign], object]:
    return lambda foreign: foreign.metadata.pop(name)


def with_(**metadata: str) -> Callable[[Foreign], object]:
    return lambda foreign: foreign.metadata.update(metadata)


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        *((without(name), f"its metadata lack {name}") for name in ("name", "golden", "checkpoint", "dtype", "device", "library")),
        (without("batch/mine"), "its metadata lack batch/mine, the digest of that batch's inputs"),
        (with_(checkpoint="0" * 64), f"was recorded on tiny, on weights with the digest {'0' * 64}, and these have"),
        (with_(golden="tinny"), "no golden 'tinny'"),
        (with_(dtype="float31"), "no floating-point format 'float31'"),
        (with_(dtype="bfloat16"), "stored in float32, which is no number of bfloat16"),
        (lambda foreign: foreign.inputs["input_ids"].__setitem__((0, 0), 5), "the inputs of batch mine have the digest"),
        (lambda foreign: foreign.activations.clear(), "expected inputs and activations of the same batches; mine"),
    ],
)  # fmt: skip
def test_missing_or_wrong_metadata_are_an_error(
    alter: Callable[[Foreign], object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = Foreign()
    alter(foreign)
    assert run(foreign.saved(tmp_path / "trace.safetensors")) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_another_format_or_device_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    foreign = Foreign()
    path = foreign.saved(tmp_path / "trace.safetensors")
    assert check(str(path), "tiny", dtype="float64").reason == "it was recorded in float32, not in float64"
    assert check(str(path), "tiny").reason.startswith("it is a recorded trace, which holds mine and no other batch")
    foreign.metadata["device"] = "cuda:0"
    assert check(str(foreign.saved(path)), "tiny").reason == "it was recorded on cuda:0, not on cpu: ask for that device"


def test_a_requested_golden_with_other_weights_is_an_error(tmp_path: Path) -> None:
    path = Foreign().saved(tmp_path / "trace.safetensors")
    result = check(str(path), "odd-width")
    assert (result.outcome, result.declared) == ("error", True)
    assert "was recorded on tiny, on weights with the digest" in result.reason
    assert run(path, "--golden", "odd-width") != 0
    assert outcomes(path) == ["error"]


def recorded_on_cuda(folder: Path, *, tampered: bool = False) -> Path:
    """A bfloat16 trace recorded on an accelerator, according to its metadata."""
    foreign = Foreign("bfloat16")
    foreign.metadata["device"] = "cuda:0"
    if tampered:
        foreign.activations[TAMPERED][0, 0, 0] = 1.0
    return foreign.saved(folder / "trace.safetensors")


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_other_checks_of_a_trace_also_from_an_absent_device_are_skipped_and_not_declared(device: str, tmp_path: Path) -> None:
    path = recorded_on_cuda(tmp_path) if device == "cuda:0" else Foreign().saved(tmp_path / "trace.safetensors")
    with pytest.raises(Unavailable):
        require_device("cuda:0")
    assert run(path, "--check", "values", "--check", "mask-omitted", "--check", "gradients") == 0
    results = read_results(tmp_path / "out" / "results.jsonl")
    assert {(c.check, c.outcome) for c in results.checks} == {("values", "pass"), ("mask-omitted", "skip"), ("gradients", "skip")}
    assert {c.device for c in results.checks} == {device}
    assert "which holds mine and no other batch" in next(c.reason for c in results.checks if c.check == "mask-omitted")
    assert results.footer is not None
    assert results.footer.declared == 1


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_an_altered_activation_also_of_an_absent_device_fails_at_its_place_and_is_replayed(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda:0":
        path = recorded_on_cuda(tmp_path, tampered=True)
    else:
        foreign = Foreign()
        foreign.activations[TAMPERED][0, 0, 0] += 0.01
        path = foreign.saved(tmp_path / "trace.safetensors")
    assert run(path) == 1
    results = read_results(tmp_path / "out" / "results.jsonl")
    assert {a.activation for a in results.cases[0].activations if a.role == "origin"} >= {TAMPERED}
    (left,) = (tmp_path / "out" / "failures").glob("*.py")
    assert f"candidate = load_implementation({str(path)!r})" in left.read_text()
    assert main(["replay", str(tmp_path / "out" / "results.jsonl")]) == 1
    monkeypatch.setattr(sys, "path", [*sys.path])  # The script appends to it.
    with pytest.raises(AssertionError):
        runpy.run_path(str(left))


def test_traces_of_several_devices_or_with_different_inputs_on_one_golden_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, own = Foreign().saved(tmp_path / "here.safetensors"), tmp_path / "own.safetensors"
    assert run(here, str(recorded_on_cuda(tmp_path))) == 2
    assert "recorded on cpu and cuda:0: judge the traces of one device at a time" in capsys.readouterr().err
    assert main(["trace", "making-bert", "-o", str(own)]) == 0
    assert run(here, str(own)) == 2
    assert "different inputs of tiny" in capsys.readouterr().err


VIEWS = ("outputs", "stages")


def test_the_checks_of_a_part_of_a_trace_know_that_it_is_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound of this machine's functions is used for it, and its file's device need not be present."""

    def asked(device: str) -> None:
        raise AssertionError(f"the functions of {device} on this machine were asked for")

    monkeypatch.setattr(candidate_device, "this_machine", asked)
    for path, device, dtype in (
        (recorded_on_cuda(tmp_path), "cuda:0", "bfloat16"),
        (Foreign().saved(tmp_path / "here.safetensors"), "cpu", "float32"),
    ):
        golden = recorded_on(RecordedTrace(path).recorded)
        results = [check(str(path), golden, device, dtype, check=name) for name in VIEWS]
        assert [(found.outcome, found.reason) for found in results] == [("pass", "")] * len(VIEWS)
