"""The table of mistakes: each is at its declared steps and nowhere else, and the suite finds, places and names it."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from conformance import Golden, check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.mistakes import MISTAKES, ROWS, Row
from conformance.benchmarks.detection.score import Trial, of_all, of_finding, scored, trials
from conformance.benchmarks.detection.tools import evaluated
from conformance.benchmarks.frozen.__main__ import dumped, moved
from conformance.judge.judged_elements import judged_elements
from conformance.model.activations import table
from conformance.model.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

LATER = ("token-heads", "sentence-heads", "position-offset", "odd-width")  # used only where no other can have the mistake
NETWORKS = ("three layers", "sinusoidal", "tanh", *LATER)

# Of each kind of step and of each way to name a mistake: exactly, with a number, by a description, by one of two names. The frozen
# record has the others, in float32 and bfloat16; those of masks and of the order of heads take ten times as long as these.
QUICK = (
    *("words-shifted", "positions-offset", "positions-missing", "token-types-ignored", "second segment late by one token"),
    *("query-key-swapped", "qkv-interleaved", "weight-transposed", "bias-missing", "parameters-other", "adapter"),
    *("scale-missing", "scores-transposed", "softmax-temperature"),
    *("mask-ignored", "epsilon", "norm-without-mean", "residual-scaled", "residual-from-layer-input"),
    *("pre-norm", "gelu-variant", "activation-quick-gelu", "tokens-zero", "layer-skipped", "layers-reversed"),
    *("pooler-mean", "next-sentence-order", "loss-denominator", "precision-bfloat16", "precision-int8", "dropout-active"),
)


@cache
def golden(name: str) -> Golden:
    """Return a small golden: `tiny` with id 0 among its tokens, with the tanh form or one more layer; or a shipped golden."""
    if name in ("sinusoidal", *LATER):
        return load_golden(name)
    tiny = load_golden("tiny")
    batch = tiny.batches["padded"]
    ids = np.where(np.arange(batch.length) == batch.mask.argmax(1)[:, None] + 1, 0, batch.input_ids)
    a, weights = tiny.checkpoint.architecture, dict(tiny.checkpoint.weights)
    if name == "tanh":
        a = replace(a, hidden_act="gelu_new")
    if name == "three layers":
        a = replace(a, num_hidden_layers=3)
        second = {n: w for n, w in weights.items() if "layer.1." in n}
        weights |= {n.replace("layer.1.", "layer.2."): np.roll(w, 1, -1) for n, w in second.items()}
    return golden_of(name, Checkpoint(a, weights), {"padded": replace(batch, input_ids=ids)})


def test_no_two_mistakes_have_one_name_or_are_one_expression() -> None:
    assert len(ROWS) == len(MISTAKES)
    written = [(str(row.changes), row.dtypes) for row in ROWS]
    assert [changes for changes in written if written.count(changes) > 1] == []


def test_an_expression_may_refer_to_the_right_result_and_to_that_of_other_inputs() -> None:
    """A later change of a step refers to an earlier one, and what is computed widely is rounded once."""
    tiny = load_golden("tiny")
    (batch,) = tiny.batches.values()

    def query(*formulas: str, wide: bool = False) -> torch.Tensor:
        changes = [changed("query", formula, layers=(0,), wide=wide) for formula in formulas]
        runner = Candidate(changes).prepare(tiny.checkpoint, "cpu", "bfloat16")
        return runner(batch.on("cpu"))["encoder.layer.0.attention.self.query"]

    right = query()
    torch.testing.assert_close(query("right() + 1"), right + 1, rtol=0, atol=0)
    torch.testing.assert_close(query("right(bias=None) + bias", wide=True), right, rtol=0, atol=0)
    torch.testing.assert_close(query("2 * right()", "right() + 1"), 2 * right + 1, rtol=0, atol=0)
    torch.testing.assert_close(query("right(**p.query)"), right, rtol=0, atol=0)
    assert evaluated(lambda a, b: a + b, {"a": 1, "b": 2}.__getitem__) == evaluated("a + b", {"a": 1, "b": 2}.__getitem__)


@pytest.mark.landing(dtype="float32")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("network", NETWORKS)
def test_without_a_mistake_the_network_conforms_and_shows_everything(network: str, dtype: str) -> None:
    result = check(Candidate(), golden(network), dtype=dtype)
    assert result.conforms, (result.reason, [(v.place, v.local and v.local.error) for v in result.origins])
    judged, activations = result.coverage
    assert judged == activations


def wrong_steps(row: Row, layer: int, given: Golden) -> frozenset[str]:
    """Return the activations that differ from the right step applied to the inputs that it received."""
    (batch,) = given.batches.values()
    dtype = row.dtypes[0]
    shown = Candidate([row.at(layer)]).prepare(given.checkpoint, "cpu", dtype)(batch.on("cpu"))
    right = replace(Candidate().build(given.checkpoint, "cpu", dtype), instead=shown)(batch.on("cpu"))
    rows, room = table(given.checkpoint.architecture), 1e-9 if dtype == "float64" else 1e-5
    wrong = set()
    for name, value in shown.items():
        judged = judged_elements(rows[name], batch, tuple(value.shape)) if value.shape[:1] != (1,) else np.ones(value.shape, bool)
        difference = (value - right[name]).abs().double().numpy()[judged]
        assert np.isfinite(difference).all(), name
        if difference.max() > room * float(right[name].abs().max()):
            wrong.add(name)
    return frozenset(wrong)


def _places(row: Row) -> list[tuple[str, int]]:
    """Return the networks that can have the mistake (the last ones only where no other can), in the first and last layer."""
    places = []
    for network in NETWORKS:
        a = golden(network).checkpoint.architecture
        if row.fits(a) and not (places and network in ("tanh", *LATER)):
            places += [(network, layer) for layer in ((0, a.num_hidden_layers - 1) if row.layered else (0,))]
    return places


# In these, only padding would change: id 0 and token type 0 occur nowhere else, and all padding is on the right.
UNSEEN = {
    *((name, "sinusoidal") for name in ("padding-word-zeroed", "token-type-zero-zeroed")),
    *((name, "sinusoidal") for name in ("positions-counted-by-mask", "mask-to-last", "mask-as-lengths")),
    *((name, "sinusoidal") for name in ("tokens-packed-left", "tokens-packed-left-norm", "first key always attended to")),
}


@pytest.mark.landing(name=[*MISTAKES][::4])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_at_its_origins_and_nowhere_else(name: str) -> None:
    row = MISTAKES[name]
    places = [(network, layer) for network, layer in _places(row) if (name, network) not in UNSEEN]
    assert places
    for network, layer in places:
        given = golden(network)
        expected = row.begins(given.checkpoint.architecture, layer)
        assert expected
        assert wrong_steps(row, layer, given) == expected, (network, layer)


@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_is_detected_placed_and_named(name: str) -> None:
    row = MISTAKES[name]
    result = check(Candidate([row.at(1)]), golden("three layers"))
    assert {verdict.activation for verdict in result.origins} == row.begins(golden("three layers").checkpoint.architecture, 1)
    assert of_all({of_finding(finding, row.says) for finding in result.findings}) in ("right", "described")


@pytest.mark.thorough
@pytest.mark.parametrize("trial", [*trials(ROWS, ("float32", "bfloat16"))], ids=lambda t: f"{t.name}-{len(t.layers)}-{t.dtype}")
def test_every_mistake_that_rounding_does_not_hide_is_detected_placed_and_named(trial: Trial) -> None:
    outcome = scored(trial)
    assert outcome.right or not outcome.counted, outcome


@pytest.mark.landing(dtype="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_probability_on_masked_keys_is_a_finding_though_nothing_explains_it(dtype: str) -> None:
    result = check(Candidate([changed("probs", "right() + (~keep).to(x.dtype) * 2.0**-30", layers=(0,))]), dtype=dtype)
    assert [v.activation for v in result.origins] == ["encoder.layer.0.attention.self.probs"]
    assert "masked keys get probability" in result.origins[0].reason
    assert [(f.name, f.activations) for f in result.findings] == [(None, ("encoder.layer.0.attention.self.probs",))]


@pytest.mark.landing(dtype="bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_levels_of_probabilities_are_those_of_the_candidate(dtype: str) -> None:
    (finding,) = check(Candidate([changed("probs", "(right() * 256).round() / 256", layers=(0,))]), dtype=dtype).findings
    assert "multiples of 0.00390625" in finding.sentence


def test_what_has_moved_from_the_frozen_record_is_listed_and_the_rounding_of_another_processor_is_not() -> None:
    place = {"encoder.layer.0.attention.self.probs": [["softmax-temperature", 2.0]]}
    other = {"encoder.layer.0.attention.self.probs": [["softmax-temperature", 2.2]]}
    before = {"candidates": {"a": [1, "fail", place]}, "noise": {"n": [-3.0, None, 5.0]}}
    assert list(moved(before, {"candidates": {"a": [1, "fail", other]}, "noise": {"n": [-3.2, None, 5.1]}})) == []
    after = {"candidates": {"a": [0, "pass", {}]}, "noise": {"n": [-3.5, None, 5.0]}}
    assert [what for _, _, what, *_ in moved(before, after)] == ["exit code", "outcome", "places", "log2 sigma"]
    assert json.loads(dumped(before)) == before
