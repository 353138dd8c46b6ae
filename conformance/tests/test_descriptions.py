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
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.score import of_all, of_finding
from conformance.faults.altered import Altered
from conformance.faults.fitted import DESCRIPTIONS, FITTED, Fit, FitData, Fitted
from conformance.faults.fitted.weight_structure import Estimated, assignment
from conformance.judge import explanation_search
from conformance.oracle import Step
from conformance.report.output_formats import REPORT_FORMATS
from conformance.results.result import NamedFinding
from conformance.results.to_records import records_of, results_of
from conformance.tests.test_failing_report import _with
from conformance.tests.test_fitted_evidence import WORDS_OF_Q8_0

pytestmark = pytest.mark.usefixtures("one_thread")

INITIAL = "right(weight=normal(weight.shape, i, weight) * a.initializer_range, bias=None)"
LAST_LAYER_NOT_LOADED = (
    changed("linears", INITIAL, layers=(-1,)),
    changed("residuals", "layer_norm(x, eps=eps)", layers=(-1,)),
)
LEAD = "no mistake of the catalogue explains it, but the equation holds with "


def test_descriptions_alone_say_with_what_the_equation_holds() -> None:
    assert {fault.name for fault in FITTED if fault.sentence.startswith("the equation holds with ")} == DESCRIPTIONS
    assert {fault.name for fault in FITTED if not fault.is_description}.isdisjoint(DESCRIPTIONS)


def test_every_report_says_that_a_description_names_no_mistake() -> None:
    result = check(WORDS_OF_Q8_0, "tiny")
    (found,) = result.findings
    assert found.is_description
    said = f"{LEAD}other parameters than the checkpoint's"
    assert said in found.sentence
    assert found.evidence.startswith("parameters-other, a description: ")
    assert found.cause.startswith("possible cause: ")
    for name in ("text", "markdown", "html"):
        rendered = html.unescape(" ".join(REPORT_FORMATS[name].of_results(results_of([result])).split()))
        assert said in rendered.replace("\\", ""), name
    (mistake,) = json.loads(REPORT_FORMATS["json"].of_results(results_of([result])))["cases"][0]["mistakes"]
    assert mistake["fault"]["is_description"]
    assert said in mistake["sentence"]


def test_a_name_is_no_description_in_records_either() -> None:
    result = check(Candidate([MISTAKES["parameters-initial"].at()]), "tiny")
    assert result.findings
    assert not any(found.is_description for found in result.findings)
    assert not any(fault.is_description for a in records_of(result).activations for fault in a.faults)


def _dense(change: Callable[[Tensor, Tensor], Any]) -> Any:
    def of_model(model: Any) -> None:
        linear = model["bert"].encoder.layer[1].attention.output.dense
        change(linear.weight, linear.bias)

    return of_model


def _set(weight: Tensor, rows: Any, columns: Any, value: Any) -> None:
    weight[rows, columns] = value


