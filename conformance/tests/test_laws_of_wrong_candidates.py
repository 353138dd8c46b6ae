"""Laws on candidates whose forward pass is wrong: they are not blamed a second time, and what they break besides is still found."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.checks.check import Plan, Request
from conformance.checks.replay import replayed
from conformance.checks.run_check import run_check
from conformance.cli import main
from conformance.results.result import Result
from conformance.tests.planted_mistakes import MadeOf

LAWS = ("batching", "padding-length", "padding-content", "mask-omitted", "mask-dtype")


def _leaking(keep: Tensor, scores: Tensor) -> Tensor:
    """Let head 2 attend to padding."""
    keys = keep.expand_as(scores).clone()
    keys[:, 2] = True
    return keys


def _halved(scores: Tensor, keep: Tensor) -> Tensor:
    """Divide by √hidden_size in place of √head_size."""
    return (scores / 2.0).masked_fill(~keep, -torch.inf).softmax(-1)


def _halved_and_leaking(scores: Tensor, keep: Tensor) -> Tensor:
    return _halved(scores, _leaking(keep, scores))


def _curved(scores: Tensor, keep: Tensor) -> Tensor:
    """Compute a softmax that no mistake of the catalogue explains."""
    p = scores.masked_fill(~keep, -torch.inf).softmax(-1)
    return p * (1.0 + 0.1 * torch.sin(40.0 * p))


def _shifted(scores: Tensor, keep: Tensor) -> Tensor:
    """Round the scores, which differ by an ulp if there are several rows, to a multiple of 2⁻¹³, as float32 does near 1000."""
    nearly = scores * (1.0 + 2.0**-23 * (len(scores) > 1))
    return ((nearly + 1000.0) - 1000.0).masked_fill(~keep, -torch.inf).softmax(-1)


def _right(scores: Tensor, keep: Tensor) -> Tensor:
    return scores.masked_fill(~keep, -torch.inf).softmax(-1)


def _right_and_leaking(scores: Tensor, keep: Tensor) -> Tensor:
    return _right(scores, _leaking(keep, scores))


LARGE_EPSILON = "right(eps=1e-2)"


def _large_epsilon_over_the_batch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean, variance = x.mean((0, -1), keepdim=True), x.var((0, -1), keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + 1e-2) * weight + bias


WRONG: Mapping[str, Candidate] = {
    "scores halved": Candidate([changed("probs", _halved)]),
    "a softmax without a name": Candidate([changed("probs", _curved)]),
    "a large epsilon": Candidate([changed("norms", LARGE_EPSILON)]),
}

# A law that is broken, by a candidate that has another mistake in the same step, or one without a name before it.
BROKEN: Mapping[str, tuple[Candidate, str]] = {
    "scores halved, and a leak of padding": (Candidate([changed("probs", _halved_and_leaking)]), "padding-length"),
    "a leak after a softmax without a name": (Candidate([changed("probs", _curved, _right_and_leaking)]), "padding-length"),
    "a large epsilon, and norms over the batch": (Candidate([changed("norms", _large_epsilon_over_the_batch)]), "batching"),
}


def _judged(candidate: object, law: str, dtype: str = "float32", examples: int = 20, seed: int = 0) -> Result:
    return run_check(Request.of(candidate, "tiny", "cpu", dtype, law, plan=Plan(examples, seed)))


@pytest.mark.landing({"law": "batching", "dtype": "bfloat16"}, law=["batching", "padding-length"], dtype="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_forward_pass_breaks_no_law(wrong: str, law: str, dtype: str) -> None:
    result = _judged(WRONG[wrong], law, dtype, 40)
    assert result.outcome == "pass" or result.reason.startswith("not decided: "), result.reason


@pytest.mark.parametrize("wrong", WRONG)
def test_the_forward_pass_of_these_candidates_is_wrong(wrong: str) -> None:
    assert _judged(WRONG[wrong], "generated-batches", examples=2).outcome == "fail"


@pytest.mark.landing(seed=0)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_law_is_found_beside_a_wrong_forward_pass(broken: str, seed: int) -> None:
    candidate, law = BROKEN[broken]
    result = _judged(candidate, law, seed=seed)
    assert result.outcome == "fail", result.reason
    assert "in the other run" in result.reason


def test_a_law_that_is_undecided_fails_at_the_step_that_is_wrong_in_both_runs() -> None:
    result = _judged(Candidate([changed("probs", _shifted)]), "batching", examples=40)
    assert (result.outcome, result.executed, result.exit_code) == ("fail", True, 1)
    step = "encoder.layer.0.attention.self.probs"
    assert result.reason.startswith(f"not decided: {step} is wrong in both runs")
    assert re.search(rf"; {re.escape(step)}\[.*\] is \S+, expected \S+: \S+ times what", result.reason), result.reason


def test_a_difference_in_a_step_that_rounds_nothing_has_no_ratio() -> None:
    table = "embeddings.word_embeddings"
    result = _judged(MadeOf(lambda found: {**found, table: found[table] + 0.5}), "generated-batches", examples=2)
    assert result.outcome == "fail"
    assert result.reason.startswith(f"{table}[0, 0, ")
    assert result.reason.endswith(": nothing may differ there")


leaking = Candidate([changed("probs", _halved_and_leaking)])


def test_replay_prints_the_ratio_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "conformance.tests.test_laws_of_wrong_candidates:leaking"
    checks = ("--check", "padding-length", "--check", "generated-batches")
    assert main(["run", name, "--golden", "tiny", *checks, "--in-process", "-o", str(tmp_path)]) == 1
    ratios = re.findall(r"\S+ times what", " ".join(capsys.readouterr().out.split()))
    assert len(ratios) == 2
    for result in replayed(tmp_path / "results.jsonl"):
        (again,) = re.findall(r"\S+ times what", " ".join(str(result).split()))
        assert again in ratios
