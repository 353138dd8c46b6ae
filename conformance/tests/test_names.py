"""The name of each mistake: that of the right one among similar ones, in the format that makes it hardest to tell; or none."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance import Golden, check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.equations import Change, Formula
from conformance.benchmarks.detection.mistakes import MISTAKES
from conformance.benchmarks.detection.mistakes.weights import bytes_of
from conformance.benchmarks.detection.networks import network
from conformance.judge import observation
from conformance.model.batch import Batch
from conformance.report.finding import Finding
from conformance.tests.planted_mistakes import MadeOf

pytestmark = pytest.mark.usefixtures("one_thread")

BOTH = "float32 bfloat16"


def planted(name: str, *layers: int) -> Sequence[Change]:
    return MISTAKES[name].at(*layers)


def findings(*changes: Any, golden: str | Golden = "tiny", dtype: str = "float32", **options: Any) -> tuple[Finding, ...]:
    result = check(Candidate(changes, **options), network("bert", 1) if golden == "bert" else golden, dtype=dtype)
    assert result.outcome in ("pass", "fail"), result.reason
    return result.findings


def first(step: str, formula: Formula) -> Change:
    """Return a change of a step of the first layer."""
    return changed(step, formula, layers=(0,))


def _smooth(right: Callable[..., Tensor], weight: Tensor) -> Tensor:
    """Multiply the columns of the weight by smoothing factors."""
    return right(weight=weight * (weight.abs().amax(0) / weight.abs().amax()).sqrt())


def _unsigned(right: Callable[..., Tensor], weight: Tensor) -> Tensor:
    """Do not subtract the zero point of the weight's rows."""
    return right(weight=bytes_of(weight.float(), 1, zero_point=False).to(weight.dtype))


NOT_LOADED = (
    changed("linears", "right(weight=normal(weight.shape, i, weight) * a.initializer_range, bias=None)", layers=(-1,)),
    changed("residuals", "layer_norm(x, eps=eps)", layers=(-1,)),
)
DRAWN = "right(weight=normal(weight.shape, 0, weight) * {}, bias=None)"
LOWEST = "right().index_fill(-1, torch.tensor([3]), -1e4)"
# Rows of several lengths have few elements that are judged in all of them; their tokens are compared one by one.
OF_ROWS = {"rows": "right().roll(1, 0)", "tokens": "right().roll(1, 1)"}
HEADS, POSITIONS = torch.arange(4.0)[:, None, None], torch.arange(16.0)
WAVES = torch.sin(POSITIONS[:, None] - POSITIONS)


def _biased(bias: Tensor) -> Change:
    return first("scores", lambda right: right() + bias)


