"""Heads of fine-tuned models and sentence embeddings: other forms conform, and labels either define a loss or do not."""

from dataclasses import replace

import numpy as np
import pytest

from conformance import Golden, UsageError, check, golden_of, load_golden
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.errors import UnsupportedArchitectureError
from conformance.implementations.hugging_face import hf_eager
from conformance.judge.evidence import UNKNOWN
from conformance.model.architecture import COMPATIBLE_HEADS, HEADS, SAME_NAMES
from conformance.model.batch import Batch
from conformance.oracle import Network

TOKENS, SENTENCES = load_golden("token-heads"), load_golden("sentence-heads")


# The pooling as a product, the norm by a reciprocal root and the span losses by log-sum-exp, all in at least float32.
SPAN_LOSS = "(torch.logsumexp(x[y >= 0], 1) - x[y >= 0].gather(1, y[y >= 0][:, None])[:, 0]).mean()"
OTHERWISE = (
    changed("sentence", "((mask.to(last) / mask.sum(1, keepdim=True))[:, None] @ last)[:, 0]", wide=True),
    changed("embedding", "x * x.square().sum(1, keepdim=True).rsqrt()", wide=True),
    *(changed(step, SPAN_LOSS, wide=True) for step in ("start_loss", "end_loss")),
)


@pytest.mark.landing(dtype=["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_heads_computed_in_another_way_conform(dtype: str) -> None:
    result = check(Candidate(OTHERWISE), TOKENS, dtype=dtype)
    assert result.conforms, (result.reason, [v.place for v in result.origins])


def _losses(golden: Golden, **labels: object) -> set[str]:
    """Return the losses defined by the golden's batch with other labels."""
    (batch,) = golden.batches.values()
    network = Network(golden.checkpoint.architecture, golden.checkpoint.weights, replace(batch, **labels))  # type: ignore[arg-type]
    return {name for name in network.table if name.endswith("loss")}


def test_a_span_in_a_row_with_padding_defines_no_loss_since_its_softmax_includes_the_padding() -> None:
    (batch,) = TOKENS.batches.values()
    span = {"qa_outputs.start_loss", "qa_outputs.end_loss", "qa_outputs.loss"}
    everywhere = np.zeros(batch.size, np.int64)
    assert _losses(TOKENS) == {"classifier.loss", *span}
    assert _losses(TOKENS, start_positions=everywhere) == {"classifier.loss", "qa_outputs.end_loss"}
    assert _losses(TOKENS, attention_mask=None, start_positions=everywhere) >= span


@pytest.mark.parametrize("of_check", ["values", "gradients"])
def test_a_loss_that_depends_on_padding_is_not_judged_where_a_correct_candidate_yields_it(of_check: str) -> None:
    ids, mask = [[2, 3, 4, 5], [2, 4, 3, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]]
    batch = Batch.of({"input_ids": ids, "attention_mask": mask, "start_positions": [1, 1], "end_positions": [2, 2]})
    result = check(hf_eager, golden_of("spans", TOKENS.checkpoint, {"squad": batch}), check=of_check, depth="screen")
    assert result.conforms, str(result)
    assert not {"qa_outputs.start_loss", "qa_outputs.loss"} & {v.activation for v in result.verdicts if v.kind != UNKNOWN}
    said = {v.activation: v.reason for v in result.verdicts if v.activation.startswith("qa_outputs.") and v.reason}
    assert said.keys() == {"qa_outputs.start_loss", "qa_outputs.end_loss", "qa_outputs.loss"}
    assert all("the batch does not define it" in reason for reason in said.values())


def test_choices_are_consecutive_rows_whose_number_follows_from_the_labels() -> None:
    (batch,) = SENTENCES.batches.values()
    with pytest.raises(UsageError, match=r"choice_labels is of shape \(3,\)"):
        replace(batch, choice_labels=np.zeros(3, np.int64))
    four = replace(batch, choice_labels=np.array([2]))
    network = Network(SENTENCES.checkpoint.architecture, SENTENCES.checkpoint.weights, four)
    values = dict(network.walk())
    logits = values["classifier"][:, 0]
    assert values["classifier.loss"] == pytest.approx(np.log(np.exp(logits).sum()) - logits[2])
    assert batch.cut(slice(0, 2)).choice_labels is None
    with pytest.raises(UsageError, match="choice_labels has labels outside 0 to 1"):
        golden_of("mine", SENTENCES.checkpoint, {"one": replace(batch, choice_labels=np.array([0, 2]))})


def test_a_label_out_of_range_is_refused() -> None:
    (batch,) = TOKENS.batches.values()
    for name, most in (("token_labels", 4), ("start_positions", batch.length - 1)):
        beyond = np.full_like(getattr(batch, name), most + 1)
        with pytest.raises(UsageError, match=f"{name} has labels outside 0 to {most}"):
            golden_of("mine", TOKENS.checkpoint, {"one": replace(batch, **{name: beyond})})


def test_heads_with_the_same_name_exclude_each_other_and_every_head_combines_with_some() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="there is no pooling"):
        TOKENS.checkpoint.architecture.with_(pooling="")
    a = SENTENCES.checkpoint.architecture
    for first, second, *_ in SAME_NAMES:
        with pytest.raises(UnsupportedArchitectureError, match=f"the heads {first} and {second} have the same names"):
            a.with_(heads=(first, second))
    assert {head for heads in COMPATIBLE_HEADS for head in a.with_(heads=heads).heads} == set(HEADS)
