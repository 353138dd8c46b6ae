"""Training mode: dropouts are judged by their masks, and all other steps given those masks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conformance import TorchImplementation, load_golden
from conformance.benchmarks.training.dropouts import CORRECT, PROBS, WRONG
from conformance.benchmarks.training.measure import found_as
from conformance.candidates.arrays import pairs
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.checks.training_passes import in_training
from conformance.diagnosis.unexposed_layers import UnexposedLayersSearch
from conformance.errors import UnsupportedArchitectureError
from conformance.implementations.demystified import demystified
from conformance.implementations.hugging_face import hf_eager, hf_sdpa
from conformance.implementations.inner_workings import inner_workings
from conformance.implementations.making_bert import making_bert
from conformance.implementations.torch_encoder import BertOfTorch, torch_encoder
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.judge.dropout_masks import Draw, wrong_draws
from conformance.judge.judge import Judge
from conformance.model.activation import Activation
from conformance.model.activations import dropouts
from conformance.numerics.formats import Mask
from conformance.oracle import Network
from conformance.results.result import Result

TINY = load_golden("tiny")
ARCHITECTURE = TINY.checkpoint.architecture
ROW = dropouts(ARCHITECTURE)["embeddings.dropout"]

# A worker finds these by their names.
planted = WRONG["rate doubled"].candidate
for_evaluation = replace(making_bert, evaluation_only=True)


def judged(candidate: Any, golden: str = "tiny", dtype: str = "float32") -> Result:
    return run_check(Request.of(candidate, golden, "cpu", dtype, "training-mode"))


@pytest.mark.landing(name=[*WRONG][::3])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_dropout_is_named_at_its_place(name: str) -> None:
    assert found_as(WRONG[name], "float32") == (True, True, True)


@pytest.mark.landing(name=[*CORRECT][::2], dtype="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CORRECT)
def test_an_unusual_correct_dropout_passes(name: str, dtype: str) -> None:
    result = judged(CORRECT[name].candidate, dtype=dtype)
    assert result.outcome == "pass", result.reason


@pytest.mark.landing(candidate=[hf_sdpa, demystified])
@pytest.mark.parametrize(
    ("candidate", "golden"),
    [(hf_eager, "tiny"), (hf_sdpa, "tiny"), (inner_workings, "tiny"), (torch_encoder, "tiny"), (demystified, "sinusoidal")],
    ids=lambda value: getattr(value, "name", value),
)
def test_training_mode_is_judged_at_full_coverage(candidate: Any, golden: str) -> None:
    result, in_evaluation = judged(candidate, golden), run_check(Request.of(candidate, golden, "cpu", "float32", "gradients"))
    assert result.outcome == "pass", result.reason
    judged_there = {v.activation for v in in_evaluation.verdicts if v.outcome == "pass"}
    missed = judged_there - {v.activation for v in result.verdicts if v.outcome == "pass"}
    # transformers returns the probabilities of its eager attention after dropout: those before it are hidden.
    assert {name.removesuffix(".grad").rpartition(".")[2] for name in missed} <= {"probs"}


def _without_embeddings(a: Any) -> nn.Module:
    model = BertOfTorch(a, nested=False)
    model.embeddings.dropout = nn.Identity()  # type: ignore[assignment]  # the mistake
    return model


def _without_probabilities(a: Any) -> nn.Module:
    model = BertOfTorch(a, nested=False)
    for layer in model.encoder.layers:
        layer.self_attn.dropout = 0.0  # type: ignore[union-attr,assignment]  # the mistake
    return model


@pytest.mark.parametrize(
    ("build", "place"), [(_without_embeddings, "embeddings.dropout"), (_without_probabilities, PROBS.replace("1", "0"))]
)
def test_a_dropout_that_is_neither_shown_nor_applied_is_noticed(build: Any, place: str) -> None:
    assert isinstance(torch_encoder, TorchImplementation)
    hidden = {where: name for where, name in torch_encoder.activations.items() if name != place}
    result = judged(replace(torch_encoder, build=build, activations=hidden))
    assert (result.outcome, f"nothing is dropped at {place}" in result.reason) == ("fail", True)


def test_afterwards_the_module_is_in_eval_mode_and_torchs_random_state_is_restored() -> None:
    runner = making_bert.prepare(TINY.checkpoint, "cpu", "float32")
    batch, before = TINY.batches["padded"].on("cpu"), torch.get_rng_state()
    found, again, other = (dict(in_training(runner, seed, lambda: pairs(runner(batch), {}))) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in runner.module.modules())
    assert torch.equal(found[PROBS], again[PROBS])
    assert not torch.equal(found[PROBS], other[PROBS])


def _without_training(*case: Any) -> Any:
    runner = making_bert.prepare(*case)
    return lambda batch: runner(batch)


def test_training_mode_is_judged_in_a_worker_and_skipped_without_one_with_the_reason() -> None:
    with WorkerProcess(CandidateWork) as worker:
        right, wrong, skipped = (
            judged(RemoteCandidate(worker, name)) for name in ("making-bert", f"{__name__}:planted", f"{__name__}:for_evaluation")
        )
    assert right.outcome == "pass", right.reason
    here = judged(planted)
    assert here.outcome == "fail"
    assert [(v.activation, v.outcome, v.reason) for v in wrong.verdicts] == [
        (v.activation, v.outcome, v.reason) for v in here.verdicts
    ]
    without = judged(_without_training)
    assert (skipped.outcome, without.outcome) == ("skip", "skip")
    assert skipped.reason.startswith("`evaluation_only=True` in the adaptor")
    assert "no training mode" in without.reason


def test_the_oracles_dropout_and_its_gradient_equal_torchs() -> None:
    kept = np.random.default_rng(0).random(ROW.shape(6, 16, 4)) >= 0.1
    batch = TINY.batches["padded"]
    network = Network(ARCHITECTURE, TINY.checkpoint.weights, batch, source="cls.loss", kept={ROW.name: kept.astype(np.float64)})
    values = dict(network.walk())
    assert network.table["embeddings.LayerNorm.grad"].kind == "dropout_backward"
    x = torch.from_numpy(values["embeddings.LayerNorm"]).requires_grad_()
    y = x * torch.from_numpy(kept) / 0.9
    y.backward(torch.from_numpy(values["embeddings.dropout.grad"]))
    np.testing.assert_allclose(values[ROW.name], y.detach().numpy(), rtol=1e-15)
    assert x.grad is not None
    np.testing.assert_allclose(values["embeddings.LayerNorm.grad"], x.grad.numpy(), rtol=1e-15)


def _draw(kept: Mask, row: Activation = ROW) -> dict[str, Draw]:
    return {row.name: Draw.of(row, ARCHITECTURE, kept, np.ones_like(kept))}


def test_fair_masks_are_rejected_no_more_often_than_promised() -> None:
    rng, total, trials = np.random.default_rng(0), 0.2, 300
    alarms = sum(bool(wrong_draws([_draw(rng.random((3, 8, 16)) >= 0.1)], total)[0]) for _ in range(trials))
    assert 0 < alarms <= total * trials


@given(st.sampled_from(["batch", "position", "feature", "call", "rate"]), st.integers(0, 2**32 - 1))
def test_masks_that_are_not_independent_draws_are_rejected(how: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fair = rng.random((4, 16, 32)) >= 0.1
    masks = {
        "batch": np.broadcast_to(fair[:1], fair.shape),
        "position": np.broadcast_to(fair[:, :1], fair.shape),
        "feature": np.broadcast_to(rng.random((4, 16, 1)) >= 0.1, fair.shape),
        "call": fair,
        "rate": rng.random(fair.shape) >= 0.2,
    }
    wrong = wrong_draws([_draw(fair), _draw(masks[how])], 1e-6)[1]
    if masks[how].all():  # With one draw for each token, all of them may be kept, and then no repetition can be seen.
        return
    assert wrong
    assert how in ("call", "rate") or f"`{how}`" in wrong[ROW.name] or "the call before" in wrong[ROW.name]


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan"), "0.1", None])
def test_a_rate_that_is_not_a_probability_is_refused(rate: Any) -> None:
    with pytest.raises(UnsupportedArchitectureError, match="hidden_dropout_prob"):
        ARCHITECTURE.with_(hidden_dropout_prob=rate)


def test_hidden_steps_between_dropouts_are_searched_on_a_part_of_the_batch_with_its_masks() -> None:
    """A correct network in training mode that exposes its hidden dropouts alone."""
    a, batch, rng = ARCHITECTURE.with_(attention_probs_dropout_prob=0.0), TINY.batches["padded"], np.random.default_rng(0)
    shapes = {name: row.shape(batch.size, batch.length, a.num_attention_heads) for name, row in dropouts(a).items()}
    kept = {name: (rng.random(shape) > 0.1).astype(np.float64) for name, shape in shapes.items()}
    network = Network(a, TINY.checkpoint.weights, batch, kept=kept)
    judge = Judge(network, "float32", unexposed_layers=UnexposedLayersSearch("float32"))
    stream = ((name, torch.tensor(value).float()) for name, value in network.walk() if name in kept)
    judged = [verdict for verdict, _ in judge.judge(stream) if verdict.outcome != "not_observed"]
    assert {verdict.activation for verdict in judged} == set(kept)
    assert {verdict.outcome for verdict in judged} == {"pass"}
