"""Naming: what `check` reports for planted mistakes, alone and several at once, and where it must not give a name."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance import Checkpoint, check, golden_of, load_golden
from conformance.benchmarks.detection import alarms
from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.networks import LAYERS, network
from conformance.benchmarks.detection.score import Trial, lines, scored, trials
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.cli import main
from conformance.judge.number_words import figure
from conformance.model.batch import Batch
from conformance.report.finding_sentences import evidence, sentence, where
from conformance.report.findings import Finding, findings
from conformance.report.representations import case_text
from conformance.results.case import Case
from conformance.results.records import FaultRecord
from conformance.results.to_records import activation_records
from conformance.tests.sample_records import activation

SAME_STEP = (
    ("epsilon", "residual-doubled"), ("epsilon", "residual-missing"), ("norm-variance", "residual-missing"),
    ("epsilon", "sublayer-missing"), ("query-key-swapped", "pre-norm"), ("norm-without-mean", "residual-doubled"),
    ("epsilon", "norm-bias-missing"), ("bias-missing", "features-dropped"),
)  # fmt: skip
FIVE = ("epsilon", "gelu-variant", "query-key-swapped", "residual-from-layer-input", "head-merge-interleaved")

five_faults = Candidate([MISTAKES[name].at(layer) for layer, name in enumerate(FIVE)])


def _found(candidate: Any, golden: Any = "tiny", dtype: str = "float32") -> list[Finding]:
    result = check(candidate, golden, dtype=dtype)
    assert result.outcome in ("pass", "fail"), result.reason
    return findings(activation_records(result))


def _planted(*places: tuple[str, int]) -> Candidate:
    return Candidate([MISTAKES[name].at(layer) for name, layer in places])


def _names(found: list[Finding]) -> set[str]:
    return {f.fault.name if f.fault else "" for f in found}


def test_a_bert_with_five_faults_in_five_layers_gets_five_correct_sentences() -> None:
    found = _found(five_faults, "deep")
    rendered = {sentence(f, 12) for f in found}
    assert rendered == {
        "layer 0, attention.output.LayerNorm: epsilon is 1e-05, the checkpoint says 1e-12",
        "layer 1, intermediate.intermediate_act_fn: GELU is computed with tanh, where the architecture has erf",
        "layer 2, attention.self.query and attention.self.key: query and key have each other's parameters",
        "layer 3, output.LayerNorm: the residual is the layer's input, not the attention's output",
        "layer 4, attention.self.context: heads are merged with their features interleaved",
    }
    assert [f.excess or 0.0 for f in found] == sorted((f.excess or 0.0 for f in found), reverse=True)


@pytest.mark.parametrize("pair", SAME_STEP, ids="+".join)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_faults_of_one_step_are_both_named(pair: tuple[str, str], dtype: str) -> None:
    found = _found(_planted(*((name, 1) for name in pair)), network("bert", 1), dtype)
    assert set(pair) <= _names(found) or {name for f in found for name in f.others} & set(pair)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_layer_that_is_not_run_is_named_and_not_as_several_mistakes_inside_it(layer: int) -> None:
    (found,) = _found(_planted(("layer-skipped", layer)), network("bert", 1))
    assert found.fault
    assert (found.fault.name, found.steps) == ("layer-skipped", (f"encoder.layer.{layer}.output.LayerNorm",))


@pytest.mark.parametrize("name", ["residual-scaled", "sublayer-scaled"])
def test_a_factor_whose_product_is_rounded_to_bfloat16_is_named_where_it_is(name: str) -> None:
    assert _names(_found(_planted((name, 1)), network("bert", 1), "bfloat16")) == {name}


def test_a_factor_of_the_usual_dropout_is_named_in_a_network_without_dropout() -> None:
    bert = network("bert", 1)
    architecture = bert.checkpoint.architecture.with_(hidden_dropout_prob=0.0)
    golden = golden_of("no dropout", replace(bert.checkpoint, architecture=architecture), bert.batches)
    assert _names(_found(_planted(("sublayer-scaled", 1)), golden)) == {"sublayer-scaled"}


def test_a_mistake_in_every_layer_is_one_finding() -> None:
    (found,) = _found(_planted(("layers-shared", 0)), "deep")
    assert found.fault
    assert found.fault.name == "layers-shared"
    assert where(found.steps, 12).startswith("layers 1 to 11, ")


def test_exchanges_among_three_projections_are_reported_as_one_rotation() -> None:
    (found,) = _found(_planted(("qkv-rotated", 0)))
    assert found.fault
    assert found.fault.name == "qkv-rotated"
    assert len(found.steps) == 3


def test_explanations_that_the_batch_cannot_separate_are_separated_by_another_batch() -> None:
    tiny = load_golden("tiny")
    unpadded = {name: array[:1] for name, array in tiny.batches["padded"].arrays().items()}
    golden = golden_of("unpadded", tiny.checkpoint, {"unpadded": Batch.of(unpadded)})
    for name, other in (("pooler-token", "pooler-last-unmasked"), ("pooler-last-unmasked", "pooler-token")):
        (found,) = _found(_planted((name, 0)), golden)
        assert found.fault
        assert (found.fault.name, other in found.others) == (name, False)


def test_faults_that_are_the_same_function_are_both_named() -> None:
    (found,) = _found(_planted(("mask-on-queries", 0)))
    assert found.fault
    assert {found.fault.name, *found.others} == {"mask-ignored", "mask-on-queries"}
    same = "(or the mask is applied to the queries instead of the keys; the exposed activations cannot tell which)"
    assert sentence(found, 2) == f"layer 0, attention.self.probs: padded keys are attended to {same}"


@pytest.mark.parametrize("name", ["precision-bfloat16", "precision-tf32", "precision-int8"])
def test_reduced_precision_is_reported_as_such_and_not_as_a_wrong_equation(name: str) -> None:
    assert _names(_found(_planted((name, 1)), network("bert", 1))) == {name}


def test_a_bfloat16_run_is_not_reported_as_reduced_precision() -> None:
    assert _found(Candidate(), dtype="bfloat16") == []


def test_active_dropout_is_named_with_its_probability() -> None:
    found = _found(_planted(("dropout-active", 0)))
    (fault,) = [f.fault for f in found if f.fault and f.fault.name == "dropout-active"]
    assert fault.estimate == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("name", ["norm-per-head", "heads-unsplit", "activation-softplus", "norm-twice"])
def test_a_mistake_without_a_name_is_found_placed_and_described_and_not_named(name: str) -> None:
    assert not MISTAKES[name].says
    found = _found(_planted((name, 1)))
    assert _names(found) == {""}
    assert {f.steps[0] for f in found} <= MISTAKES[name].begins(load_golden("tiny").checkpoint.architecture, 1)
    assert all(f.anatomy for f in found)


def test_a_wrong_number_is_estimated_within_its_error_in_bfloat16() -> None:
    score = scored(Trial("softmax-temperature", "bert", (1,), "bfloat16"))
    assert (score.detected, score.placed, score.naming, score.within) == (True, True, "right", True)


def test_a_trial_whose_mistake_changes_nothing_is_not_counted() -> None:
    assert scored(Trial("layers-reversed", "bert", (0,), "float32")).counted
    assert not scored(Trial("epsilon-outside-root", "bert", (1,), "bfloat16")).counted


def test_the_table_of_detection_counts_missed_mistakes() -> None:
    right = scored(Trial("bias-missing", "bert", (0,), "float32"))
    assert "| float32 | alone | 1 | 1 | 1 | 1 | 1 | 0 | 0 | 0 | 0 of 0 |" in list(lines([right]))
    missed = "\n".join(lines([replace(right, detected=False)]))
    assert "| float32 | alone | 1 | 1 | 0 | 1 |" in missed
    assert "- bias-missing in layer 0 (bert, float32, expected z " in missed
    assert "not detected" in missed


def test_in_a_goldens_network_each_mistake_is_planted_in_one_layer_and_in_all() -> None:
    planned = list(trials([MISTAKES["epsilon"], MISTAKES["layer-skipped"], MISTAKES["pooler-token"]], ["float32"], "tiny"))
    assert [(trial.name, len(trial.layers)) for trial in planned] == [
        *[("epsilon", 1), ("epsilon", 2), ("layer-skipped", 1), ("pooler-token", 1)]
    ]
    assert {trial.network for trial in planned} == {"tiny"}


def test_the_table_of_false_alarms_counts_and_lists_them() -> None:
    text = "\n".join(alarms.lines([alarms.Alarms("float32", 10, ("x",)), alarms.Alarms("bfloat16", 5, ())], "on networks"))
    assert "| float32 | 10 | 1 |" in text
    assert "| bfloat16 | 5 | 0 |" in text
    assert "| all | 15 | 1 |" in text
    assert text.endswith("\n\n- x")


def test_a_correct_variant_on_a_benchmark_network_is_counted_and_raises_no_alarm() -> None:
    found = alarms.alarm("cpu", alarms.Task("norm in float32", "bert", alarms.FIRST, "float32"))
    assert (found.dtype, found.failed) == ("float32", ())
    assert found.judged > 50


def test_in_a_goldens_network_a_variant_of_steps_computes_everywhere_and_in_one_layer() -> None:
    tasks = list(alarms.tasks_on_goldens(["tiny"]))
    layers = {name: [task.layer is None for task in tasks if task[:4:3] == (name, "float32")] for name in VARIANTS}
    assert layers["bias as a call of its own"] == [True, False]
    assert layers["one sequence at a time"] == [True]
    one, other = (alarms.alarm("cpu", task) for task in tasks if task[:4:3] == ("bias as a call of its own", "float32"))
    assert one.judged == other.judged > 40
    assert (one.failed, other.failed) == ((), ())


def test_the_report_states_the_mistake_its_evidence_and_its_usual_cause() -> None:
    rendered = case_text(check(_planted(("bias-missing", 1)), "tiny"))
    assert "layer 1, intermediate.dense: the bias is not added" in rendered
    assert "bias-missing: amplitude 1.000, z = " in rendered
    assert "(vllm#46835)" in rendered


def test_evidence_contains_the_estimate_with_its_error_and_not_the_amplitude_which_the_estimate_makes_one() -> None:
    (found,) = _found(_planted(("scale-missing", 0)))
    assert evidence(found).startswith("scale-missing: estimated scale = 1 ± ")
    assert evidence(found).endswith(", expected 0.3535534")
    assert "amplitude" not in evidence(found)
    assert "z = " not in evidence(found)


@pytest.mark.parametrize(
    ("value", "deviation", "text"),
    [(0.7071102, 3e-7, "0.70711"), (1.00003e-5, 1e-8, "1e-05"), (149.6, 60.0, "100"), (64.0, 10.0, "60"), (0.125, 0.0, "0.125")],
)
def test_a_number_has_as_many_digits_as_its_error_warrants(value: float, deviation: float, text: str) -> None:
    assert figure(value, deviation) == text


def test_diff_names_the_mistakes_of_each_side(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["diff", "conformance.tests.test_fault_naming:five_faults", "hf-eager", "--golden", "deep"])
    rendered = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "epsilon is 1e-05, the checkpoint says 1e-12" in rendered
    assert "no error when judged alone" in rendered


@pytest.mark.parametrize("constant", [1.0, 1e-3])
def test_a_constant_in_place_of_the_result_fails_without_a_name(constant: float) -> None:
    def prepare(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        a = checkpoint.architecture
        last = f"encoder.layer.{a.num_hidden_layers - 1}.output.LayerNorm"
        return lambda batch: {last: torch.full((*batch.input_ids.shape, a.hidden_size), constant)}

    (verdict,) = check(prepare).origins
    assert verdict.outcome == "fail"
    assert verdict.local
    assert not verdict.local.named


def test_a_mistake_that_cannot_be_distinguished_is_given_with_its_own_estimate() -> None:
    step = "encoder.layer.0.attention.self.probs"
    scale = FaultRecord("scale-missing", step, 1.0, 100.0, "scale", 1.0, 1e-7, 0.3535534)
    temperature = FaultRecord("softmax-temperature", step, 1.0, 100.0, "temperature", 0.3535534, 1e-7, 1.0)
    weight = FaultRecord("mask-constant", step, 1.0, 100.0, "weight", 0.25, 1e-7, 0.0)
    record = activation(Case("a", "b"), step, 100.0, (scale,), alternatives=[[temperature], [weight]])
    (found,) = findings([record])
    assert found.others == ("mask-constant", "softmax-temperature")
    same, which, other = sentence(found, 1).split("; ")
    assert same.endswith("= 0.3535534 (or the softmax has a temperature of 0.3535534")
    assert which == "the exposed activations cannot tell which)"
    assert other.startswith("with these inputs and exposed activations it cannot be distinguished from mask-constant (weight 0.25,")
