"""The losses of regression and multi-label classification: correct in every form, and each mistake is named at its place."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conformance import ModuleRunner, Result, TorchBatch, check, golden_of, load_golden
from conformance.benchmarks.planted import rewritten
from conformance.errors import UsageError
from conformance.implementations.hugging_face import HuggingFace, hf_eager, run
from conformance.implementations.hugging_face_losses import losses
from conformance.implementations.inner_workings import inner_workings
from conformance.tests.optional_paths import generated

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = ("float64", "float32", "bfloat16", "float16")

Loss = Callable[[Tensor, Tensor], Tensor]  # Functions of logits and targets, (B, C) each.


PROBLEMS = {(1, None): "regression", (3, None): "single_label_classification", (3, "regression"): "regression"}


class WithLoss(HuggingFace):
    """Hugging Face's BERT with another classification loss, which is computed of the logits of a pass without targets."""

    def __init__(self, loss: Loss) -> None:
        super().__init__("eager")
        self.loss = loss

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> ModuleRunner:
        model = self.module(checkpoint, device, dtype)

        def forward(batch: TorchBatch) -> dict[str, Tensor]:
            made = dict(run(model, replace(batch.numpy(), class_targets=None).on("cpu")))
            targets = batch.class_targets.to(made["classifier"].dtype)  # type: ignore[union-attr]
            return {**made, "classifier.loss": self.loss(made["classifier"], targets)}

        return ModuleRunner(model, forward)


def softplus(x: Tensor) -> Tensor:
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


