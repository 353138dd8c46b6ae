"""The third blind set: mistakes that had no name, or a wrong one, when they were written are found, placed and named."""

import pytest

from conformance.benchmarks.detection.blind.score import Outcome, outcomes
from conformance.benchmarks.detection.blind.third import MISTAKES
from conformance.benchmarks.detection.blind.third.named import RIGHT

pytestmark = pytest.mark.usefixtures("one_thread")

MENDED = (
    "first type folded into the positions",
    "embeddings kept at the dropout's rate",
    "embeddings normed twice",
    "both residuals and PyTorch's epsilon",
    "scores capped at fifty",
    "ALiBi and no scale",
    "two heads to a key",
    "cosine attention",
    "keys where queries should be",
    "last tile of keys unread",
    "mask of minus ten",
    "softmax in each tile",
    "online softmax without rescaling",
    "mask and window after the softmax",
    "GELU clipped at four",
    "tanh GELU, clipped",
    "last neurons unread",
    "pooler of the first row",
    "heads of two layers' mean",
    "final norm",
    "transform with a residual",
    "logits capped at thirty",
    "next sentence's log-probabilities",
    "two of four zero",
    "subnormals flushed",
    "reciprocal of eleven bits",
    "probabilities of a byte",
    "softmax guarded against zero",
    "scores of float8 inputs",
    "partial sums in float16",
    "integer inputs of the outer product",
    "integer inputs after attention",
    "probabilities of the first layer",
    "scores added to the layer's before",
    "queries of the embeddings",
    "residual of the embeddings",
    "values of the first row",
    "last micro-batch not written",
    "rows turned after attention",
    "values one token late",
    "pooler of the embeddings",
    "positions interpolated",
    "cubic term's digits exchanged",
    "root of two over pi rounded",
    "quick GELU with 1.7",
    "pooler's hard tanh",
    "pooler's tanh twice",
    "special tokens suppressed",
)


def test_there_are_a_hundred_and_sixty_two_mistakes_and_each_has_its_accepted_names() -> None:
    assert len(MISTAKES) == 162
    assert list(RIGHT) == list(MISTAKES)
    assert all(mistake.hoped for mistake in MISTAKES.values())


def test_mistakes_that_once_had_no_name_or_a_wrong_one_are_placed_and_named() -> None:
    for found in outcomes("tiny", "float32", [MISTAKES[name] for name in MENDED], RIGHT):
        assert found == Outcome("tiny", "float32", found.mistake, True, True, False, "right")
