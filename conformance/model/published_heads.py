"""The heads of a published checkpoint, determined from the stored parameters, or from the config if their names are ambiguous."""

from collections.abc import Collection, Mapping
from typing import Any

from conformance.errors import CheckpointError
from conformance.model.architecture import HEADS

_MARKS = {
    "masked_lm": "cls.predictions.transform.dense.weight",
    "next_sentence": "cls.seq_relationship.weight",
    "question_answering": "qa_outputs.weight",
}
_CLASSIFIERS = {
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "token_classification",
    "ForMultipleChoice": "multiple_choice",
}  # by the suffix of the class name in a config's `architectures`


def heads_of(stored: Collection[str], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the heads whose parameters are stored, in the order of `HEADS`.

    A masked-LM decoder without a transform, and next-sentence logits without a pooler, are the plain heads.

    Raises:
        CheckpointError: there is a classifier whose type the config does not state, or RoBERTa's own sequence classifier.
    """
    if "classifier.out_proj.weight" in stored:
        raise CheckpointError(
            "the classifier of sequences of a RoBERTa has a dense layer of its own, and there are no equations for it; save the "
            "model's base_model, without the classifier"
        )
    found = {head for head, mark in _MARKS.items() if mark in stored}
    if "masked_lm" not in found and "cls.predictions.decoder.weight" in stored:
        found.add("plain_masked_lm")
    if "next_sentence" in found and "bert.pooler.dense.weight" not in stored:
        found = found - {"next_sentence"} | {"plain_next_sentence"}
    if "classifier.weight" in stored:
        found.add(_classifier(stored, config.get("architectures")))
    return tuple(head for head in HEADS if head in found)


def _classifier(stored: Collection[str], architectures: Any) -> str:
    """Return the head that `classifier.weight` belongs to, as stated by the config, or token classification if there is no pooler.

    Raises:
        CheckpointError: the head cannot be determined.
    """
    named = [head for name in architectures or () for end, head in _CLASSIFIERS.items() if str(name).endswith(end)]
    if len(named) == 1:
        return named[0]
    if not named and "bert.pooler.dense.weight" not in stored:
        return "token_classification"
    choices = " or ".join(f'["Bert{name}"]' for name in _CLASSIFIERS)
    raise CheckpointError(
        f"classifier.weight may be of sequences, of tokens or of choices, and config.json has architectures {architectures!r:.99}; "
        f'write into it "architectures": {choices}'
    )
