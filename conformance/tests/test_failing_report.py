"""Reports of failures: unexposed steps before an origin, the order of their parts, wrong rows of parameters, and the legend."""

import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance import Architecture, check
from conformance.faults import CATALOGUE
from conformance.faults.fitted import FITTED
from conformance.judge.segment import between
from conformance.model.activations import table
from conformance.model.architecture import Dense
from conformance.model.batch import Batch
from conformance.oracle import Network
from conformance.report.finding_sentences import cause, evidence, sentence
from conformance.report.findings import findings, layers_of
from conformance.report.places import tokens
from conformance.report.representations import case_text
from conformance.report.run import PADDING, RunView
from conformance.report.unexposed_steps import not_exposed, possibly_before, unexposed_steps
from conformance.results.case import Case
from conformance.results.merge import merged
from conformance.results.records import (
    ActivationRecord,
    CounterexampleRecord,
    FunctionRecord,
    MachineRecord,
)
from conformance.results.to_records import activation_records
from conformance.tests.planted_mistakes import MadeOf, Planted
from conformance.tests.sample_records import activation, checked, header, report, run

CASE = Case("a", "b")
LAST = "encoder.layer.1.output.LayerNorm"


def _records(names: Collection[str], exposed: Collection[str]) -> list[ActivationRecord]:
    hidden = {"outcome": "not_observed", "local": None, "global_error": None}
    return [activation(CASE, name, **({} if name in exposed else hidden)) for name in names]


LEAST = Architecture(7, 8, 2, 2, 12, 9)
ARCHITECTURES = {
    "bert": replace(LEAST, heads=("masked_lm", "next_sentence", "classification")),
    "tokens": replace(LEAST, heads=("plain_masked_lm", "token_classification"), classifier_dropout=0.1),
    "relative": replace(LEAST, position_embedding_type="relative_key_query"),
    "relative keys": replace(LEAST, position_embedding_type="relative_key"),
    "no norm": replace(LEAST, embedding_norm=False, activation_dropout=0.1),
    "sentences": replace(LEAST, pooling="mean", normalize=True),
}


@pytest.mark.parametrize("which", ARCHITECTURES)
def test_hidden_steps_are_those_of_the_judges_segment(which: str) -> None:
    network = Network(ARCHITECTURES[which], {}, Batch.of({"input_ids": [[1, 2]]}))
    rows, draw = network.table, random.Random(1)
    names = [name for name, row in rows.items() if not row.is_internal]
    for share in (0.1, 0.5, 0.9):
        exposed = {name for name in names if draw.random() < share}
        for name in exposed:
            segment = between(network, name, exposed - {name})
            expected = [n for n in segment[:-1] if rows[n].kind != "copy" and not rows[n].is_internal]
            assert list(unexposed_steps(name, _records(names, exposed)).names) == expected, (name, exposed)


def test_a_few_hidden_steps_are_named_and_many_are_counted_with_the_exposed_one_before_them() -> None:
    names, first = list(table(LEAST)), "encoder.layer.0.output.LayerNorm"
    scores, probs = (f"encoder.layer.1.attention.self.{name}" for name in ("scores", "probs"))
    for place, exposed, text in (
        (probs, [name for name in names if name != scores], f"the unexposed one before it: {scores}"),
        (LAST, [first, LAST], "11 unexposed ones before it, after layer 0, output.LayerNorm (3 more only copy)"),
        (LAST, [LAST], "27 unexposed ones before it, after the token ids (7 more only copy)"),
        (LAST, names, ""),
    ):
        said = possibly_before([place], _records(names, exposed))
        assert said == (f"It may be in this step or in {text}" if text else "")
    said = possibly_before([LAST], _records(names, ["embeddings.LayerNorm", "encoder.layer.0.output.dense", LAST]))
    assert said.startswith(
        "It may be in this step or in 20 unexposed ones before it, after embeddings.LayerNorm and layer 0, output.d"
    )
    assert not unexposed_steps(f"{first}.grad", _records([f"{first}.grad"], ())).names
    dense = replace(LEAST, pooling="mean", dense=(Dense(3),))
    assert unexposed_steps("sentence_embedding", _records(list(table(dense)), ["sentence_embedding"])).names


def test_a_pass_says_which_steps_without_exposed_activations_are_judged_and_which_are_not() -> None:
    names = [name for name, row in table(LEAST).items() if not row.is_internal]
    after = names[names.index(LAST) + 1 :]
    counts = f"{len(names) - 1} activations are not exposed; {len(after)} of them are not judged, since "
    assert not_exposed(_records(names, [LAST])).startswith(counts)
    assert not_exposed(_records(names, [LAST, *after])).endswith("; they are judged with the next exposed one")
    assert not_exposed(_records(names, names)) == not_exposed(_records([f"{LAST}.grad", LAST], [LAST])) == ""


def test_a_failure_without_a_name_may_be_in_the_hidden_steps_before_it() -> None:
    def reported(is_exposed: Callable[[str], bool]) -> str:
        def change(found: dict[str, Any]) -> dict[str, Any]:
            wrong = found[LAST] + 0.05 * torch.sin(7.0 * found[LAST]) * found[LAST].roll(3, -1)
            return {n: x for n, x in {**found, LAST: wrong}.items() if is_exposed(n)}

        return " ".join(case_text(check(MadeOf(change), "tiny")).split())

    alone, beside_all = reported(lambda name: name == LAST), reported(lambda _: True)
    assert f"origin of the error: {LAST} layer 1, output.LayerNorm: an error without a name" in alone
    assert "It may be in this step or in 27 unexposed ones before it, after the token ids (7 more only copy)" in alone
    assert ("layer 1, output.LayerNorm: an error without a name" in beside_all, "It may be" in beside_all) == (True, False)


