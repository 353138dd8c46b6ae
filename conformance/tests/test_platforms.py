"""Benchmark lanes: runs of a correct candidate count as passes, and those of a broken one as false alarms."""

import os
import signal
from typing import Any

import pytest
import torch

from conformance import Checkpoint
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.platforms import measure
from conformance.benchmarks.platforms.case import Ran, run
from conformance.benchmarks.platforms.lanes import LANES, VARIABLES, environment, lacking
from conformance.benchmarks.platforms.measure import ALARM, PASSED, REDUCED, UNSUPPORTED, LaneResult, lines

PLAIN, MEDIUM = LANES["default"], LANES["matmul-medium"]
GOLDEN = "tiny"


class Ends:
    """A candidate that ends the process."""

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


ends = Ends()


def counted(ran: Ran, lane: Any = PLAIN, reduces: bool = False) -> str:
    return LaneResult(lane, reduces=reduces, ran=(ran,)).kind(ran)


def test_a_lane_runs_in_its_own_process_and_runs_that_it_did_not_reach_count_as_wrong() -> None:
    cases = [("making-bert", GOLDEN, "bfloat16"), ("hf-onnx", GOLDEN, "float64"), (f"{__name__}:ends", GOLDEN, "float64")]
    found = measure.measured(LANES["aten-default"], [*cases, ("making-bert", GOLDEN, "float64")])
    assert [found.kind(ran) for ran in found.ran] == [PASSED, UNSUPPORTED, ALARM, ALARM]
    assert "no kernels" in found.ran[1].reason
    assert "ended with -9" in found.ran[2].reason
    assert found.capability == "DEFAULT"
    assert not measure.holds([found])


def test_a_broken_candidate_is_a_false_alarm_in_every_lane() -> None:
    broken = run(Candidate([MISTAKES["gelu-variant"].at(0)]), GOLDEN, "float64")
    assert broken.outcome == "fail"
    assert not broken.reduced
    assert [counted(broken), counted(broken, MEDIUM, True)] == [ALARM, ALARM]
    assert not measure.holds([LaneResult(PLAIN, ran=(broken,))])


def test_reduced_precision_is_reported_as_such() -> None:
    lowered = run(Candidate([MISTAKES["precision-bfloat16"].at(layer) for layer in range(2)]), GOLDEN, "float32")
    assert lowered.reduced
    assert counted(lowered, MEDIUM, True) == REDUCED
    assert counted(lowered, MEDIUM, False) == ALARM  # The machine has no reduced precision.
    assert counted(lowered) == ALARM


class Hidden:
    """A candidate that shows only its last layer's output."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        runner = self.candidate.prepare(checkpoint, device, dtype)
        return lambda batch: {name: x for name, x in dict(runner(batch)).items() if name == "encoder.layer.1.output.LayerNorm"}


@pytest.mark.parametrize(("plant", "reduced"), [("precision-bfloat16", True), ("gelu-variant", False), ("epsilon", False)])
def test_noise_of_hidden_products_is_recognised_as_reduced_precision_and_a_mistake_is_not(plant: str, reduced: bool) -> None:
    ran = run(Hidden(Candidate([MISTAKES[plant].at(layer) for layer in range(2)])), GOLDEN, "float32")
    assert (ran.outcome, ran.reduced) == ("fail", reduced)


def bfloat16(x: Any) -> Any:
    return x.bfloat16().float()


def attention_in_bfloat16(query: Any, key: Any, value: Any, attn_mask: Any = None, scale: float | None = None, **_: Any) -> Any:
    """Attention as computed by a tiled kernel: products of bfloat16 operands, exponentials rounded before division by their sum."""
    scores = bfloat16(query) @ bfloat16(key).mT * (scale or query.shape[-1] ** -0.5)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
    return bfloat16(exponentials) @ bfloat16(value) / exponentials.sum(-1, keepdim=True)


def test_products_inside_a_fused_attention_kernel_are_recognised_as_reduced_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = torch.nn.functional
    linear = functions.linear
    monkeypatch.setattr(functions, "linear", lambda x, weight, bias=None: linear(bfloat16(x), bfloat16(weight), bias))
    monkeypatch.setattr(functions, "scaled_dot_product_attention", attention_in_bfloat16)
    ran = run("hf-sdpa", "minilm", "float32")
    assert (ran.outcome, ran.reduced) == ("fail", True)


def test_a_lane_sets_only_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "outside")
    for lane in LANES.values():
        found = {name: value for name, value in environment(lane).items() if name in VARIABLES}
        assert found == {**lane.environment, "OMP_NUM_THREADS": str(lane.threads)}


def test_a_lane_that_the_cpu_lacks_is_in_the_table_and_judges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "aarch64"})
    found = [measure.measured(LANES["onednn-avx2"], [("making-bert", GOLDEN, "float64")])]
    assert lacking(PLAIN, {}) == ""
    assert not measure.holds(found)
    text = "\n".join(lines(found))
    assert "| onednn-avx2 | `ONEDNN_MAX_CPU_ISA=AVX2` | not run |" in text
    assert "- onednn-avx2 is not run: the CPU (aarch64) has no avx2" in text


def test_the_table_reports_wrong_results() -> None:
    right, wrong = Ran("a", "tiny", "float32", "pass"), Ran("b", "tiny", "float32", "fail", "it is off\nand more")
    skipped = Ran("a", "tiny", "float32", "skip", "it has no such kernel")
    text = "\n".join(lines([LaneResult(PLAIN, ran=(right, wrong)), LaneResult(LANES["onednn-avx2"], ran=(skipped, wrong))]))
    assert "| a | float32 | passed: default; unsupported: onednn-avx2 |" in text
    assert "| b | float32 | false alarm |" in text
    assert "- false alarm: it is off (b on tiny in float32; 2 lanes)" in text
