"""Descriptions: fits that name no mistake say so in every report; a fit has a name only with more evidence than it has numbers."""

import html
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from conformance import check
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.faults.changes import Altered
from conformance.faults.fitted import FITTED, Fit, FitData, Fitted
from conformance.faults.fitted.differences import Estimated, assignment
from conformance.judge import explanation_search
from conformance.oracle import Step
from conformance.results.to_records import results_of
from conformance.tests.sample_records import report

pytestmark = pytest.mark.usefixtures("one_thread")


def _of_q8_0(right: Callable[..., Tensor], weight: Tensor) -> Tensor:
    """Return the step with a weight in blocks of bytes, each with a scale in float16, in the candidate's format."""
    of_block = weight.float().view(-1, 32)
    scale = (of_block.abs().amax(1, keepdim=True) / 127).half().float()
    return right(weight=((of_block / scale).round() * scale).view_as(weight).to(weight.dtype))


WORDS_OF_Q8_0 = Candidate([changed("word", _of_q8_0), changed("logits", _of_q8_0)])


def test_every_report_says_that_a_description_names_no_mistake() -> None:
    result = check(WORDS_OF_Q8_0, "tiny")
    (found,) = result.findings
    assert found.is_description
    said = "no mistake of the catalogue explains it, but the equation holds with other parameters than the checkpoint's"
    assert said in found.sentence
    assert found.evidence.startswith("parameters-other, a description: ")
    assert found.cause.startswith("possible cause: ")
    for name in ("text", "markdown", "html"):
        rendered = html.unescape(" ".join(report(name, results_of([result])).split()))
        assert said in rendered.replace("\\", ""), name
    (mistake,) = json.loads(report("json", results_of([result])))["cases"][0]["mistakes"]
    assert mistake["fault"]["is_description"]
    assert said in mistake["sentence"]


def test_rows_of_a_table_that_differ_by_less_than_a_rounding_are_counted_and_the_bias_is_not_blamed() -> None:
    (found,) = check(WORDS_OF_Q8_0, "tiny", dtype="bfloat16").findings
    assert found.name == "parameters-other"
    assert "word_embeddings.weight, all 49 rows that the batch reads" in found.evidence
    assert "word_embeddings.weight, at least " in found.evidence
    assert "bias" not in found.evidence


def _dense(change: Callable[[Any, Any], object]) -> Candidate:
    """Return a candidate whose output projection in layer 1 has parameters that are assigned to."""

    def dense(right: Callable[..., Tensor], weight: Tensor, bias: Tensor) -> Tensor:
        weight, bias = weight.clone(), bias.clone()
        change(weight, bias)
        return right(weight=weight, bias=bias)

    return Candidate([changed("dense", dense, layers=(1,))])


def _with_reversed_row(weight: Tensor, _: Tensor) -> None:
    weight[5] = weight[5].flip(0)


RIGHT = np.array([[1.0, 2.0], [3.0, 5.0], [5.0, 6.0]])


def _assigned(other: Any) -> tuple[str, float, bool] | None:
    """Return the assignment that makes these parameters of the right ones: code, number, and whether it is estimated."""
    made = assignment(Estimated(RIGHT, np.array(other, np.float64), np.full(RIGHT.shape, 1e-9), 5.0))
    return (made.code, made.value, made.is_estimated) if made else None


def test_an_assignment_is_the_simplest_that_makes_the_parameters() -> None:
    assert _assigned(RIGHT) is None
    assert _assigned(-RIGHT) == ("[:] *=", -1.0, False)
    assert _assigned(RIGHT * [[1], [0], [1]]) == ("[1] =", 0.0, False)
    assert _assigned(RIGHT[[0, 0, 2]]) == (" with other rows: expected 1, estimated", 0.0, False)
    assert _assigned(RIGHT * [1.0, 3.0]) == ("[:, 1] *=", pytest.approx(3.0, abs=1e-12), True)
    assert _assigned(np.where(RIGHT == 5.0, [[7.0, 7.0], [7.0, 7.0], [5.0, 5.0]], RIGHT)) is None  # one element


def test_a_fit_with_as_many_numbers_as_a_description_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def memorised(step: Step, data: FitData) -> Fit | None:
        return Fit(Altered(step, lambda _: data.actual), 10**6)

    free = Fitted("inputs-clipped", frozenset({"linear"}), "", "constructed", memorised)
    monkeypatch.setattr(explanation_search, "FITTED", (free, *FITTED))
    (found,) = check(_dense(_with_reversed_row), "tiny").findings
    assert found.name == "parameters-other"
