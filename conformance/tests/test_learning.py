"""The check `learning`: a network that learns passes, and one that does not fails. What cannot be judged: `test_loss_curve`."""

from collections.abc import Callable
from typing import Any

import pytest

from conformance import ModuleRunner, Training, check
from conformance.checks import training_loops
from conformance.implementations.demystified import demystified
from conformance.implementations.demystified_as_written import demystified_as_written
from conformance.implementations.hugging_face import HuggingFace, hf_eager

pytestmark = pytest.mark.usefixtures("one_thread")


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
