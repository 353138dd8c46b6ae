"""Mistakes in the inputs, by which a text gets the outputs of other tokens: texts cut too early, without a prefix, or reordered."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.model.batch import Batch

_READ = {"input_ids", "token_type_ids", "attention_mask"}  # arrays that a batch of plain texts may have
_SPECIAL = 2  # special tokens of every text: [CLS] before it, [SEP] after it


@dataclass(frozen=True)
class InputMistake:
    """A kind of mistake in the inputs.

    Attributes:
        name: name used in reports.
        sentence: description; `{value}` stands for the length, the prefix or the order.
        cause: usual cause.
        fix: what to change in the system.
        where: the place in words.
        looked_for: the outputs in which the mistake is looked for.
    """

    name: str
    sentence: str
    cause: str
    fix: str
    where: str = "in the inputs"
    looked_for: str = "in embeddings, one row per text, of texts that are padded at the end"


TRUNCATED = InputMistake(
    "text-truncated",
    "each text is cut to {value} tokens, [CLS] and [SEP] among them",
    "max_length of the tokenizer, or max_seq_length, below the model's",
    "Set the tokenizer's maximum length to the model's, and split texts that are longer.",
)
WITHOUT_PREFIX = InputMistake(
    "prefix-missing",
    "the prefix {value} of each text is left out",
    "a model as e5 or bge is trained on texts with a prefix (query: , passage: ), which the system does not add",
    "Add the prefix to each text before it is tokenized.",
)
REORDERED = InputMistake(
    "rows-reordered",
    "the rows are those of other texts: {value}",
    "texts are sorted by length to save padding, or run concurrently, and their order is not restored",
    "Return the outputs in the order of the texts; or, if the system does, give the texts to diagnose in the system's order.",
    "in the order of the rows",
    "in outputs with one row per text, of several texts",
)
MISTAKES = (TRUNCATED, WITHOUT_PREFIX, REORDERED)


@dataclass(frozen=True, eq=False)
class OtherInputs:
    """The tokens that the system reads because of a mistake, and the description with its length, prefix or order."""

    mistake: InputMistake
    sentence: str
    batch: Batch


def other_inputs(batch: Batch, words: Sequence[Sequence[str]] | None = None) -> Iterator[OtherInputs]:
    """Yield the inputs for each length that texts may be cut to, longest first, then for each shared prefix, shortest first.

    At least one token of each text remains. Nothing is yielded unless the batch consists of texts padded at their end.

    Args:
        batch: the correct inputs.
        words: the token of each id, used in descriptions; ids are used if None.
    """
    lengths, arrays = batch.mask.sum(1), batch.arrays()
    is_padded_at_the_end = np.array_equal(batch.mask, np.arange(batch.length) < lengths[:, None])
    if not is_padded_at_the_end or set(arrays) - _READ or any(array.ndim != 2 for array in arrays.values()):
        return
    for length in range(int(lengths.max()) - 1, _SPECIAL, -1):
        yield OtherInputs(TRUNCATED, TRUNCATED.sentence.format(value=length), _truncated(batch, length))
    read = words or [[str(i) for i in row] for row in batch.input_ids]
    for count in range(1, min(_shared(batch), int(lengths.min()) - _SPECIAL - 1) + 1):
        prefix = repr(" ".join(read[0][1 : 1 + count]))
        yield OtherInputs(WITHOUT_PREFIX, WITHOUT_PREFIX.sentence.format(value=prefix), _without(batch, count))


def _truncated(batch: Batch, length: int) -> Batch:
    """Return the first `length` tokens of each row; a longer row then ends with its own last token, [SEP]."""
    lengths, mask = batch.mask.sum(1), batch.mask & (np.arange(batch.length) < length)
    ids = batch.input_ids.copy()
    longer = lengths > length
    ids[longer, length - 1] = batch.input_ids[longer, lengths[longer] - 1]
    return replace(batch, input_ids=ids, attention_mask=mask.astype(np.int64))


def _shared(batch: Batch) -> int:
    """Return the number of tokens after [CLS] that all rows share."""
    differs = (batch.input_ids[:, 1:] != batch.input_ids[:1, 1:]).any(0)
    return int(np.append(differs, True).argmax())


def _without(batch: Batch, count: int) -> Batch:
    """Return each row without `count` tokens after its first."""
    return Batch(**{name: np.delete(array, np.s_[1 : 1 + count], 1) for name, array in batch.arrays().items()})
