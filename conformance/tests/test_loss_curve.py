"""The check `loss-curve`: correct loops pass, and a wrong one fails at its first wrong step, early or late."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from conformance import ModuleRunner, TorchBatch, TorchImplementation, Training, check, load_golden
from conformance.benchmarks.training.loops import CORRECT, WRONG, WRONG_GRADIENTS, ByHand, Loop
from conformance.checks import training_loops
from conformance.implementations.demystified import demystified
from conformance.implementations.demystified_as_written import demystified_as_written
from conformance.implementations.hugging_face import HuggingFace, hf_eager
from conformance.implementations.making_bert import Bert, making_bert
from conformance.judge import loss_curve
from conformance.judge.loss_curve import Expected, Replica, TrainedLoss, expected, followed, threshold
from conformance.model.activations import parameter_shapes
from conformance.model.checkpoint import rounded_weights
from conformance.model.gradients import grad
from conformance.model.training import FOLLOWED
from conformance.numerics.formats import Array
from conformance.numerics.function_error_bounds import table_bounds
from conformance.oracle import Network
from conformance.oracle.training_run import State, VectorLayout

pytestmark = pytest.mark.usefixtures("one_thread")
LOST = 50


def _forgetful(groups: Any, training: Training) -> torch.optim.Optimizer:
    """Adam that loses its averages after step 50, like a resumed run that restores only the parameters."""
    made = ByHand(groups, training)

    def forget(*_: Any) -> None:
        for state in made.state.values():
            if state["t"] == LOST:
                state["m"], state["v"] = torch.zeros_like(state["m"]), torch.zeros_like(state["v"])

    made.register_step_post_hook(forget)
    return made


def _decayed_after(groups: Any, training: Training) -> torch.optim.Optimizer:
    """AdamW whose decay is computed from the updated parameters."""

    class After(ByHand):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]  # without a closure
            super().step()
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(1.0 - group["lr"] * group["weight_decay"])

    return After(groups, training, decay="p")


def _late(wrong: Callable[[Bert, TorchBatch], None], right: Callable[[Bert, TorchBatch], None]) -> Any:
    """A backward pass that is wrong after step 50."""

    def candidate() -> TorchImplementation:
        done = 0

        def backward(model: Bert, batch: TorchBatch) -> None:
            nonlocal done
            done += 1
            (wrong if done > LOST else right)(model, batch)

        return Loop(backward=backward).candidate

    return candidate


def _rate_off(training: Training, step: int) -> float:
    return 1.01 * training.rate(step)


BROKEN = {  # Candidates and their first wrong step.
    "averages lost": (lambda: Loop(_forgetful).candidate, LOST + 1),
    "rate 1 % off": (lambda: Loop(rate=_rate_off).candidate, 2),
    "bias correction missing": (lambda: WRONG["bias correction missing"].loop.candidate, 2),
    "decay after the update": (lambda: Loop(_decayed_after).candidate, 2),
    "mask left out in the end": (_late(WRONG_GRADIENTS["no mask"].loop.backward, Loop().backward), LOST + 1),
}


# Correct loops come first: the losses that they store are those that the wrong ones, which end early, are compared with.
@pytest.mark.landing(candidate=CORRECT["foreach"].candidate)
@pytest.mark.parametrize(
    ("candidate", "golden", "dtype"),
    [
        (hf_eager, "tiny", "float64"),
        (demystified, "sinusoidal", "float32"),
        (CORRECT["foreach"].candidate, "tiny", "float32"),
        (CORRECT["fused"].candidate, "tiny", "bfloat16"),
        (CORRECT["by hand, with and without correction"].candidate, "tiny", "bfloat16"),
        (CORRECT["clipped as in TensorFlow"].candidate, "tiny", "float32"),
        (CORRECT["accumulated over micro-batches"].candidate, "tiny", "float32"),
    ],
)
def test_correct_loops_pass(candidate: Any, golden: str, dtype: str) -> None:
    result = check(candidate, golden, dtype=dtype, check="loss-curve")
    assert result.outcome == "pass", result.reason


@pytest.mark.landing(name=[*BROKEN][::3])
@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_loop_fails_at_its_first_wrong_step(name: str) -> None:
    made, first = BROKEN[name]
    result = check(made(), "tiny", check="loss-curve")
    assert (result.outcome, result.exit_code) == ("fail", 1)
    assert f"linear: after step {first} cls.predictions.loss is " in result.reason


def test_parameters_that_are_not_finite_fail() -> None:
    def nowhere(parameters: Any, c: float) -> None:
        for p in parameters:
            p.grad = torch.full_like(p, torch.nan)

    result = check(Loop(clip=nowhere).candidate, "tiny", check="loss-curve")
    assert "after step 1 cls.predictions.loss, or a parameter, is not finite" in result.reason


SEEN = "where correct loops have been seen to learn"


@pytest.mark.parametrize(
    ("name", "candidate", "golden", "dtype", "reason"),
    [
        ("loss-curve", making_bert, "tiny", "float32", "its runner has no training loop"),
        ("loss-curve", hf_eager, "edges", "float32", "it is asked on tiny and sinusoidal"),
        ("loss-curve", hf_eager, "tiny", "float16", "underflow"),
        ("loss-curve", replace(Loop().candidate, frozen=("lm_head.unembedding.bias",)), "tiny", "float32", "no bias of a head is"),
        ("learning", making_bert, "tiny", "float32", "its runner has no training loop"),
        ("learning", hf_eager, "deep", "float32", SEEN),
        ("learning", hf_eager, "token-heads", "float32", SEEN),
        ("learning", hf_eager, "tiny", "bfloat16", "steps are lost in the rounding"),
    ],
)
def test_an_impossible_request_is_skipped_with_the_reason(name: str, candidate: Any, golden: str, dtype: str, reason: str) -> None:
    result = check(candidate, golden, dtype=dtype, check=name)
    assert (result.outcome, reason in result.reason) == ("skip", True), result.reason


def _trained(steps: int) -> tuple[TrainedLoss, Array, Training]:
    """Return the masked-LM loss of `tiny`, its parameters and the settings of a loop of a few steps, in float32."""
    golden = load_golden("tiny")
    architecture, weights = golden.checkpoint.architecture, rounded_weights(golden.checkpoint, "float32")
    network = Network(architecture, weights, golden.batches["padded"], source="cls.predictions.loss")
    layout = VectorLayout({name: shape for name, shape in parameter_shapes(architecture).items() if grad(name) in network.table})
    return TrainedLoss(network, layout), layout.vector(weights), replace(FOLLOWED["linear"], warmup_steps=2, max_steps=steps)


def test_independent_replicas_lie_within_the_threshold() -> None:
    """Of replicas with rounding errors as modelled, half lie within the median of |t| and none beyond the threshold."""
    loss, start, training = _trained(8)
    own = list(expected(loss, start, training, "float32", "cpu", table_bounds()))
    exact = State.initial(start)
    replicas = [Replica.of(0, 100 + seed, exact, training, "float32", "cpu", table_bounds()) for seed in range(12)]
    *_, (_, last) = followed(loss, exact, training, replicas)
    distances = [abs(distance) / own[-1].spread for distance in last]
    assert max(distances) < threshold(1e-6)
    median = student.isf(0.25, loss_curve.REPLICAS)
    assert 2 <= sum(distance <= median for distance in distances) <= 10  # Binomial (12, 1/2): 0.3 % lies beyond on either side.


# The check `learning`.


class _OtherLoop(HuggingFace):
    """transformers' network and training loop, with changed batches or gradients."""

    def __init__(self, batch: Callable[[Any], Any] = lambda b: b, gradient: float = 1.0) -> None:
        super().__init__("eager", "other loop")
        self._batch, self._gradient = batch, gradient

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> ModuleRunner:
        runner = super().prepare(checkpoint, device, dtype)
        usual: Any = runner.trainer
        for parameter in runner.module.parameters():
            parameter.register_hook(lambda grad: self._gradient * grad)

        def trainer(training: Training) -> Any:
            step = usual(training)
            return lambda batch: step(self._batch(batch))

        return ModuleRunner(runner.module, runner, runner.gradients, trainer=trainer)