# In words: the names of the findings, "-" for none, with those that cannot be distinguished; the golden; the formats; the changes.
NAMED: dict[str, tuple[str, str, str, Sequence[Any]]] = {
    "packed tokens": ("tokens-packed-left", "tiny", BOTH, [changed("last", "packed_left(right(), mask)")]),
    "inputs without zero point": ("precision-int8-inputs", "wide", "bfloat16", planted("zero-point-missing-inputs", 0)),
    "weights without zero point": ("parameters-other", "wide", "bfloat16", [changed("inner", _unsigned)]),
    "inputs of zero": ("parameters-other", "tiny", BOTH, [changed("dense", "right(x=F.pad(x[..., d:], (d, 0)))", layers=(-1,))]),
    "the padding's logits zero": (
        "parameters-other", "tiny", BOTH, [changed("logits", "right(weight=weight * (arange(len(weight)) > 0)[:, None])")],
    ),
    "smoothed inputs": ("parameters-other", "wide", "bfloat16", [changed("inner", _smooth)]),
    "a drawn decoder": (
        "parameters-initial", "wide", "float32",
        [changed("logits", "right(weight=normal(weight.shape, 0, weight) * a.initializer_range)")],
    ),
    "drawn parameters, wide": ("parameters-initial", "wide", "bfloat16", planted("parameters-initial")),
    # Weights that give larger results; and a cap whose RMS and largest error are within the limits.
    "a drawn decoder, twelve layers": ("parameters-initial", "deep", "bfloat16", planted("decoder-untied", 0)),
    "capped logits": ("logits-capped", "deep", "bfloat16", planted("logits-capped", 0)),
    # Of 100 nearly equal probabilities the rounding errors, which the candidate does not expose, add up in the context.
    "all rows": ("attention-over-rows-unmasked", "minilm", "bfloat16", planted("attention-over-rows-unmasked", 1)),
    # Each of 1536 outputs has 384 weights and 65 judged rows; the errors of rounding the weights are shared by the rows.
    "two adapters": ("parameters-other", "minilm", "bfloat16", [planted("adapter", 3), planted("adapter", 4)]),
    # The inputs of layer 6 lie near a few directions, so that a change of full rank would look the same there.
    "an adapter alone": ("parameters-other", "deep", "bfloat16", planted("adapter", 6)),
    "an adapter beside others": (
        "parameters-other", "deep", "bfloat16", [planted("adapter", 5), planted("parameters-other", 6)],
    ),
    # The inputs of 4 rows explain every residual by a weight.
    "a vector by squares": ("-", "tiny", "float32", [
        changed("pooler", "right() + x.square().sum(-1, keepdim=True) * torch.linspace(-1, 1, H)")]),
    "the bias by row": ("-", "tiny", "float32", [changed("pooler", "right() + arange(len(x))[:, None] * bias")]),
    # Rounding of the mean.
    "a mean": ("pooler-mean", "deep", "bfloat16", planted("pooler-mean", 0)),
    "a mean with padding": (
        "pooler-mean-with-padding/pooler-weighted-mean-with-padding", "deep", "bfloat16", planted("pooler-mean-with-padding", 0),
    ),
    # Fewer rows than features: a limit that clips fewer than one input in a thousand, and a norm whose every operation rounds.
    "clipped inputs": ("inputs-clipped", "wide", "float32", planted("inputs-clipped", 0)),
    "a norm over positions": ("norm-over-positions", "wide", "bfloat16", planted("norm-over-positions", 0)),
    "values that are not projected": ("projection-missing", "tiny", BOTH, [changed("value", "x")]),
    "tanh in the pooler and in the head": ("activation-again", "tiny", BOTH, [changed("pair", "right(x=tanh(pooled))")]),
    "GELU in the transform and in its norm": ("activation-again", "tiny", BOTH, [changed("transformed", "right(x=gelu(x))")]),
    "half of an exchange": ("value-from-key", "tiny", BOTH, [changed("value", "right(**p.key)")]),
    "a pooler of BERT's deviation": ("parameters-initial", "wide", "bfloat16", [changed("pooler", DRAWN.format(0.02))]),
    "a pooler of another deviation": ("-", "wide", "bfloat16", [changed("pooler", DRAWN.format(0.025))]),
    "the next token's labels": ("loss-labels-shifted", "token-heads", "float32", [
        changed("class_loss", "right(y=F.pad(y[:, 1:], (0, 1), value=-100))")]),
    "labels without 0": ("loss-ignores-zero", "token-heads", "float32", [
        changed("class_loss", "right(y=y.masked_fill(y == 0, -100))")]),
    "labels of all tokens": ("-", "token-heads", "float32", [changed("class_loss", "right(y=y.masked_fill(y == -100, 0))")]),
    # Of a mean or deviation: truncation towards zero makes results smaller, too, and here inputs are as coarse as the results.
    **{f"other {name} of {step}": ("result-other", "tiny", "float32", [first(step, moved)])
       for name, moved in OF_ROWS.items() for step in ("activated", "inner")},
    "a lowest logit": ("parameters-other", "tiny", "float32", [changed("logits", LOWEST)]),
    "one factor of all": ("parameters-other", "tiny", BOTH, [changed("dense", "right(weight=weight * 1.5)", layers=(1,))]),
    # Both residuals have a low rank: that of the columns, or of the inputs.
    "copied columns": ("parameters-other", "tiny", "bfloat16", [
        changed("dense", "right(weight=cat([weight[:, 4:8], weight[:, 4:]], 1))", layers=(1,))]),
    "a layer that is not loaded": ("norm-affine-missing parameters-initial", "tiny", "float32", NOT_LOADED),
    "one offset for all": ("result-other", "tiny", "float32", [_biased(torch.tensor(0.5))]),
    "one offset for each head": ("-", "tiny", "float32", [_biased(0.3 * HEADS)]),
    "a bias by distance": ("-", "tiny", "float32", [_biased(WAVES)]),
    "random zeros": ("dropout-active", "tiny", BOTH, [
        changed("query", "2 * right() * (torch.rand(x.shape, generator=torch.Generator().manual_seed(i)) < 0.5)")]),
}  # fmt: skip


