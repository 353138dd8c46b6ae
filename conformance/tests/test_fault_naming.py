"""What a finding says: its sentence, the estimates with their errors, and what contradicts or cannot be distinguished from it."""

import pytest

from conformance import check
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.report.findings import findings
from conformance.report.representations import case_text
from conformance.results.case import Case
from conformance.results.records import ActivationRecord, FaultRecord
from conformance.results.to_records import activation_records
from conformance.tests.sample_records import activation

FIVE = ("epsilon", "gelu-variant", "query-key-swapped", "residual-from-layer-input", "head-merge-interleaved")


def _planted(*names: str) -> Candidate:
    """Return a candidate with one of these mistakes in each layer."""
    return Candidate([MISTAKES[name].at(layer) for layer, name in enumerate(names)])


def test_a_bert_with_five_faults_in_five_layers_gets_five_correct_sentences() -> None:
    found = findings(activation_records(check(_planted(*FIVE), "deep")))
    assert {f.sentence for f in found} == {
        "layer 0, attention.output.LayerNorm: epsilon is 1e-05, the checkpoint says 1e-12",
        "layer 1, intermediate.intermediate_act_fn: GELU is computed with tanh, where the architecture has erf",
        "layer 2, attention.self.query and attention.self.key: query and key have each other's parameters",
        "layer 3, output.LayerNorm: the residual is the layer's input, not the attention's output",
        "layer 4, attention.self.context: heads are merged with their features interleaved",
    }
    assert [f.excess or 0.0 for f in found] == sorted((f.excess or 0.0 for f in found), reverse=True)


def test_faults_that_are_the_same_function_are_both_named() -> None:
    (found,) = check(_planted("mask-on-queries"), "tiny").findings
    assert {found.name, *found.others} == {"mask-ignored", "mask-on-queries"}
    same = "(or the mask is applied to the queries instead of the keys; the exposed activations cannot tell which)"
    assert found.sentence == f"layer 0, attention.self.probs: padded keys are attended to {same}"


def test_active_dropout_is_named_with_its_probability() -> None:
    records = activation_records(check(_planted("dropout-active"), "tiny"))
    (fault,) = [f.fault for f in findings(records) if f.fault and f.fault.name == "dropout-active"]
    assert fault.estimate == pytest.approx(0.1, rel=1e-3)


def test_the_report_states_the_mistake_its_evidence_and_its_usual_cause() -> None:
    rendered = case_text(check(Candidate([MISTAKES["bias-missing"].at(1)]), "tiny"))
    assert "layer 1, intermediate.dense: the bias is not added" in rendered
    assert "bias-missing: amplitude 1.000, z = " in rendered
    assert "(vllm#46835)" in rendered


# Of records.

CASE = Case("a", "b")


def _fault(step: str, name: str, parameter: str, estimate: float, deviation: float, right: float) -> FaultRecord:
    return FaultRecord(name, step, 1.0, 50.0, parameter, estimate, deviation, right)


def _layer(number: int, estimate: float, deviation: float) -> ActivationRecord:
    step = f"encoder.layer.{number}.output.LayerNorm"
    return activation(CASE, step, 9.0, (_fault(step, "epsilon", "epsilon", estimate, deviation, 1e-12),))


def test_a_mistake_that_cannot_be_distinguished_is_given_with_its_own_estimate() -> None:
    step = "encoder.layer.0.attention.self.probs"
    scale = _fault(step, "scale-missing", "scale", 1.0, 1e-7, 0.3535534)
    temperature = _fault(step, "softmax-temperature", "temperature", 0.3535534, 1e-7, 1.0)
    weight = _fault(step, "mask-constant", "weight", 0.25, 1e-7, 0.0)
    (found,) = findings([activation(CASE, step, 100.0, (scale,), alternatives=[[temperature], [weight]])])
    assert found.others == ("mask-constant", "softmax-temperature")
    same, which, other = found.sentence.split("; ")
    assert same.endswith("= 0.3535534 (or the softmax has a temperature of 0.3535534")
    assert which == "the exposed activations cannot tell which)"
    assert other.startswith("with these inputs and exposed activations it cannot be distinguished from mask-constant (weight 0.25,")


EPSILON = "epsilon: estimated epsilon = 1e-05 ± 2e-08, expected 1e-12"
LAYERS = {
    "; estimates that contradict it: 2e-05 ± 2e-06 at encoder.layer.1.output.LayerNorm": ((2e-5, 2e-6), (1.01e-5, 1e-7)),
    "; 6 estimates contradict it: from 1.7e-05 ± 1e-06 to 2e-05 ± 1e-06": [((1.62 + n / 20) * 1e-5, 1.4e-6) for n in range(1, 7)],
    "": ((1.4e-5, 2e-6), (9.99e-6, 3e-8)),  # They agree within their errors.
}


@pytest.mark.parametrize("said", LAYERS)
def test_estimates_that_contradict_each_other_are_given_with_their_steps(said: str) -> None:
    (found,) = findings([_layer(0, 1e-5, 2e-8), *(_layer(n, *numbers) for n, numbers in enumerate(LAYERS[said], 1))])
    assert found.evidence == EPSILON + said


# Of positions.

MOVED = {
    "expected 0 to 7, estimated 3 to 10": "where(positions < 8, positions + 3, positions)",
    "expected 2, estimated 5; expected 5, estimated 2": "where(positions == 2, 5, where(positions == 5, 2, positions))",
    "expected 0, estimated 7": "where(positions == 0, 7, positions)",
    # A clip and a new beginning have a number, which one position determines; the golden has 16 positions.
    "expected 15, estimated 14": "where(positions == 15, 14, positions)",
    "expected 15, estimated 0": "where(positions == 15, 0, positions)",
}


@pytest.mark.parametrize("numbers", MOVED)
def test_wrong_positions_are_given_beside_the_expected_ones(numbers: str) -> None:
    (found,) = check(Candidate([changed("position", f"right(positions={MOVED[numbers]})")]), "tiny").findings
    assert (found.name, found.is_description) == ("positions-other", True)
    assert found.evidence.endswith(f", the positions: {numbers}")
