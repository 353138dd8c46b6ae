"""Which heads a published checkpoint has: by the parameters that are stored, and where these are called alike by its config."""

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
}  # by what the name that a config's `architectures` has ends with


def heads_of(stored: Collection[str], config: Mapping[str, Any]) -> tuple[str, ...]:
    """The heads whose parameters are stored: a decoder without a transform, and a pair's logits without a pooler, are plain.

    Raises:
        CheckpointError: there is a classifier, and the config does not say of what; or it is RoBERTa's own of sequences.
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
    """The head of which `classifier.weight` is: by the config, or since without a pooler it can only be one of tokens."""
    said = [head for name in architectures or () for end, head in _CLASSIFIERS.items() if str(name).endswith(end)]
    if len(said) == 1:
        return said[0]
    if not said and "bert.pooler.dense.weight" not in stored:
        return "token_classification"
    choices = " or ".join(f'["Bert{name}"]' for name in _CLASSIFIERS)
    raise CheckpointError(
        f"classifier.weight may be of sequences, of tokens or of choices, and config.json has architectures {architectures!r:.99}; "
        f'write into it "architectures": {choices}'
    )