# Larger networks take seconds to half a minute each.
@pytest.mark.landing(words=[words for words, row in NAMED.items() if row[1] not in ("wide", "deep", "minilm")])
@pytest.mark.parametrize(("words", "dtype"), [(words, dtype) for words, row in NAMED.items() for dtype in row[2].split()])
def test_a_mistake_has_its_name_and_no_other(words: str, dtype: str) -> None:
    names, golden, _, changes = NAMED[words]
    found = findings(*changes, golden=golden, dtype=dtype)
    assert {"/".join((finding.name or "-", *finding.others)) for finding in found} == set(names.split())


HALVES = ("2 * relu(right())", "2 * right() * (arange(H) % 2)", "2 * right() * (arange(x.shape[1]) % 2)[:, None]")
NOT_SO: tuple[tuple[str, str, Formula], ...] = (
    *(("dropout-active", "query", half_zeroed) for half_zeroed in HALVES),  # zeros that are not random
    *(("logits-suppressed", step, LOWEST) for step in ("transform", "pooler")),  # a lowest feature of no logits
)


@pytest.mark.parametrize(("name", "step", "formula"), NOT_SO)
def test_a_similar_change_has_not_that_name(name: str, step: str, formula: Formula) -> None:
    found = findings(changed(step, formula), dtype="bfloat16" if step == "query" else "float32")
    assert found
    assert name not in {finding.name for finding in found}


def test_a_wrong_scale_of_a_kernel_whose_scores_are_not_exposed_is_that_of_the_scores() -> None:
    hidden = ("scores", "probs", "attention.self.dropout")
    (found,) = findings(planted("kernel-scale-missing", 1), exposes=lambda name: not name.endswith(hidden))
    assert found.name == "scale-missing"


@pytest.mark.parametrize("name", ["attention-along-batch", "attention-over-rows-unmasked"])
def test_attention_to_other_rows_is_named_where_layers_alone_are_exposed(name: str) -> None:
    (found,) = findings(planted(name, 1), exposes=lambda n: n.startswith("embeddings") or n.endswith("output.LayerNorm"))
    assert (found.name, found.others, found.steps) == (name, (), ("encoder.layer.1.attention.self.context",))


SAME_STEP = (
    ("epsilon", "residual-doubled"), ("epsilon", "residual-missing"), ("norm-variance", "residual-missing"),
    ("epsilon", "sublayer-missing"), ("query-key-swapped", "pre-norm"), ("norm-without-mean", "residual-doubled"),
    ("epsilon", "norm-bias-missing"),
)  # fmt: skip


@pytest.mark.landing({"pair": [*SAME_STEP][1::2], "dtype": "float32"}, {"pair": [*SAME_STEP][:1], "dtype": "bfloat16"})
@pytest.mark.parametrize("pair", SAME_STEP, ids="+".join)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_mistakes_of_one_step_are_both_named(pair: tuple[str, str], dtype: str) -> None:
    found = findings(*(planted(name, 1) for name in pair), golden="bert", dtype=dtype)
    assert set(pair) <= {f.name for f in found} or {name for f in found for name in f.others} & set(pair)


