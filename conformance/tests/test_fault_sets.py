"""The search for sets of faults: what it shares among a step, unexposed layers and black boxes, and what it need not evaluate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import check
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.equations import Change
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.networks import network
from conformance.faults import BY_NAME
from conformance.judge import observation
from conformance.judge.search.placements import SINGLE, FaultPlacement, with_faults
from conformance.judge.segment import Segment
from conformance.numerics.formats import FORMATS
from conformance.numerics.thresholds import FALSE_ALARM, projection_threshold
from conformance.oracle import Network
from conformance.results.result import Result
from conformance.tests.test_unexposed_layers import EPSILON, TANH_GELU, named

NORM = "encoder.layer.0.attention.output.LayerNorm"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_wrong_numbers_of_one_step_are_estimated_together(dtype: str) -> None:
    planted = {"epsilon": 1e-5, "sublayer-scaled": 0.9}
    (verdict,) = check(Candidate([MISTAKES[name].at(0) for name in planted]), dtype=dtype).origins
    assert verdict.activation == NORM
    assert verdict.local is not None
    estimates = {fault.name: fault.estimate for fault in verdict.local.named}
    assert estimates.keys() == planted.keys()
    for name, value in planted.items():
        estimate = estimates[name]
        assert estimate is not None
        exact = float(FORMATS["float32"].round(np.asarray(value)))
        assert abs(estimate.value - exact) <= estimate.room(projection_threshold(FALSE_ALARM))


def test_a_set_of_which_one_fault_has_no_effect_is_not_effective() -> None:
    golden = network("bert", 1)
    ((_, batch),) = golden.batches.items()
    unpadded = replace(batch, attention_mask=np.ones_like(batch.input_ids))
    scores, step = "encoder.layer.0.attention.self.scores", "encoder.layer.0.attention.self.probs"
    sharp, ignored = (FaultPlacement(BY_NAME[name], (step,), SINGLE) for name in ("softmax-temperature", "mask-ignored"))
    storage = FORMATS["float32"]
    for given, is_effective in ((batch, True), (unpadded, False)):
        net = Network(golden.checkpoint.architecture, golden.checkpoint.weights, given)
        segment = Segment(net, step, {scores: dict(net.walk())[scores]})
        both = with_faults(segment, [sharp, ignored], storage)
        assert with_faults(segment, [sharp], storage).is_effective
        assert both.is_effective == is_effective
        assert (ignored.key in both.effective[step]) == is_effective
        assert np.array_equal(with_faults(segment, [], storage).segment.value, segment.value)


# Evaluations that are omitted do not change the result.


def _outputs_of_layers(*plants: Change, dtype: str = "float32") -> Result:
    return check(Candidate(plants, exposes=lambda name: name.endswith("output.LayerNorm") and "attention" not in name), dtype=dtype)


def _counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[tuple[Any, ...]]:
    """Return a list that records the calls of a function from now on."""
    calls: list[tuple[Any, ...]] = []
    function = getattr(module, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return function(*args, **kwargs)

    monkeypatch.setattr(module, name, counting)
    return calls


@pytest.mark.parametrize(
    ("plants", "dtype"), [((TANH_GELU,), "float32"), ((EPSILON, TANH_GELU), "bfloat16")], ids=["GELU", "both in bfloat16"]
)
def test_comparing_sets_on_a_part_of_the_batch_gives_the_result_of_the_whole(
    plants: tuple[Change, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _outputs_of_layers(*plants, dtype=dtype)
    monkeypatch.setattr(observation, "SMALL", 0)
    monkeypatch.setattr(observation, "PART", 1)
    parts = _counted(monkeypatch, observation.Observation, "worst_rows")
    assert named(_outputs_of_layers(*plants, dtype=dtype)) == named(whole)
    assert parts
