"""The drawings of a trace: the graph of the network, and attention as heat maps."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from conformance import Architecture, load_golden
from conformance.checks.trace import Trace, true_trace
from conformance.oracle import Network
from conformance.report.document import Folded, Paragraph
from conformance.report.html.diagram import diagram
from conformance.report.html.drawings import drawn
from conformance.report.html.layout import WIDTH, layout, wrapped
from conformance.report.markdown import mermaid
from conformance.report.trace.attention import attention, heads, pooled
from conformance.report.trace.trace_document import parts, shape
from conformance.report.trace.trace_view import TracedBatch, TraceView, trace_view

TINY = load_golden("tiny")
TRUE = true_trace(TINY)
PROBS = "encoder.layer.{}.attention.self.probs"


def _without(*names: str) -> Trace:
    """Return the view of the oracle's trace as if a candidate did not show these activations."""
    found = {n: v for n, v in TRUE.activations["padded"].items() if n not in names}
    return replace(TRUE, name="shy", activations={"padded": found})


ALL = [TINY.checkpoint.architecture, load_golden("sinusoidal").checkpoint.architecture]
ARCHITECTURES = [
    *ALL,
    ALL[0].with_(heads=(), pooler=False),
    ALL[0].with_(num_hidden_layers=0, heads=("classification",)),
    ALL[0].with_(heads=("plain_masked_lm", "plain_next_sentence", "classification"), position_embedding_type="sinusoidal"),
]


def _blank(architecture: Architecture) -> TraceView:
    """Return the view of a candidate that shows nothing."""
    return trace_view(Trace("x", "x", "float64", "cpu", {"b": TINY.batches["padded"]}, {"b": {}}, architecture))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_boxes_are_below_their_parents_do_not_overlap_and_contain_their_text(architecture: Architecture) -> None:
    blank = _blank(architecture)
    drawn = parts(blank)
    once = sorted(name for name, row in blank.table.items() if not row.layer)
    assert sorted(n.name for p in drawn for n in p.nodes if n.kind != "source") == once
    for part in drawn:
        found = layout(part.nodes)
        boxes = {box.node.name: box for box in found.boxes}
        for box in found.boxes:
            assert box.x >= 0
            assert max(box.right, box.bottom) <= max(WIDTH, found.height)
            assert all(boxes[p].bottom < box.y for p in box.node.parents)
            assert all(len(line.text) * (6.6 if line.kind == "name" else 6.2) <= box.width for line in box.lines)
            assert " ".join(line.text for line in box.lines).replace(" ", "") == "".join(box.node.lines).replace(" ", "")
        for a in found.boxes:
            apart = [b.x >= a.right or b.right <= a.x or b.y >= a.bottom or b.bottom <= a.y for b in found.boxes if b is not a]
            assert all(apart)


def test_lines_that_pass_other_steps_go_around_their_boxes() -> None:
    for part in (part for architecture in ARCHITECTURES for part in parts(_blank(architecture))):
        found = layout(part.nodes)
        for x, top, bottom in (down for edge in found.edges for down in _downs(edge.path)):
            assert not [b for b in found.boxes if b.x < x < b.right and b.bottom > top and b.y < bottom]
    around = [edge for edge in layout(parts(trace_view(TRUE))[1].nodes).edges if edge.skip]
    assert len(around) == 3  # The two residual connections and the values.
    assert all(list(_downs(edge.path)) for edge in around)


def _downs(path: str) -> Iterator[tuple[float, float, float]]:
    """Return the vertical segments of a path of M, H, V, q and c as (x, from y, to y)."""
    x = y = 0.0
    for command, arguments in re.findall(r"([MHVqc])([^MHVqc]*)", path):
        numbers = [float(n) for n in arguments.split()]
        if command == "V":
            yield x, y, numbers[0]
            y = numbers[0]
        elif command == "H":
            x = numbers[0]
        else:
            x, y = (x + numbers[-2], y + numbers[-1]) if command in "qc" else numbers


