"""Accelerators: their arithmetic is legal, a device that breaks is reported, and the run continues. CUDA is used where present."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conformance import Checkpoint, check, load_golden
from conformance.benchmarks.detection.bert import Candidate as Planted
from conformance.benchmarks.detection.bert import changed
from conformance.benchmarks.detection.variant import Variant
from conformance.benchmarks.detection.variants.attention import INNER
from conformance.errors import DeviceLostError, Unavailable
from conformance.implementations.demystified_as_written import demystified_as_written
from conformance.judge import Depth
from conformance.judge.evidence import Verdict
from conformance.judge.judge import Judge
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import hypotheses
from conformance.numerics.devices import require_device
from conformance.oracle import Network
from conformance.results.file import read_results
from conformance.tests import fake_accelerator, matrix_unit

LAYERS = 3
MISUSE = "conformance.tests.wrong_device"

# Candidates that misuse their device, with correct ones before, between and after them: the outcome, and words of the reason.
CANDIDATES = {
    "making-bert": ("pass", ""),
    f"{MISUSE}:elsewhere": ("fail", "exposed activations break the contract"),
    f"{MISUSE}:mixed": ("crash", "same device"),
    f"{MISUSE}:beyond": ("crash", "device-side assert triggered"),
    "hf-sdpa": ("pass", ""),
    f"{MISUSE}:beyond_as_well": ("crash", "device-side assert triggered"),
    f"{MISUSE}:ending": ("crash", "it ended the process that it ran in"),
    "inner-workings": ("pass", ""),
}

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("device", ["pretend", pytest.param("cuda", marks=cuda)])
def test_a_misuse_of_an_accelerator_is_reported_and_correct_candidates_conform_before_and_after_it(
    device: str, tmp_path: Path
) -> None:
    fake_accelerator.installed(tmp_path)
    command = ["run", *CANDIDATES, "--golden", "tiny", "--device", device, "-o", str(tmp_path / "out")]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run = [sys.executable, "-m", "conformance", *command]
    done = subprocess.run(run, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    checks = {c.implementation: c for c in read_results(tmp_path / "out" / "results.jsonl").checks}
    assert {name: c.outcome for name, c in checks.items()} == {name: outcome for name, (outcome, _) in CANDIDATES.items()}
    assert [name for name, (_, words) in CANDIDATES.items() if words not in checks[name].reason] == []


def test_a_broken_device_is_reported_as_lost_and_no_candidate_is_blamed_or_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    require_device("cpu")
    with pytest.raises(Unavailable, match="is not available here"):
        require_device("cuda:99")

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(torch, "ones", broken)
    with pytest.raises(DeviceLostError, match="lost to this process.*device-side assert"):
        require_device("cpu")
    result = check("making-bert", "tiny")
    assert (result.outcome, result.exit_code) == ("error", 3)


def test_the_tutorials_network_is_skipped_on_an_accelerator_because_its_table_is_not_moved() -> None:
    architecture = load_golden("sinusoidal").checkpoint.architecture
    assert demystified_as_written.supports(architecture, "cpu", "float32") is None
    assert "stays on the CPU" in str(demystified_as_written.supports(architecture, "cuda:0", "float32"))


def _on_a_matrix_unit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    added = torch.zeros_like(keys, dtype=query.dtype).masked_fill(~keys, -torch.inf)
    return matrix_unit.attention(query, key, value, added)


def _off(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return attention whose temperature is off by one part in ten thousand."""
    return _on_a_matrix_unit(query * 1.0001, key, value, keys)