def test_an_activation_that_breaks_the_contract_is_named_once() -> None:
    def change(found: dict[str, Any]) -> dict[str, Any]:
        found["encoder.layer.1.output.dense"] = found["encoder.layer.1.output.dense"][..., :-1]
        found["encoder.layer.0.output.dense"] = found["encoder.layer.0.output.dense"].double()
        return found

    rendered = case_text(check(MadeOf(change), "tiny"))
    assert rendered.count("encoder.layer.1.output.dense") == 1
    assert rendered.count("encoder.layer.0.output.dense") == 1
    assert "first origin" not in rendered
    assert "local rms" not in rendered


def _with(change: Callable[[Any], None]) -> Planted:
    def plant(model: Any) -> None:
        with torch.no_grad():
            change(model)

    return Planted(plant)


def _other_row(model: Any) -> None:
    weight = model["bert"].encoder.layer[1].attention.output.dense.weight
    weight[5] = weight[5].flip(0)


def _other_bias(model: Any) -> None:
    model["bert"].encoder.layer[1].output.LayerNorm.bias[3] += 1.0


def _other_table(model: Any) -> None:
    model["bert"].embeddings.position_embeddings.weight[2:4] *= 1.25


def _untied(model: Any) -> None:
    decoder = model["cls"].predictions.decoder
    noise = torch.randn(decoder.weight.shape, generator=torch.Generator().manual_seed(0))
    decoder.weight = torch.nn.Parameter(decoder.weight + 0.1 * noise)


def _row_and_bias(model: Any) -> None:
    _other_row(model)
    _other_bias(model)


BIAS = "bert.encoder.layer.1.output.LayerNorm.bias, element 3"
READ = "2 of the 16 rows that the batch reads, the first is row 2: element 9, expected 0.02856445, estimated 0.03570557"


@pytest.mark.parametrize(
    ("change", "numbers", "usual"),
    [
        (_other_row, "where they differ: bert.encoder.layer.1.attention.output.dense.weight, row 5", "not loaded"),
        (_other_bias, f"where they differ: {BIAS}: expected 0.002197266, estimated 1.002197", "not loaded"),
        (_other_table, f"where they differ: bert.embeddings.position_embeddings.weight, {READ}", "not loaded"),
        (_untied, "bert.embeddings.word_embeddings.weight, all 96 rows, the first is row 0", "not tied to the word embeddings"),
        (_row_and_bias, f"dense.weight, row 5; {BIAS}", ""),
    ],
)
def test_parameters_that_are_not_the_checkpoints_are_named_with_their_rows(
    change: Callable[[Any], None], numbers: str, usual: str
) -> None:
    activations = activation_records(check(_with(change), "tiny"))
    (found,) = findings(activations)
    assert "the equation holds with other parameters than the checkpoint's" in sentence(found, layers_of(activations))
    assert (numbers in evidence(found), "amplitude" in evidence(found), usual in cause(found)) == (True, False, True), evidence(
        found
    )


@pytest.mark.parametrize(
    ("mask", "has_padding"),
    [
        ([[1, 1, 0]], True),
        ([[1, 1, 1]], False),
        ([[[1, 0, 0], [1, 1, 0], [0, 0, 0]]], True),
        ([[[1, 0, 0], [1, 1, 0], [1, 1, 1]]], False),
    ],
    ids=["a padded row", "a full row", "a token that attends to none", "earlier tokens"],
)
def test_padding_is_found_in_a_mask_of_tokens_and_in_one_of_pairs(mask: list[Any], has_padding: bool) -> None:
    found = CounterexampleRecord("tiny", {"input_ids": [[7, 3, 5]], "attention_mask": mask}, {}, [], "")
    shown = report("text", merged([run(checked(CASE, "fail", (activation(CASE, LAST, 9.0),), counterexample=found))]))
    assert (PADDING in shown) is has_padding
    (row,) = tokens(found, [], None)
    assert [token.masked for token in row] == [False, False, has_padding]


def test_every_number_that_a_pass_confirms_is_named_by_its_quantity() -> None:
    without = {f.name for f in CATALOGUE if f.parameter and not f.after_failure and not f.parameter.quantity}
    # A pass confirms neither: the first also divides by n − 1, and the second's right value depends on the inputs.
    assert without == {"norm-unbiased-deviation", "hidden-clipped"}


def test_a_function_without_a_bounded_scale_has_its_error_in_ulp() -> None:
    functions = {"exp": FunctionRecord(1e31, 0.55), "erf": FunctionRecord(3e-8, 0.65)}
    machine = MachineRecord("AVX2", functions, {}, {})
    assert "exp 0.55 ULP, erf 3e-08" in str(RunView(merged([run(checked(CASE), machine=machine)])).environments)
    assert header(machine=machine).machine == machine


def test_every_fitted_mistake_reports_a_number_or_says_what_is_estimated() -> None:
    # The step alone is replaced, without numbers.
    nothing = {"rows-first", "precision-int8-inputs", "precision-int8-dynamic", "precision-int8-saturated"}
    assert {f.name for f in FITTED if "{value}" not in f.sentence and not f.estimates} <= nothing