def _shifted(batch: Any) -> Any:
    """Shift each label by one position; the token there gives no information about the label, since rows are exchanged."""
    batch.labels = batch.labels.roll(1, 0)
    return batch


@pytest.mark.landing(candidate=[hf_eager, demystified], golden=["tiny", "sinusoidal"], dtype="float32")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("candidate", "golden"),
    [
        *((hf_eager, golden) for golden in training_loops.MEASURED if golden != "sinusoidal"),
        *((candidate, "sinusoidal") for candidate in (demystified, demystified_as_written)),
    ],
    ids=lambda case: getattr(case, "name", case),
)
def test_loops_that_learn_pass(candidate: Any, golden: str, dtype: str) -> None:
    result = check(candidate, golden, dtype=dtype, check="learning")
    assert result.conforms, result.reason


@pytest.mark.parametrize(
    "candidate",
    [_OtherLoop(batch=_shifted), _OtherLoop(gradient=-1.0)],
    ids=["labels of other rows", "uphill"],
)
def test_loops_that_do_not_learn_fail(candidate: Any) -> None:
    result = check(candidate, "tiny", check="learning")
    assert result.outcome == "fail"
    assert "frequencies alone give 4.543" in result.reason


def test_a_spread_of_zero_allows_no_difference() -> None:
    assert Expected(1.0, 0.0).deviation(1.0) == 0.0
    assert Expected(1.0, 0.0).deviation(1.5) == np.inf
    assert Expected(1.0, 0.1).deviation(1.5) == pytest.approx(5.0)


def test_the_threshold_is_that_of_students_distribution() -> None:
    assert threshold(1e-8) == pytest.approx(student.isf(0.5e-8, loss_curve.REPLICAS))
