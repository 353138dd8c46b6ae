"""Training loops: each step of the optimizer is judged, and the schedule over a whole run."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import get_inverse_sqrt_schedule, get_linear_schedule_with_warmup

from conformance import Training, load_golden
from conformance.benchmarks.training.loops import CORRECT, WRONG, WRONG_GRADIENTS
from conformance.benchmarks.training.measure import explained, gradients_alone, is_named, said_of
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.goldens.golden import with_config
from conformance.implementations.demystified import demystified
from conformance.implementations.hugging_face import hf_eager
from conformance.implementations.making_bert import making_bert
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.model.training import SCHEDULED, STEPPED, WHOLE, at, decays
from conformance.oracle.training_run import TrainingRun
from conformance.results.result import Result

GOLDEN = load_golden("tiny")
MATRIX, VECTOR = "bert.pooler.dense.weight", "bert.pooler.dense.bias"

loop = CORRECT["torch's AdamW"].candidate  # A worker finds it by its name.


def judged(check: str, candidate: Any, dtype: str = "float32", golden: str = "tiny") -> Result:
    return run_check(Request.of(candidate, golden, "cpu", dtype, check))


@pytest.mark.landing(name=[*WRONG][::5])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_named(name: str) -> None:
    found = explained(WRONG[name], "float32")
    assert is_named(WRONG[name], found), found


@pytest.mark.landing(name="no mask")
@pytest.mark.parametrize("name", WRONG_GRADIENTS)
def test_a_wrong_gradient_in_a_loop_is_found_and_described(name: str) -> None:
    assert WRONG_GRADIENTS[name].said in said_of(WRONG_GRADIENTS[name], "float32")


def test_parameters_that_are_not_finite_fail_alone() -> None:
    def diverged(model: Any, training: Training) -> Any:
        step = loop.train(model, training) if loop.train else None

        def broken(batch: Any) -> None:
            assert step is not None
            step(batch)
            model.lm_head.mlp.bias.data.fill_(np.nan)

        return broken

    result = judged("optimizer-step", replace(loop, train=diverged))
    first = result.failures[0]
    assert (result.outcome, first.activation) == ("fail", at(1, "cls.predictions.transform.dense.bias"))
    assert "not finite" in first.reason


def test_without_the_bias_of_a_head_the_loss_is_unknown_and_only_the_steps_are_judged() -> None:
    frozen = replace(loop, frozen=("lm_head.unembedding.bias",))
    assert gradients_alone(Request.of(frozen, GOLDEN)) == []
    assert len(gradients_alone(Request.of(loop, GOLDEN))) == 1


@pytest.mark.landing({"name": [*CORRECT][-1], "check": "schedule"}, name=[*CORRECT][::3], check="optimizer-step")
@pytest.mark.parametrize("check", ["optimizer-step", "schedule"])
@pytest.mark.parametrize("name", CORRECT)
def test_an_unusual_correct_loop_passes(name: str, check: str) -> None:
    result = judged(check, CORRECT[name].candidate, "bfloat16" if name == "by hand, with and without correction" else "float32")
    assert result.outcome == "pass", result.reason


@pytest.mark.landing(
    {"candidate": demystified, "check": "schedule", "dtype": "float32"}, candidate=hf_eager, check="optimizer-step", dtype="float32"
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("check", ["optimizer-step", "schedule"])
@pytest.mark.parametrize(("candidate", "golden"), [(hf_eager, "tiny"), (demystified, "sinusoidal")])
def test_the_loops_of_the_implementations_pass(candidate: Any, golden: str, check: str, dtype: str) -> None:
    result = judged(check, candidate, dtype, golden)
    assert result.outcome == "pass", result.reason


@pytest.mark.parametrize(
    ("check", "candidate", "dtype", "heads", "words"),
    [
        ("optimizer-step", making_bert, "float32", True, "no training loop"),
        ("optimizer-step", making_bert, "float32", True, "a TorchImplementation has `train=` for it"),
        ("optimizer-step", loop, "float16", True, "underflow"),
        ("optimizer-step", hf_eager, "float32", False, "no head with a loss"),
        ("schedule", hf_eager, "float32", False, "no head with a loss"),
    ],
)
def test_what_cannot_be_judged_is_skipped_with_the_reason(check: str, candidate: Any, dtype: str, heads: bool, words: str) -> None:
    golden = GOLDEN if heads else with_config(GOLDEN, heads=())
    result = run_check(Request.of(candidate, golden, "cpu", dtype, check))
    assert (result.outcome, words in result.reason) == ("skip", True), result.reason


def test_a_loop_in_a_worker_is_judged_as_in_this_process() -> None:
    with WorkerProcess(CandidateWork) as worker:
        there = judged("schedule", RemoteCandidate(worker, f"{__name__}:loop"))
    here = judged("schedule", loop)
    assert there.outcome == here.outcome == "pass"
    assert [(v.activation, v.local) for v in there.verdicts] == [(v.activation, v.local) for v in here.verdicts]


def test_a_step_must_yield_parameters_and_gradients_of_their_shapes() -> None:
    def of(**pairs: Any) -> Any:
        class Candidate:
            def prepare(self, *asked: Any) -> Any:
                runner = making_bert.prepare(*asked)
                return replace(runner, trainer=lambda training: lambda batch: pairs.items())

        return Candidate()

    assert "not 'nothing'" in judged("optimizer-step", of(nothing=torch.ones(1))).reason
    assert f"{VECTOR}.grad is no array of shape (32,)" in judged("optimizer-step", of(**{f"{VECTOR}.grad": torch.ones(3)})).reason
    assert "for one at least" in judged("optimizer-step", of(**{VECTOR: torch.ones(32)})).reason


@given(st.sampled_from(sorted(STEPPED)), st.integers(0, 2**32 - 1))
def test_the_oracles_steps_equal_torchs_in_float64(label: str, seed: int) -> None:
    training, rng = STEPPED[label], np.random.default_rng(seed)
    weights = {name: np.asarray(GOLDEN.checkpoint.weights[name]) for name in (MATRIX, VECTOR)}
    gradients = [{name: rng.standard_normal(w.shape) * rng.uniform(0.01, 10.0) for name, w in weights.items()} for _ in range(4)]
    batch = GOLDEN.batches["padded"]
    run = TrainingRun(GOLDEN.checkpoint.architecture, weights, batch, training=training, gradients=tuple(gradients))
    found = dict(run.walk())
    if not training.bias_correction:
        return  # torch has no such Adam; `ByHand` is judged by the check.
    parameters = {name: nn.Parameter(torch.from_numpy(w.copy())) for name, w in weights.items()}
    groups = [{"params": [p], "weight_decay": training.weight_decay * decays(name)} for name, p in parameters.items()]
    optimizer = torch.optim.AdamW(groups, eps=training.adam_epsilon)
    for t, step in enumerate(gradients, 1):
        for name, p in parameters.items():
            p.grad = torch.from_numpy(step[name].copy())
        nn.utils.clip_grad_norm_(parameters.values(), training.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = training.rate(t)
        optimizer.step()
        for name, p in parameters.items():
            np.testing.assert_allclose(found[at(t, name)], p.detach().numpy(), rtol=0.0, atol=1e-6 * training.learning_rate)


@pytest.mark.parametrize("label", ["linear", "inverse_sqrt"])
def test_the_rates_equal_those_of_transformers_schedulers(label: str) -> None:
    training = SCHEDULED[label]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    if training.lr_scheduler_type == "linear":
        scheduler = get_linear_schedule_with_warmup(optimizer, training.warmup_steps, training.max_steps)
    else:
        scheduler = get_inverse_sqrt_schedule(optimizer, training.warmup_steps)
    for t in range(1, WHOLE + 1):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(training.rate(t), rel=1e-12)
        optimizer.step()
        scheduler.step()