def _verdicts(attention: Callable[..., torch.Tensor], device: str, depth: Depth = "full") -> list[Verdict]:
    """Return the verdicts on the first layers of all-MiniLM-L6-v2 with that attention, judged as computed on a device."""
    golden = load_golden("minilm")
    ((_, batch),) = golden.batches.items()
    checkpoint = Checkpoint(golden.checkpoint.architecture.with_(num_hidden_layers=LAYERS), golden.checkpoint.weights)

    def context(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = attention(q, k, v, keep)
        return mixed.transpose(1, 2).flatten(2)

    candidate = Variant([changed("context", context)], exposes=lambda name: not name.endswith(INNER))
    made = candidate.prepare(checkpoint, "cpu", "float32")(batch.on("cpu"))
    network = Network(checkpoint.architecture, rounded_weights(checkpoint, "float32"), batch)
    return select_arithmetic(Judge(network, "float32", device, recorded=True, depth=depth).judge(made.items()))


def test_float32_by_matrix_units_is_legal_only_on_an_accelerator() -> None:
    # The truncation shows in filters of the scores' factor alone, by all elements together.
    failed = [v for v in _verdicts(_on_a_matrix_unit, "cpu", "exhaustive") if v.outcome == "fail"]
    assert failed
    assert all(v.activation.endswith("self.context") for v in failed)
    rendered = {v.activation: v for v in _verdicts(_on_a_matrix_unit, "cuda", "exhaustive")}
    assert all(v.outcome in ("pass", "not_observed") for v in rendered.values())
    kinds = {v.local.arithmetic for v in rendered.values() if v.local and v.activation.endswith("self.context")}
    assert kinds == {"float32 in matrix units"}
    # A step that rounds as IEEE 754 requires is judged by that, as on the CPU.
    assert {v.local.arithmetic for v in rendered.values() if v.local and v.kind == "linear"} == {"float32"}


def test_a_mistake_is_found_behind_the_errors_of_a_matrix_unit() -> None:
    failed = [v for v in _verdicts(_off, "cuda") if v.outcome == "fail"]
    assert {v.activation for v in failed} == {f"encoder.layer.{i}.attention.self.context" for i in range(LAYERS)}
    named = {v.local.named[0].name for v in failed if v.local and v.local.named}
    assert named <= {"scale-missing", "softmax-temperature"}  # Without the scores, both mistakes are the same function.
    assert named


def _in_tf32(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute a linear product by one TF32 pass of a matrix unit."""
    product = matrix_unit.tf32_product(x.reshape(-1, x.shape[-1]), weight.T)
    return product.reshape(*x.shape[:-1], -1) + bias


@pytest.mark.landing(golden="tiny")
@pytest.mark.parametrize("golden", ["tiny", "wide"])  # of up to 64, and of up to 3072 terms, whose truncated sums err more
def test_tf32_products_are_not_accepted_as_matrix_unit_float32_and_are_named(golden: str) -> None:
    given = load_golden(golden)
    ((_, batch),) = given.batches.items()
    checkpoint = given.checkpoint
    made = Planted([changed("linears", _in_tf32)]).prepare(checkpoint, "cpu", "float32")(batch.on("cpu"))
    network = Network(checkpoint.architecture, rounded_weights(checkpoint, "float32"), batch)
    verdicts = select_arithmetic(Judge(network, "float32", "cuda", recorded=True).judge(made.items()))
    failed = [v for v in verdicts if v.outcome == "fail"]
    assert {v.kind for v in failed} == {"linear"}
    assert [v.local.named[0].name for v in failed if v.local] == ["precision-tf32"] * 6 * checkpoint.architecture.num_hidden_layers


@pytest.mark.parametrize(("dtype", "arithmetics"), [("float64", 1), ("float32", 2), ("bfloat16", 3), ("float16", 3)])
def test_every_format_has_arithmetics_for_an_accelerator(dtype: str, arithmetics: int) -> None:
    assert len({h.arithmetic.name for h in hypotheses(dtype, "cuda:1")}) == arithmetics
    assert hypotheses(dtype, "cpu") == hypotheses(dtype)


@cuda
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["hf-eager", "hf-sdpa"])
def test_correct_candidates_conform_on_cuda(name: str, dtype: str) -> None:
    results = {golden: check(name, golden, "cuda", dtype) for golden in ("tiny", "wide", "minilm")}
    assert {golden: (r.outcome, r.reason) for golden, r in results.items()} == dict.fromkeys(results, ("pass", ""))


@cuda
@pytest.mark.parametrize(("dtype", "fault"), [("float32", "gelu-variant"), ("float64", "gelu-tanh-eight-digits")])
def test_the_tanh_form_in_pytorchs_fast_path_is_named_on_cuda(dtype: str, fault: str) -> None:
    result = check("torch-encoder-fast", "tiny", "cuda", dtype)
    assert {mistake.name for v in result.origins if v.local for mistake in v.local.named} == {fault}


@cuda
def test_tf32_in_place_of_float32_is_named_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    result = check("hf-eager", "minilm", "cuda")
    assert {v.local.named[0].name for v in result.origins if v.local and v.local.named} == {"precision-tf32"}
