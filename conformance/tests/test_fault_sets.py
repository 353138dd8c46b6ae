"""The search for sets of faults: what it shares among a step, unexposed layers and black boxes."""

from dataclasses import replace

import numpy as np
import pytest

from conformance import check
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.networks import network
from conformance.faults import BY_NAME
from conformance.judge import observation
from conformance.judge.evidence import Estimate
from conformance.judge.search.placements import SINGLE, FaultPlacement, with_faults
from conformance.judge.segment import Segment
from conformance.numerics.formats import FORMATS
from conformance.numerics.thresholds import FALSE_ALARM, projection_threshold
from conformance.oracle import Network
from conformance.results.result import Result

NORM = "encoder.layer.0.attention.output.LayerNorm"


def _estimates(result: Result) -> dict[str, Estimate | None]:
    """Return the estimates of the best explanation at the first norm, by the mistake's name."""
    (verdict,) = (v for v in result.verdicts if v.activation == NORM)
    assert verdict.local is not None
    return {fault.name: fault.estimate for fault in verdict.local.named}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_wrong_numbers_of_one_step_are_estimated_together(dtype: str) -> None:
    planted = {"epsilon": 1e-5, "sublayer-scaled": 0.9}
    found = _estimates(check(Candidate([MISTAKES[name].at(0) for name in planted]), dtype=dtype))
    assert found.keys() == planted.keys()
    for name, value in planted.items():
        estimate = found[name]
        assert estimate is not None
        exact = float(FORMATS["float32"].round(np.asarray(value)))
        assert abs(estimate.value - exact) <= estimate.room(projection_threshold(FALSE_ALARM))


def test_a_mistake_whose_effect_depends_on_other_rows_is_named_where_sets_are_compared_on_a_part_of_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observation, "SMALL", 0)
    monkeypatch.setattr(observation, "PART", 1)
    result = check(Candidate([MISTAKES["mask-tiled"].at(0)]))
    assert [finding.name for finding in result.findings] == ["mask-tiled"]


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