CORRECT: dict[str, tuple[str, Loss]] = {
    "mse_loss": ("regression", F.mse_loss),
    "squeezed": ("regression", lambda x, t: F.mse_loss(x.squeeze(-1), t.squeeze(-1))),
    "power": ("regression", lambda x, t: (x - t).pow(2).mean()),
    "sum over number": ("regression", lambda x, t: ((t - x) * (t - x)).sum() / x.numel()),
    "with logits": ("multi-label", F.binary_cross_entropy_with_logits),
    "log-sigmoid": ("multi-label", lambda x, t: -(t * F.logsigmoid(x) + (1 - t) * F.logsigmoid(-x)).mean()),
    "softplus": ("multi-label", lambda x, t: (softplus(x) - t * x).mean()),
    "row by row": ("multi-label", lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none").mean(1).mean()),
}

WRONG: dict[str, tuple[str, Loss]] = {
    "targets-broadcast": ("regression", lambda x, t: ((x - t.squeeze(-1)) ** 2).mean()),
    "regression-loss-halved": ("regression", lambda x, t: F.mse_loss(x, t) / 2),
    "regression-loss-absolute": ("regression", F.l1_loss),
    "regression-as-classes": ("regression", lambda x, t: F.cross_entropy(x, torch.zeros(len(x), dtype=torch.int64))),
    "multi-label-as-classes": ("multi-label", F.cross_entropy),
    "multi-label-sigmoid-twice": ("multi-label", lambda x, t: F.binary_cross_entropy_with_logits(x.sigmoid(), t)),
    "targets-loss-summed-over-labels": (
        "multi-label", lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none").sum(1).mean(),
    ),
    "targets-loss-summed": ("multi-label", partial(F.binary_cross_entropy_with_logits, reduction="sum")),
}  # fmt: skip


def named(result: Result) -> dict[str, list[str]]:
    """Return the faults of the best explanation of each origin."""
    return {v.activation: [f.name for f in v.local.explanations[0].faults] for v in result.origins if v.local}


@pytest.mark.landing({"dtype": "float32"}, form="power")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", CORRECT)
def test_every_correct_form_of_a_loss_conforms(form: str, dtype: str) -> None:
    golden, loss = CORRECT[form]
    result = check(WithLoss(loss), golden, dtype=dtype)
    assert result.conforms, [(v.place, v.local and v.local.error) for v in result.origins]
    assert any(v.activation == "classifier.loss" and v.outcome == "pass" for v in result.verdicts)


@pytest.mark.landing(dtype="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_fails_at_the_loss_and_is_named(name: str, dtype: str) -> None:
    golden, loss = WRONG[name]
    assert named(check(WithLoss(loss), golden, dtype=dtype)) == {"classifier.loss": [name]}


@pytest.mark.landing({"dtype": "float32", "golden": "regression"}, dtype="bfloat16", golden="multi-label")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("golden", ["regression", "multi-label"])
def test_gradients_of_a_correct_loss_conform(golden: str, dtype: str) -> None:
    result = check(HuggingFace("eager"), golden, dtype=dtype, check="gradients")
    assert result.conforms, result.reason


# Functions of logits, targets and the correct gradient with respect to the logits.
Slope = Callable[[Tensor, Tensor, Tensor], Tensor]


def sigmoid_slope(x: Tensor) -> Tensor:
    return x.sigmoid() * (1 - x.sigmoid())


WRONG_GRADIENTS: dict[str, list[tuple[str, Slope]]] = {
    "gradient-scaled": [
        *((golden, lambda x, t, g: g * x.numel()) for golden in ("regression", "multi-label")),
        ("multi-label", lambda x, t, g: g * x.shape[1]),
        ("regression", lambda x, t, g: g / 2),
    ],
    "targets-gradient-without-target": [
        ("regression", lambda x, t, g: 2 * x / x.numel()),
        ("multi-label", lambda x, t, g: x.sigmoid() / x.numel()),
    ],
    "regression-gradient-absolute": [("regression", lambda x, t, g: (x - t).sign() / x.numel())],
    "multi-label-gradient-sigmoid-twice": [
        ("multi-label", lambda x, t, g: (x.sigmoid().sigmoid() - t) * sigmoid_slope(x) / x.numel()),
    ],
    "multi-label-gradient-of-logits": [("multi-label", lambda x, t, g: (x - t) / x.numel())],
    "multi-label-gradient-squared": [("multi-label", lambda x, t, g: 2 * (x.sigmoid() - t) * sigmoid_slope(x) / x.numel())],
    "multi-label-gradient-as-classes": [("multi-label", lambda x, t, g: (t.sum(-1, True) * x.softmax(-1) - t) / len(x))],
    "multi-label-positives-weighted": [("multi-label", lambda x, t, g: ((1 + 2 * t) * x.sigmoid() - 3 * t) / x.numel())],
}


@pytest.mark.landing(name=[*WRONG_GRADIENTS][::3], dtype="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WRONG_GRADIENTS)
def test_a_wrong_gradient_of_a_correct_loss_is_named_at_the_logits(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for golden, slope in WRONG_GRADIENTS[name]:

        def planted(logits: dict[str, Tensor], batch: TorchBatch, problem: str | None, slope: Slope = slope) -> dict[str, Tensor]:
            assert batch.class_targets is not None
            targets = batch.class_targets.to(logits["classifier"].dtype)
            changed = rewritten(logits["classifier"], Tensor.clone, lambda x, g: slope(x, targets, g))
            return losses({**logits, "classifier": changed}, batch, problem)

        monkeypatch.setattr("conformance.implementations.hugging_face.losses", planted)
        result = check(HuggingFace("eager"), golden, dtype=dtype, check="gradients")
        assert named(result) == {"classifier.grad": [name]}, golden


def test_the_weight_of_positive_labels_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    def weighted(x: Tensor, t: Tensor, problem: str | None) -> Tensor:
        return F.binary_cross_entropy_with_logits(x, t.to(x.dtype), pos_weight=torch.full(x.shape[1:], 3.0, dtype=x.dtype))

    monkeypatch.setattr("conformance.implementations.hugging_face_losses._loss_of_targets", weighted)
    origins = {v.activation: v for v in check(HuggingFace("eager"), "multi-label", check="gradients").origins}
    local = origins["classifier.grad"].local
    assert local is not None
    (fault,) = local.named
    assert (fault.name, fault.estimate and round(fault.estimate.value, 3)) == ("multi-label-positives-weighted", 3.0)


@pytest.mark.parametrize(
    ("golden", "given", "message"),
    [
        ("regression", {"class_labels": np.zeros(4, np.int64)}, "there are class_labels, and the network's problem is regression"),
        ("regression", {"class_targets": np.zeros((4, 2))}, r"class_targets are 2 a row, expected 1 \(num_labels\)"),
        ("multi-label", {"class_targets": np.full((4, 5), 1.5)}, "class_targets has values outside 0 to 1"),
        ("multi-label", {"class_targets": np.full((4, 5), np.nan)}, "class_targets has values that are not finite"),
        ("tiny", {"class_targets": np.zeros((6, 3))}, "give class_labels"),
    ],
)
def test_labels_of_another_problem_are_refused(golden: str, given: dict[str, Any], message: str) -> None:
    (batch,) = load_golden(golden).batches.values()
    with pytest.raises(UsageError, match=message):
        golden_of("own", load_golden(golden).checkpoint, {"own": replace(batch, **{"class_labels": None, **given})})


LABELLED: dict[tuple[str, int], dict[str, Any]] = {
    ("single_label_classification", 1): {"class_labels": [0, 0]},
    ("multi_label_classification", 1): {"class_targets": [[1.0], [0.0]]},
    ("regression", 1): {"class_targets": [[0.5], [-1.0]]},
    ("regression", 2): {"class_targets": [[0.5, 1.5], [-1.0, 0.25]]},
}


@pytest.mark.landing(candidate=inner_workings)
@pytest.mark.parametrize("candidate", [inner_workings, hf_eager], ids=lambda c: c.name)
@pytest.mark.parametrize(("problem", "count"), LABELLED)
def test_the_loss_is_that_of_the_problem_type_for_any_number_of_labels(problem: str, count: int, candidate: Any) -> None:
    arrays = {"input_ids": [[3, 4, 5], [6, 7, 8]], **LABELLED[problem, count]}
    golden = generated("tiny", arrays, heads=("classification",), num_labels=count, problem_type=problem)
    result = check(candidate, golden)
    if candidate is hf_eager and (problem, count) == ("single_label_classification", 1):
        assert result.outcome == "skip", result
        assert "two labels or more" in result.reason
        return
    assert result.conforms, result
    assert "classifier.loss" in {v.activation for v in result.verdicts}


def test_the_problem_type_is_determined_as_by_hugging_face() -> None:
    a = load_golden("tiny").checkpoint.architecture
    assert {(n, kind): a.with_(num_labels=n, problem_type=kind).problem for n, kind in PROBLEMS} == PROBLEMS
