"""`diff` of two candidates: where their difference begins, and how it is reported."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import load_golden
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.checks.trace import Trace, record
from conformance.implementations.hugging_face import HuggingFace
from conformance.numerics.formats import Array
from conformance.report.difference import Difference, compare, document, judged
from conformance.report.document import Document, markdown
from conformance.report.page import page
from conformance.report.terminal import wrapped
from conformance.results.records import ActivationRecord
from conformance.tests.planted_mistakes import Planted, tanh_gelu, unscaled

TINY = load_golden("tiny")
NORM, PROBS = "encoder.layer.1.attention.output.LayerNorm", "encoder.layer.0.attention.self.probs"
LAST = "encoder.layer.1.output.LayerNorm"
LOOKUP, DECODER = "embeddings.word_embeddings", "cls.predictions.decoder"


def _changed(trace: Trace, name: str, change: Callable[[Array], Array]) -> Trace:
    """Return a trace with one activation changed, under another name."""
    padded = trace.activations["padded"]
    return replace(trace, name="changed", activations={"padded": {**padded, name: change(np.array(padded[name]))}})


def _begins(*traces: Trace) -> list[str]:
    a, b = traces
    return [d.activation for d in compare((a, b), (judged(a, TINY.checkpoint), judged(b, TINY.checkpoint))) if d.begins]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_difference_that_begins_in_a_hidden_step_begins_in_the_next_step_that_the_wrong_candidate_shows(attention: str) -> None:
    a, b = (record(c, TINY, "cpu", "float32") for c in (Planted(unscaled(0)), HuggingFace(attention)))
    records = (judged(a, TINY.checkpoint), judged(b, TINY.checkpoint))
    view = document(list(compare((a, b), records)), (a, b), records).view
    assert view["begins"] == "layer 0, attention.self.probs"
    assert [bool(mistakes) for *_, mistakes in view["sides"]] == [True, False]


@pytest.mark.landing(dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_no_difference_begins_where_both_candidates_are_correct_and_one_rounds_every_operation(dtype: str) -> None:
    by_hand = record(VARIANTS["GELU, every operation rounded"], TINY, "cpu", dtype)
    usual, wrong = (record(candidate, TINY, "cpu", dtype) for candidate in (HuggingFace("eager"), Planted(tanh_gelu(0))))
    assert _begins(by_hand, usual) == []
    assert _begins(by_hand, wrong) == ["encoder.layer.0.intermediate.intermediate_act_fn"]


def _trace(name: str, *shown: str) -> Trace:
    found = {"": {activation: np.zeros(1) for activation in shown}}
    return Trace(name, "tiny", "float32", "cpu", {}, found, TINY.checkpoint.architecture)


def _differs(name: str, local: float = 0.5, batch: str = "", **fields: Any) -> Difference:
    usual = {"largest": 0.125, "index": (1, 2), "values": (0.5, 0.375), "local": (local, 0.5), "limit": 3.0, "begins": local > 3.0}
    return Difference(batch, name, **{**usual, **fields})


def _document(*found: Difference, names: tuple[str, str] = ("mine", "yours"), wrong: tuple[ActivationRecord, ...] = ()) -> Document:
    traces = tuple(_trace(name, *(d.activation for d in found)) for name in names)
    return document(found, (traces[0], traces[1]), (wrong, ()))


EXACT = Difference("", LOOKUP, values=(0.5, 0.5), index=(0, 0, 0))
USUAL = (EXACT, Difference("", PROBS, "B"), _differs(NORM, 9.0), _differs(DECODER))


def _plain(shown: Document) -> str:
    return "\n".join(line.plain for line in wrapped(shown, 160))


def test_the_place_where_the_difference_begins_is_reported_first_and_marked_with_words() -> None:
    view = _document(*USUAL)
    sentence = "mine and yours on tiny, 3 activations in common: the difference begins at layer 1, attention.output.LayerNorm"
    assert _plain(view).startswith(sentence)
    assert markdown(view).startswith(f"**{sentence}**")
    lines = {line.split()[0]: line for line in _plain(view).splitlines() if line.startswith("  ")}
    assert "begins here" in lines["attention.output.LayerNorm"]
    assert "only B" in lines["attention.self.probs"]
    assert lines["cls.predictions.decoder"].endswith("0.375")
    html = page(view)
    assert html.count(">begins here</td>") == html.count(">only B</td>") == 1
    assert (view.tone, _document(*USUAL[:2], _differs(DECODER)).tone) == ("bad", "good")


def test_elements_that_are_not_finite_are_a_difference_where_they_are_judged_and_hide_none_at_padding() -> None:
    usual = record(HuggingFace("eager"), TINY, "cpu", "float32")
    padding = ~TINY.batches["padded"].mask[..., None]
    assert _begins(usual, _changed(usual, LAST, lambda x: np.where(~padding, np.nan, x))) == [LAST]
    value, context = (f"encoder.layer.0.attention.self.{name}" for name in ("value", "context"))
    other = _changed(_changed(usual, value, lambda x: np.where(padding, np.nan, x)), context, lambda x: 2.0 * x)
    assert _begins(usual, other)[0] == context
