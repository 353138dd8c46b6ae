"""`diagnose` of outputs whose rows are those of other texts."""

from typing import Any

import numpy as np
import pytest

from conformance import Batch
from conformance.diagnosis import Diagnosis, OutputTable, diagnose
from conformance.tests.test_diagnose import BATCH, CHECKPOINT, _hidden, _mean, _model, _text

ROTATED = np.roll(np.arange(BATCH.size), 1).tolist()


def _sentences(diagnosis: Diagnosis) -> list[str]:
    return [fault.sentence for e in diagnosis.explanations for fault in e.faults]


def _said(order: dict[int, int]) -> str:
    (first, text), *others = order.items()
    clauses = [f"row {first} of the outputs is that of text {text}", *(f"row {row} that of text {t}" for row, t in others)]
    return f"the rows are those of other texts: {', '.join(clauses)}"


@pytest.mark.parametrize(("kind", "order"), [("exact", ROTATED), ("embeddings", [0, 1, 3, 2, 4, 5]), ("both", ROTATED)])
def test_the_text_of_each_row_is_named_and_no_other_explanation(kind: str, order: list[int]) -> None:
    hidden = _hidden(_model())
    outputs: dict[str, Any] = {
        "exact": {"last_hidden_state": hidden[order].numpy()},
        "embeddings": {"embedding": _text(_mean(hidden)[order])},
        "both": {"embedding": _text(_mean(hidden)[order]), "last_hidden_state": _text(hidden[order])},
    }
    diagnosis = diagnose(CHECKPOINT, BATCH, outputs[kind])
    assert not diagnosis.conforms
    assert _sentences(diagnosis) == [_said({row: text for row, text in enumerate(order) if row != text})]
    (best,) = diagnosis.explanations
    assert (best.tied, best.faults[0].where) == (True, "in the order of the rows")
    assert best.evidence > 0.0
    assert best.rms < diagnosis.rms_limit < diagnosis.rms


def test_the_rows_of_equal_texts_keep_their_places() -> None:
    twice = Batch.of({name: array[[0, 0, 1, 2]] for name, array in BATCH.arrays().items()})
    mean = _mean(_hidden(_model()))
    assert _sentences(diagnose(CHECKPOINT, twice, {"embedding": _text(mean[[0, 0, 2, 1]])})) == [_said({2: 3, 3: 2})]
    assert diagnose(CHECKPOINT, twice, {"embedding": _text(mean[[0, 0, 1, 2]])}).conforms


def test_rows_that_were_not_printed_are_not_named() -> None:
    printed = OutputTable(_text(_mean(_hidden(_model()))[[3, 1]]), {"rows": [0, 2]})
    assert _sentences(diagnose(CHECKPOINT, BATCH, {"embedding": printed})) == [_said({0: 3, 2: 1})]


def test_a_fault_besides_another_order_is_not_reported_as_an_order() -> None:
    wrong = _mean(_hidden(_model(hidden_act="relu")))[[1, 0, 2, 3, 4, 5]]
    diagnosis = diagnose(CHECKPOINT, BATCH, {"embedding": _text(wrong)})
    assert not diagnosis.conforms
    assert not any("rows" in sentence for sentence in _sentences(diagnosis))
