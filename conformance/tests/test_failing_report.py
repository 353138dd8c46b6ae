"""Reports of failures: unexposed steps before an origin, the order of their parts, wrong rows of parameters, and the legend."""

import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance import Architecture, check
from conformance.judge.segment import between
from conformance.model.batch import Batch
from conformance.oracle import Network
from conformance.report.findings import findings
from conformance.report.representations import case_text
from conformance.report.unexposed_steps import unexposed_steps
from conformance.results.case import Case
from conformance.results.records import (
    ActivationRecord,
)
from conformance.results.to_records import activation_records
from conformance.tests.planted_mistakes import MadeOf, Planted
from conformance.tests.sample_records import activation

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
            assert list(unexposed_steps(name, _records(names, exposed))[0]) == expected, (name, exposed)


def test_a_failure_without_a_name_may_be_in_the_hidden_steps_before_it() -> None:
    def reported(is_exposed: Callable[[str], bool]) -> str:
        def change(found: dict[str, Any]) -> dict[str, Any]:
            wrong = found[LAST] + 0.05 * torch.sin(7.0 * found[LAST]) * found[LAST].roll(3, -1)
            return {n: x for n, x in {**found, LAST: wrong}.items() if is_exposed(n)}

        return " ".join(case_text(check(MadeOf(change), "tiny")).split())

    alone, beside_all = reported(lambda name: name == LAST), reported(lambda _: True)
    assert f"origin of the error: {LAST} layer 1, output.LayerNorm: an error without a name" in alone
    assert "It may be in this step or in 27 unexposed ones before it, after the token ids" in alone
    assert ("layer 1, output.LayerNorm: an error without a name" in beside_all, "It may be" in beside_all) == (True, False)


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
    assert "the equation holds with other parameters than the checkpoint's" in found.sentence
    assert (numbers in found.evidence, "amplitude" in found.evidence, usual in found.cause) == (True, False, True), found.evidence
