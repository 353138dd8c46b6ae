"""The losses' values."""

from collections.abc import Iterator

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.fault import Fault, FaultContext, with_batch
from conformance.model.batch import IGNORED_LABEL
from conformance.oracle import Step

MASKED_LM = frozenset({"masked_lm_loss", "masked_lm_loss_of_log_probs"})
NEXT_SENTENCE = frozenset({"next_sentence_loss", "next_sentence_loss_of_log_probs"})


def _inverted(step: Step, _: FaultContext) -> Step:
    labels = step.site.batch.next_sentence_label
    assert labels is not None
    return with_batch(step, next_sentence_label=np.where(labels == IGNORED_LABEL, labels, 1 - labels))


def _without_zero(step: Step, _: FaultContext) -> Step | None:
    labels = step.site.batch.next_sentence_label
    assert labels is not None
    kept = np.where(labels == 0, IGNORED_LABEL, labels)
    return with_batch(step, next_sentence_label=kept) if (kept != IGNORED_LABEL).any() else None


def _over_all(step: Step, _: FaultContext) -> Step:
    labels = step.site.batch.labels
    assert labels is not None
    share = float((labels != IGNORED_LABEL).mean())
    return Altered(step, lambda inner: inner.value * share)


# fmt: off
def faults() -> Iterator[Fault]:
    """The faults of losses."""
    yield Fault("next-sentence-label", NEXT_SENTENCE, "label 1 is taken as is-next, BERT has 0",
                "transformers#836, transformers#524",
                _inverted, "the opposite convention",
                equation="cross entropy with 1 − label",
                fix="Label 0 means that the second sentence follows the first.")
    yield Fault("loss-ignores-zero", NEXT_SENTENCE, "pairs of label 0 are left out of the loss", "the third seed's tutorial",
                _without_zero, "ignore_index=0, meant for padded tokens",
                equation="mean over the rows with label ≠ 0",
                fix="Use ignore_index=-100.")
    yield Fault("loss-denominator", MASKED_LM, "the loss is divided by the number of all tokens, not of the labelled ones",
                "tinygrad d2e3c391e8", _over_all, "a mean over all positions, those without a label counted as 0",
                equation="Σ loss / (B · S)",
                fix="Divide by the number of tokens with a label other than -100.")
# fmt: on
