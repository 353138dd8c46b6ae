"""The search for sets of faults: what it shares among a step, unexposed layers and black boxes, and what it need not evaluate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import check
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.equations import Change
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.networks import network
from conformance.benchmarks.training.loops import WRONG
from conformance.faults import BY_NAME
from conformance.judge import explanation_search, observation
from conformance.judge.search import fault_sets, parameters
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


def test_no_parameter_is_fitted_where_a_mistake_without_a_parameter_explains_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = _counted(monkeypatch, parameters, "_gauss_newton")
    assert named(_outputs_of_layers(TANH_GELU))
    assert not fits


@pytest.mark.thorough
def test_the_explanation_of_one_step_is_tried_first_on_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = _counted(monkeypatch, explanation_search, "_smallest")
    result = check(WRONG["epsilon in the root"].loop.candidate, "tiny", check="optimizer-step")
    assert [finding.name for finding in result.findings] == ["adam-epsilon-in-root"]
    wide = [candidates for _, candidates, _ in searches if len({c.fault.name for c in candidates}) > 1]
    assert len(wide) < len(result.origins) / 4 < len(searches)


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


def test_pairs_are_not_searched_where_no_mistake_explains_a_third_of_a_small_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "arange(H)[:, None]"
    noisy = f"right(weight=weight * where({rows} % 2 == 0, 1.01, 1) * where({rows} % 3 == 0, 0.99, 1))"
    pairs = _counted(monkeypatch, fault_sets.Search, "_with_one_more")
    exposes = "encoder.layer.1.output.LayerNorm".__eq__
    result = check(Candidate([changed("query", noisy, layers=(0,))], exposes=exposes))
    assert [finding.name for finding in result.findings] == [None]
    assert not pairs


def test_a_gross_mistake_is_not_tried_where_a_wider_arithmetic_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = _counted(monkeypatch, explanation_search, "_smallest")
    assert _outputs_of_layers(dtype="bfloat16").conforms
    tried = {candidate.fault.name for _, candidates, _ in searches for candidate in candidates}
    assert tried
    assert "residual-doubled" not in tried
