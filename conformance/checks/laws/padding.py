"""Padding has no effect: neither its amount nor its content changes the result at a token that is attended to."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from conformance.checks.laws.law import Law, Variation, require_no_effect
from conformance.checks.search.strategies import TOKENS, Batches, ids
from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, Ids
from conformance.results.example import Example


def _more(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    room = architecture.longest - batch.length
    return st.fixed_dictionaries({"tokens": st.integers(1, min(room, TOKENS)), "id": ids(architecture)})


def padded(batch: Batch, tokens: int, token: int = 0) -> Batch:
    """Return the batch with `tokens` masked tokens of id `token` appended to each row."""

    def longer(values: Ids, filling: int) -> Ids:
        return np.pad(values, ((0, 0), (0, tokens)), constant_values=filling)

    return replace(
        batch,
        input_ids=longer(batch.input_ids, token),
        token_type_ids=None if batch.token_type_ids is None else longer(batch.token_type_ids, 0),
        attention_mask=longer(batch.mask.astype(np.int64), 0),
    )


def _more_changes_nothing(subject: Subject, example: Example) -> float:
    longer = padded(example.batch, example.variation["tokens"], example.variation["id"])
    return require_no_effect(subject, example.batch, longer)


def _has_room(subject: Subject) -> None:
    if subject.checkpoint.architecture.longest < 2:
        raise Unsupported("a network of one position has no room for padding")


# Positions are absolute, so only padding at the right preserves the positions of the other tokens.
padding_length = Law(_more_changes_nothing, Batches(room=1), _more, applies=_has_room)


def _other(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    types = st.integers(0, architecture.type_vocab_size - 1)
    return st.fixed_dictionaries({"id": ids(architecture), "token_type": types})


def _content_changes_nothing(subject: Subject, example: Example) -> float:
    batch = example.batch
    other = replace(
        batch,
        input_ids=np.where(batch.mask, batch.input_ids, example.variation["id"]),
        token_type_ids=np.where(batch.mask, batch.types, example.variation["token_type"]),
    )
    return require_no_effect(subject, batch, other)


def _masked_somewhere(batch: Batch) -> Batch:
    """Return the batch with the last token of the first row masked if no token was masked; a batch of length 1 is unchanged."""
    if not batch.mask.all() or batch.length == 1:
        return batch
    mask = batch.mask.astype(np.int64)
    mask[0, -1] = 0
    return replace(batch, attention_mask=mask)


_PADDED = Batches(patterns=("right", "left", "holes"), token_types=True, change=_masked_somewhere)
padding_content = Law(_content_changes_nothing, _PADDED, _other)


def _one_row(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    return st.fixed_dictionaries({"row": st.integers(0, batch.size - 1)})


def _masked_row_has_no_effect(subject: Subject, example: Example) -> float:
    batch, row = example.batch, example.variation["row"]
    mask = batch.mask.astype(np.int64)
    mask[row] = 0
    others = [i for i in range(batch.size) if i != row]
    return require_no_effect(subject, batch, replace(batch, attention_mask=mask), others)


# The result of a row whose mask is all zeros is undefined; the results of the other rows are defined.
masked_row = Law(_masked_row_has_no_effect, Batches(least_rows=2), _one_row)