STRUCTURES: dict[str, tuple[str, Callable[[Tensor, Tensor], Any]]] = {
    "as by weight[0:16, 0:8] = 0": ("weight-columns-other", lambda w, _: _set(w, slice(16), slice(8), 0.0)),
    "as by weight[0:8, 1:10:4] *= 2": ("weight-columns-other", lambda w, _: w[0:8, 1:10:4].mul_(2.0)),
    "as by weight[:, [1, 4, 9]] = 0.25": ("weight-columns-other", lambda w, _: _set(w, slice(None), [1, 4, 9], 0.25)),
    "with other columns: expected 0 to 3, estimated 4 to 7": (
        "weight-columns-other",
        lambda w, _: _set(w, slice(None), slice(4), w[:, 4:8].clone()),
    ),
    "of outputs 0:8, -1": ("outputs-scaled", lambda w, b: (w[:8].neg_(), b[:8].neg_())),
    "of output 5, 1.25": ("outputs-scaled", lambda w, _: w[5].mul_(1.25)),
    "of inputs 0:8, -1": ("inputs-scaled", lambda w, _: w[:, :8].neg_()),
    "8 outputs, from 0 to 7": ("outputs-missing", lambda w, b: (w[:8].zero_(), b[:8].zero_())),
    "expected 0 to 3, estimated 4 to 7": ("weight-rows-reordered", lambda w, _: _set(w, slice(4), slice(None), w[4:8].clone())),
    "weight, row 5": ("parameters-other", lambda w, _: w[5].copy_(w[5].flip(0))),
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_structure_of_a_weight_is_reported(structure: str) -> None:
    name, change = STRUCTURES[structure]
    (found,) = check(_with(_dense(change)), "tiny").findings
    assert (found.name, found.is_description) == (name, name in DESCRIPTIONS)
    assert structure in found.evidence


def _estimated(found: Any, right: Any = ((1.0, 2.0), (3.0, 5.0), (5.0, 6.0))) -> Estimated:
    w = np.array(right)
    return Estimated(w, np.array(found, np.float64), np.full(w.shape, 1e-9), 5.0)


def _assigned(found: Any) -> tuple[str, float, float] | None:
    """Return code, number and deviation of the assignment that makes these parameters of the right ones; None without one."""
    made = assignment(_estimated(found))
    return (made.code, made.value, made.deviation) if made else None


def test_an_assignment_is_the_simplest_that_makes_the_parameters() -> None:
    right = _estimated(0).right
    assert _assigned(right) is None
    assert _assigned(-right) == ("[:] *=", -1.0, 0.0)
    assert _assigned(right * [[1], [0], [1]]) == ("[1] =", 0.0, 0.0)
    assert _assigned(right[[0, 0, 2]]) == (" with other rows: expected 1, estimated", 0.0, 0.0)
    made = _assigned(right * [1.0, 3.0])
    assert made is not None
    assert made[0] == "[:, 1] *="
    assert made[1] == pytest.approx(3.0, abs=1e-12)


def test_one_element_is_no_evidence_for_a_factor() -> None:
    other = _estimated(0).right.copy()
    other[1, 1] = 7.0
    assert _assigned(other) is None


def test_copied_columns_are_no_adapter_and_neither_are_inputs_of_a_low_rank() -> None:
    """Both residuals have a low rank: that of the columns, or of the inputs."""
    (found,) = check(
        _with(_dense(lambda w, _: _set(w, slice(None), slice(4), w[:, 4:8].clone()))), "tiny", dtype="bfloat16"
    ).findings
    assert found.name == "weight-columns-other"
    names = {found.name for found in check(Candidate(LAST_LAYER_NOT_LOADED), "tiny").findings}
    assert names == {"norm-affine-missing", "parameters-initial"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_factor_of_the_whole_weight_is_not_a_factor_for_each_input_or_output(dtype: str) -> None:
    (found,) = check(_with(_dense(lambda w, _: w.mul_(1.5))), "tiny", dtype=dtype).findings
    assert found.name == "product-scaled"


def _last_position(row: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        table = model["bert"].embeddings.position_embeddings.weight
        table[15] = table[row]

    return change


@pytest.mark.parametrize("row", [14, 0])
def test_one_wrong_position_is_neither_a_clip_nor_a_new_beginning(row: int) -> None:
    """Both have a number, which one position determines; the golden has 16 positions."""
    (found,) = check(_with(_last_position(row)), "tiny").findings
    assert (found.name, found.is_description) == ("positions-other", True)
    assert f"expected 15, estimated {row}" in found.evidence


def _memorised(step: Step, data: FitData) -> Fit | None:
    """Return the candidate's array, with as many fitted numbers as a description needs."""
    return Fit(Altered(step, lambda _: data.actual), 10**6)


def test_a_fit_with_as_many_numbers_as_a_description_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    free = Fitted("adapter", frozenset({"linear"}), "", "constructed", _memorised)
    monkeypatch.setattr(explanation_search, "FITTED", (free, *FITTED))
    (found,) = check(_with(_dense(lambda w, _: w[5].copy_(w[5].flip(0)))), "tiny").findings
    assert found.name == "parameters-other"


KERNELS = (*(name for name in MISTAKES if name.startswith("kernel-")), "heads-halved", "heads-doubled")


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_call_of_a_kernel_is_named_beside_right_probabilities(name: str, dtype: str) -> None:
    (found,) = check(Candidate((MISTAKES[name].at(1),)), "tiny", dtype=dtype).findings
    assert (found.name, found.others) == (name, ())
    assert found.steps == ("encoder.layer.1.attention.self.context",)


def test_a_wrong_scale_of_a_kernel_whose_scores_are_not_exposed_is_that_of_the_scores() -> None:
    hidden = ("scores", "probs", "attention.self.dropout")
    candidate = Candidate((MISTAKES["kernel-scale-missing"].at(1),), exposes=lambda n: not n.endswith(hidden))
    (found,) = check(candidate, "tiny").findings
    assert found.name == "scale-missing"


def _finding(name: str | None, *, description: bool = False) -> NamedFinding:
    return NamedFinding(name, "", "", "", (), (), (), (), description)


@pytest.mark.parametrize(
    ("found", "naming"),
    [
        ([("parameters-other", True)], "described"),
        ([("parameters-other", False)], "right"),
        ([("bias-other", True)], "described"),
        ([("bias-other", False)], "wrong"),
        ([("outputs-zeroed", False), ("parameters-other", True)], "described"),
        ([(None, False), ("parameters-other", True)], "none"),
        ([("outputs-zeroed", False)], "right"),
        ([], "none"),
    ],
)
def test_the_score_counts_descriptions_apart(found: list[tuple[str | None, bool]], naming: str) -> None:
    findings = [_finding(name, description=description) for name, description in found]
    assert of_all({of_finding(finding, ("outputs-zeroed", "parameters-other")) for finding in findings}) == naming
