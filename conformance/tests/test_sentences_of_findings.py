"""The sentences of failing reports: one mistake has one name and one sentence, and none says more than was found."""

from typing import Any

import numpy as np
import pytest
import torch

from conformance import Batch, check, golden_of, load_golden
from conformance.checks.trace import record
from conformance.diagnosis import Diagnosis, diagnose
from conformance.implementations.hugging_face import hf_eager
from conformance.numerics.formats import Array
from conformance.report.coverage_sentences import headline
from conformance.report.diagnosis_report import document
from conformance.report.document import markdown
from conformance.report.run import document as run_document
from conformance.results.case import Case
from conformance.results.merge import merged
from conformance.tests.sample_records import checked, run
from conformance.tests.test_failing_report import _with

TINY = load_golden("tiny").checkpoint
PADDED = load_golden("tiny").batches["padded"]


def _scaled_by_the_width(model: Any) -> None:
    for layer in model["bert"].encoder.layer:
        layer.attention.self.scaling = TINY.architecture.hidden_size**-0.5


@pytest.mark.parametrize("name", ["values", "outputs", "stages"])
def test_a_wrong_scale_has_one_name_in_every_check_and_its_number_a_closed_form(name: str) -> None:
    (found,) = check(_with(_scaled_by_the_width), "tiny", check=name).findings
    place, said = found.sentence.split(": ")
    assert (found.name, place) == ("scale-missing", "every layer, attention.self.scores")
    right = "1/√(the head size) = 0.3535534"
    assert said.startswith(f"the scores are multiplied by 0.1767767 = 1/√32 = 1/√(the hidden size), not by {right}")
    assert "cannot be distinguished" not in said
    if name != "outputs":  # The search in unexposed layers ends before the temperature.
        assert said.endswith("(or the softmax has a temperature of 2; the exposed activations cannot tell which)")


def _rendered(found: Diagnosis) -> str:
    return " ".join(markdown(document(found)).replace("\\", "").replace("<br>", " ").split())


def _mean_over_padding(mask: Array | None = None) -> Array:
    inputs = PADDED if mask is None else Batch.of({**PADDED.arrays(), "attention_mask": mask})
    golden = golden_of("given", TINY, {"given": inputs})
    hidden = record(hf_eager, golden, "cpu", "float32").activations["given"]["encoder.layer.1.output.LayerNorm"]
    return np.asarray(hidden).mean(1)


def test_pooling_over_padding_is_a_finding_of_diagnose_though_no_pooling_is_declared() -> None:
    outputs = {"embedding": _mean_over_padding()}
    assert document(diagnose(TINY, PADDED, outputs)).title == (
        "conforms only if pooling over padding is intended (mean-with-padding); the checkpoint declares no pooling"
    )
    assert diagnose(TINY, PADDED, outputs, pooling="mean-with-padding").conforms
    asked = _rendered(diagnose(TINY, PADDED, outputs, pooling="mean"))
    assert "1. pooling-with-padding" in asked
    assert "the embedding is the mean over all tokens, padding as well, not the mean over the tokens that are not padding" in asked
    assert "usual cause: hidden.mean(1), without the attention mask" in asked


def _under_autocast(model: Any) -> None:
    """Compute products in bfloat16, norms and residuals in float32."""
    forward = model["bert"].forward

    def under_autocast(*arguments: Any, **named: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(*arguments, **named)

    model["bert"].forward = under_autocast


def test_autocast_is_one_finding_in_all_layers() -> None:
    (found,) = check(_with(_under_autocast), "tiny").findings
    assert found.name == "precision-bfloat16"
    assert found.sentence.startswith("every layer, ")
    assert found.sentence.endswith("operands are rounded to bfloat16: reduced precision, not a wrong equation")
    assert "amplitude" not in found.evidence


def test_the_counts_of_a_run_add_up_and_its_title_tells_errors_from_failures() -> None:
    cases = [checked(Case(f"a{i}", "b"), "fail") for i in range(3)]
    cases += [checked(Case("c", "b"), "pass"), checked(Case("d", "b"), "skip", declared=False, executed=False)]
    unable = checked(Case("e", "b"), "error", executed=False, reason="no such object")
    results = merged([run(*cases, unable)])
    assert results.footer is not None
    assert headline(results.footer) == "ran 4 of 6, 1 skipped, 1 could not run: 1 error, 3 fail, 1 pass"
    assert run_document(results).title == "3 of 6 candidates do not conform, 1 could not be judged, 1 skipped"
    assert run_document(merged([run(unable, *cases[3:])])).title == "1 of 3 candidates could not be judged, 1 skipped"
    assert run_document(merged([run(*cases[3:])])).title == "1 of 2 candidates: all conforms, 1 skipped"
