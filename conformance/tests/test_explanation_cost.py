"""The cost of explanations: evaluations that are omitted do not change the result."""

from typing import Any

import pytest

from conformance import check
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.equations import Change
from conformance.benchmarks.training.loops import WRONG
from conformance.judge import explanation_search, observation
from conformance.judge.search import fault_sets, parameters
from conformance.results.result import Result
from conformance.tests.test_unexposed_layers import EPSILON, TANH_GELU, named


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


def test_the_explanation_of_one_step_is_tried_first_on_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = _counted(monkeypatch, explanation_search, "_smallest")
    result = check(WRONG["epsilon in the root"].loop.candidate, "tiny", check="optimizer-step")
    assert [finding.name for finding in result.findings] == ["adam-epsilon-in-root"]
    wide = [candidates for _, candidates, _ in searches if len({c.fault.name for c in candidates}) > 1]
    assert len(wide) < len(result.origins) / 4 < len(searches)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("plants", [(EPSILON,), (TANH_GELU,), (EPSILON, TANH_GELU)], ids=["epsilon", "gelu", "both"])
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
    noisy = changed(
        "query", f"right(weight=weight * where({rows} % 2 == 0, 1.01, 1) * where({rows} % 3 == 0, 0.99, 1))", layers=(0,)
    )
    pairs = _counted(monkeypatch, fault_sets._Search, "_with_one_more")
    result = check(Candidate([noisy], exposes="encoder.layer.1.output.LayerNorm".__eq__))
    assert [finding.name for finding in result.findings] == [None]
    assert not pairs


def test_a_gross_mistake_is_not_tried_where_a_wider_arithmetic_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = _counted(monkeypatch, explanation_search, "_smallest")
    assert _outputs_of_layers(dtype="bfloat16").conforms
    tried = {candidate.fault.name for _, candidates, _ in searches for candidate in candidates}
    assert tried
    assert "residual-doubled" not in tried