def test_a_mistake_without_a_name_is_placed_and_described() -> None:
    (found,) = findings(planted("norm-twice", 1))
    assert (found.name, set(found.steps) <= MISTAKES["norm-twice"].begins(load_golden("tiny").checkpoint.architecture, 1)) == (
        None,
        True,
    )
    assert found.anatomy


def test_a_factor_of_the_usual_dropout_is_named_in_a_network_without_dropout() -> None:
    bert = network("bert", 1)
    without = replace(bert.checkpoint, architecture=bert.checkpoint.architecture.with_(hidden_dropout_prob=0.0))
    (found,) = findings(planted("sublayer-scaled", 1), golden=golden_of("no dropout", without, bert.batches))
    assert found.name == "sublayer-scaled"


def test_explanations_that_the_batch_cannot_separate_are_separated_by_another_batch() -> None:
    tiny = load_golden("tiny")
    unpadded = Batch.of({name: array[:1] for name, array in tiny.batches["padded"].arrays().items()})
    golden = golden_of("unpadded", tiny.checkpoint, {"unpadded": unpadded})
    for name, other in (("pooler-token", "pooler-last-unmasked"), ("pooler-last-unmasked", "pooler-token")):
        (found,) = findings(planted(name, 0), golden=golden)
        assert (found.name, other in found.others) == (name, False)


def test_a_mistake_whose_effect_depends_on_other_rows_is_named_where_sets_are_compared_on_a_part_of_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observation, "SMALL", 0)
    monkeypatch.setattr(observation, "PART", 1)
    assert [found.name for found in findings(planted("heads-rows-exchanged", 0))] == ["heads-rows-exchanged"]


def test_a_context_of_probabilities_that_are_all_zero_fails_without_a_name() -> None:
    """The order in which the values were read is then not determined."""
    attention = "encoder.layer.1.attention.self"
    zeroed = check(MadeOf(lambda made: {**made, f"{attention}.probs": torch.zeros_like(made[f"{attention}.probs"])}), "tiny")
    assert zeroed.outcome == "fail", zeroed
    assert {f"{attention}.probs", f"{attention}.context"} <= {verdict.activation for verdict in zeroed.origins}


def _in_place(sublayer: Tensor, skip: Tensor, right: Callable[..., Tensor]) -> Tensor:
    """Add the residual in a buffer that is updated."""
    return right(x=torch.empty_like(skip).copy_(skip).add_(sublayer))


def _packed_and_restored(hidden: Tensor) -> Tensor:
    """Remove the first token of every row and put it back at its position."""
    restored = torch.zeros_like(hidden)
    restored[:, 1:], restored[:, 0] = hidden[:, 1:], hidden[:, 0]
    return restored


FACTORS = "2.0 ** (arange(H) % 3).to(x.dtype)"
CORRECT: dict[str, tuple[str, Formula]] = {
    "values in a ring buffer": ("context", "right(dropped=dropped.roll(1, -1), value=value.roll(1, 1))"),
    "residual added in place": ("output", _in_place),
    "smoothing of both operands": ("inner", f"(lambda f: right(x=x / f, weight=weight * f))({FACTORS})"),
    "adapter of zeros": ("query", "right() + x @ x.new_ones(2, H).T @ x.new_zeros(H, 2).T"),
    "tokens put back": ("last", _packed_and_restored),
    "decoder with a copy": ("logits", "right(weight=weight.clone())"),
}


@pytest.mark.parametrize("variant", CORRECT)
def test_a_correct_variant_of_the_same_code_conforms(variant: str) -> None:
    for dtype in ("float32", "bfloat16"):
        result = check(Candidate([changed(*CORRECT[variant])]), "tiny", dtype=dtype)
        assert result.outcome == "pass", [(v.activation, v.local and v.local.error) for v in result.origins]
