"""Laws for sentence embeddings: a dependence on padding or on other rows is found there, and other correct formulas pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from conformance import Batch, check, golden_of
from conformance.checks.check import Plan, Request
from conformance.checks.run_check import run_check
from conformance.judge.local_error import judge_locally
from conformance.judge.observation import Observation
from conformance.judge.segment import Segment
from conformance.model.activations import table
from conformance.model.heads import POOLING
from conformance.numerics.arithmetic import hypotheses
from conformance.oracle import Network
from conformance.oracle.pooling import Unit
from conformance.tests.dense_modules import ARCHITECTURE, network
from conformance.tests.lawless import Around

GOLDEN = "token-heads"  # Normalised mean pooling.
HIDDEN, EMBEDDING = "encoder.layer.0.output.LayerNorm", "sentence_embedding"
Embed = Callable[[Tensor, Tensor], Tensor]


def embedding(embed: Embed) -> Around:
    """Return Hugging Face's encoder with the embedding `embed` of its hidden states (B, S, H) and mask (B, S, 1)."""

    def after(self: Any, batch: Any, name: str, value: Tensor) -> Tensor:
        if name == HIDDEN:
            self.hidden = value
        mask = batch.filled().attention_mask[:, :, None].to(value.dtype)
        return embed(self.hidden, mask) if name == EMBEDDING else value

    return Around(after=after)


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def in_float64(hidden: Tensor, mask: Tensor) -> Tensor:
    """Compute each row separately as a product with the weights in float64, rounded once."""
    weights = mask.double() / mask.double().sum(1, keepdim=True).clamp(min=1e-9)
    pooled = torch.stack([w.T @ h for w, h in zip(weights, hidden.double(), strict=True)])[:, 0]
    return (pooled * pooled.square().sum(1, keepdim=True).rsqrt()).to(hidden.dtype)


WRONG: dict[str, tuple[str, Embed]] = {
    "a length that depends on padding": ("padding-length", lambda hidden, _: normalize(hidden.mean(1))),
    "the content of padding": ("padding-content", lambda hidden, _: normalize(hidden.mean(1))),
    "the norm of the whole batch": ("batching", lambda hidden, mask: mean(hidden, mask) / mean(hidden, mask).norm()),
    "the norm of the first row": ("batching", lambda hidden, mask: mean(hidden, mask) / mean(hidden, mask)[:1].norm(dim=1)),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_an_embedding_that_depends_on_padding_or_on_other_rows_fails_at_the_embedding(mistake: str) -> None:
    law, embed = WRONG[mistake]
    result = run_check(Request.of(embedding(embed), GOLDEN, "cpu", "float32", law))
    assert result.outcome == "fail"
    assert result.reason.startswith(f"{EMBEDDING}[")
    assert result.counterexample
    assert result.counterexample.example.batch.size <= 2


@pytest.mark.landing(dtype="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("law", ["padding-length", "padding-content", "batching", "masked-row"])
def test_an_embedding_computed_in_another_way_obeys_the_laws(law: str, dtype: str) -> None:
    result = run_check(Request.of(embedding(in_float64), GOLDEN, "cpu", dtype, law, plan=Plan(10)))
    assert result.outcome == "pass", result.reason


@pytest.mark.parametrize("pooling", ["mean", "mean-sqrt-length", "weighted-mean"])
def test_the_errors_of_a_row_without_tokens_are_finite(pooling: str) -> None:
    """Else no filter would detect a mistake in the other rows."""
    a = ARCHITECTURE.with_(pooling=pooling)
    batch = Batch.of({"input_ids": [[1, 2, 3], [4, 5, 6]], "attention_mask": [[1, 1, 0], [0, 0, 0]]})
    (name,) = (name for name, row in table(a).items() if row.kind.startswith(POOLING))
    oracle = Network(a, network().checkpoint.weights, batch)
    segment = Segment(oracle, name, {n: value for n, value in oracle.walk() if n in oracle.table[name].parents})
    for hypothesis in hypotheses("bfloat16"):
        assert np.isfinite(segment.propagate(segment.leaf_variance(hypothesis), hypothesis)).all()


def test_a_sentence_of_length_zero_has_a_finite_sigma_and_gradient() -> None:
    x = np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    site = Network(ARCHITECTURE.with_(normalize=True), network().checkpoint.weights, Batch.of({"input_ids": [[1], [2]]})).site(
        EMBEDDING
    )
    unit = Unit(site, x)
    assert unit.value[0].tolist() == [0.0, 0.0, 0.0]
    for hypothesis in hypotheses("float32"):
        assert np.isfinite(unit.roundings(hypothesis.arithmetic).variance()).all()
    assert np.isfinite(unit.jacobians()[0].variance(np.full_like(x, 1e-12))).all()


def test_a_single_token_that_is_multiplied_by_its_position_is_no_copy() -> None:
    """(s x)/s is not x in float32 for s = 3, 5, 6."""
    a = ARCHITECTURE.with_(pooling="weighted-mean")
    batch = Batch.of({"input_ids": np.full((2, 6), 5), "attention_mask": [[0, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0]]})
    oracle = Network(a, network().checkpoint.weights, batch)
    (name,) = (name for name, row in table(a).items() if row.kind.startswith(POOLING))
    hidden = {n: value.astype(np.float32).astype(float) for n, value in oracle.walk() if n in oracle.table[name].parents}
    places = np.arange(1, 7, dtype=np.float32)[:, None] * batch.mask[:, :, None]
    actual = (next(iter(hidden.values())).astype(np.float32) * places).sum(1) / places.sum(1)
    judged = judge_locally(Observation(oracle, name, actual, hidden), hypotheses("float32"), 1e-8)
    assert any(local.passes for local in judged)


def test_a_mistake_in_rows_whose_first_token_is_padding_fails() -> None:
    given = network(normalize=True)
    ids = np.array([[0, 0, 7, 8, 9], [3, 4, 5, 6, 7]])
    left = Batch.of({"input_ids": ids, "attention_mask": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]})
    golden = golden_of("left", given.checkpoint, {"left": left})
    assert check(embedding(in_float64), golden, depth="screen").conforms
    wrong = embedding(lambda hidden, mask: in_float64(hidden, mask) * (2.0 - mask[:, 0]))
    result = check(wrong, golden, depth="screen")
    assert [f.activation for f in result.failures] == [EMBEDDING]
