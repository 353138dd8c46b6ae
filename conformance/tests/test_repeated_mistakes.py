"""A run's report states a mistake once: other checks that find it refer to the check `values`, and shared reasons are grouped."""

from typing import Any

import pytest

from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.report.output_formats import REPORT_FORMATS
from conformance.results.case import Case
from conformance.results.merge import merged
from conformance.results.records import CaseRecords, FaultRecord
from conformance.results.to_records import records_of
from conformance.tests.planted_mistakes import Planted, tanh_gelu
from conformance.tests.sample_records import activation, checked, run

SENTENCE = "GELU is computed with tanh, where the architecture has erf"
NORM = "encoder.layer.0.attention.output.LayerNorm"


def _judged(candidate: Any, *checks: str) -> list[CaseRecords]:
    return [records_of(run_check(Request.of(candidate, "tiny", "cpu", "float32", name))) for name in checks]


@pytest.fixture(scope="module")
def tanh() -> list[CaseRecords]:
    """Return the results of the checks values and moments of a candidate with GELU's tanh form."""
    return _judged(Planted(tanh_gelu(0)), "values", "moments")


def _text(*cases: CaseRecords, form: str = "text") -> str:
    return " ".join(REPORT_FORMATS[form].of_results(merged([run(*cases)])).split())


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_moments_refers_to_the_same_mistake_of_values(form: str, tanh: list[CaseRecords]) -> None:
    rendered = _text(*tanh, form=form)
    assert rendered.count(SENTENCE) == 1
    assert rendered.replace("\\", "").replace("&#96;", "`").count("the same mistake as in the check `values`: gelu-variant") == 1


def _fails(check: str, estimate: float, name: str = "epsilon") -> CaseRecords:
    case = Case("bad", "tiny", check=check)
    fault = FaultRecord(name, NORM, 1.0, 700.0, "epsilon", estimate, 1e-8, 1e-12)
    return checked(case, "fail", (activation(case, NORM, 70.0, (fault,)),))


def test_a_mistake_with_another_number_or_name_is_not_the_same() -> None:
    same = "the same mistake as in the check"
    for estimate, is_same in ((1e-5, True), (1.003e-5, True), (2e-5, False)):
        rendered = _text(_fails("values", 1e-5), _fails("stages", estimate))
        assert (same in rendered) == is_same, estimate
        assert rendered.count("the checkpoint says 1e-12") == (1 if is_same else 2)
    assert same not in _text(_fails("values", 1e-5), _fails("stages", 1e-5, "norm-variance"))


def test_what_several_checks_share_is_printed_once() -> None:
    names = ("optimizer-step", "schedule", "learning")
    skips = [checked(Case("a", "tiny", check=name), "skip", reason="no loop", declared=False) for name in names]
    rendered = _text(*skips, checked(Case("a", "deep", check="learning"), "skip", reason="no loop", declared=False))
    assert rendered.count("no loop") == 1
    assert "the same reason in 3 more checks: schedule; learning; on deep, cpu, float32, learning" in rendered
    crashes = [checked(Case("a", "tiny", check=name), "crash", reason="ValueError: of 8") for name in ("values", "outputs")]
    rendered = _text(*crashes)
    assert rendered.count("ValueError") == 1
    assert "the same error in 1 more check: outputs" in rendered


def _late(check: str) -> CaseRecords:
    """Return a case in which the activations of layer 0 arrived after those of layer 1."""
    case = Case("bad", "tiny", check=check)
    names = [f"encoder.layer.0.{part}" for part in ("attention.output.dense", "intermediate.dense", "output.LayerNorm")]
    reason = "arrived after the output of its layer: yield activations in the order of computation"
    skipped = FaultRecord("layer-skipped", names[-1], 1.0, 700.0, None, None, None)
    origin = activation(case, "encoder.layer.1.output.LayerNorm", 9.0, (skipped,))
    missing = [activation(case, name, outcome="not_observed", local=None) for name in names]
    late = [activation(case, name, reason=reason, local=None) for name in names]
    return checked(case, "fail", (*missing, origin, *late))


def test_activations_that_arrive_too_late_are_stated_once_and_not_called_unexposed() -> None:
    rendered = _text(_late("values"), _late("moments"))
    assert rendered.count("arrived after the output of its layer") == 1
    assert rendered.count("the same mistake as in the check `values`: layer-skipped") == 1
    assert "not exposed" not in rendered