def test_text_is_wrapped_at_separators_without_loss() -> None:
    assert wrapped("attention.self.query", 15) == ["attention.self.", "query"]
    assert wrapped("a" * 7, 3) == ["aaa", "aaa", "a"]
    assert wrapped("x Wᵀ + b", 20) == ["x Wᵀ + b"]


def test_a_drawing_marks_activations_that_a_candidate_does_not_show() -> None:
    whole, partly = (diagram(parts(trace_view(t))[1]) for t in (TRUE, _without("encoder.layer.1.attention.self.scores")))
    assert whole.count("dashed") == 0
    assert partly.count("dashed") == 1
    flow = mermaid(parts(trace_view(TRUE))[1])
    assert flow.count("-->") == sum(len(row.parents) for row in trace_view(TRUE).table.values() if row.layer == 0)


def test_the_map_of_a_head_omits_padding_and_names_its_most_attended_token() -> None:
    probs = np.zeros((1, 4, 4))
    probs[0, :, 1] = 0.75
    probs[0, :, 2] = 0.25
    probs[0, 3, :] = 9.0
    tokens = ["<i>", "b", "a token that is long", "[PAD]"]
    ((found, caption),) = heads(probs, tokens, np.array([True, True, True, False]))
    assert found.shades == ((0, 6, 5),) * 3
    assert caption == "0: 75% to b"
    svg = drawn(found)
    assert "<i>" not in svg
    assert "a token…" in svg
    assert svg.count("<path") == 2


def test_long_sequences_are_pooled_by_the_maximum() -> None:
    values = np.arange(25.0).reshape(5, 5)
    assert pooled(values, 2).tolist() == [[6, 8, 9], [16, 18, 19], [21, 23, 24]]
    probs = np.full((1, 65, 65), 1 / 65)
    ((found, _),) = heads(probs, ["t"] * 65, np.ones(65, np.bool_))
    assert (len(found.shades), len(found.shades[0])) == (22, 22)
    assert "<text" not in drawn(found)


def test_attention_that_is_not_shown_or_not_drawn_is_described_in_words() -> None:
    rows, notes = _attention(TRUE)
    assert [sum(isinstance(block, Folded) for block in row.blocks) for row in rows] == [2] * 6
    assert not notes
    rows, notes = _attention(TRUE, budget=1)
    assert [(row.summary.partition(":")[0], len(row.blocks)) for row in rows] == [("row 0", 1)]
    assert notes == ["Not drawn, so that the page stays small: layer 1 of row 0 of padded and 5 rows more."]
    _, notes = _attention(_without(PROBS.format(0), PROBS.format(1)))
    assert notes == ["shy does not expose encoder.layer.*.attention.self.probs, so that attention is not drawn."]


def _attention(trace: Trace, **budget: int) -> tuple[list[Folded], list[str]]:
    """Return the rows that are drawn, and the sentences on what is not."""
    blocks = list(attention(trace_view(trace), [trace], **budget))
    notes = [block.text for block in blocks if isinstance(block, Paragraph) and not block.text.startswith("A map")]
    return [block for block in blocks if isinstance(block, Folded)], notes


@pytest.mark.parametrize(("golden", "name", "one", "several"), [
    ("cross-attention", "encoder_hidden_states", "4 × 11 × 32", "B × T × 32"),
    ("cross-attention", "encoder.layer.0.crossattention.self.probs", "4 × 4 × 16 × 11", "B × 4 × S × T"),
    ("pruned-heads", "encoder.layer.0.attention.self.probs", None, "B × 2 × S × S"),
])  # fmt: skip
def test_shapes_are_those_of_the_encoders_states_and_of_the_layers_own_heads(
    golden: str, name: str, one: str | None, several: str
) -> None:
    found = load_golden(golden)
    batch, architecture = found.batches["padded"], found.checkpoint.architecture
    rows, traced = Network(architecture, {}, batch).table, TracedBatch("padded", batch, (), (), ())
    for count, expected in ((1, one), (2, several)):
        view = TraceView(("a",), ("",), "g", architecture, rows, (frozenset(),), (traced,) * count, False)
        assert expected is None or shape(rows[name], view) == expected
