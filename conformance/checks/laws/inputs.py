"""The optional inputs have their default meaning, and inputs beyond the network's tables are refused."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from conformance.checks.laws.law import MASKS, Law, Variation, require_no_effect, run_of
from conformance.checks.search.agreement import RowPairs, require_agreement
from conformance.checks.search.strategies import Batches
from conformance.checks.search.subject import Subject
from conformance.errors import CandidateCrash, CandidateEnded, Unsupported
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.results.example import Example, LawBroken, Run


@Law.of(
    "mask-omitted",
    proves="without a mask, every token is attended to",
    catches="a mask that is required, or is derived from the ids if omitted",
    remedy="Treat an omitted attention_mask as all ones.",
    batches=Batches(patterns=("omitted",)),
)
def mask_omitted(subject: Subject, example: Example) -> float:
    """An omitted mask is compared with one of all ones."""
    batch = example.batch
    given = replace(batch, attention_mask=np.ones_like(batch.input_ids))
    return require_no_effect(subject, given, replace(batch, attention_mask=None))


@Law.of(
    "token-types-omitted",
    proves="omitted token types are 0",
    catches="a token type embedding that is omitted with them",
    remedy="Treat omitted token_type_ids as zeros, and add their embedding.",
    batches=Batches(token_types=False),
)
def token_types_omitted(subject: Subject, example: Example) -> float:
    """Omitted token types are compared with zeros."""
    batch = example.batch
    given = replace(batch, token_type_ids=np.zeros_like(batch.input_ids))
    return require_no_effect(subject, given, replace(batch, token_type_ids=None))


@Law.of(
    "mask-dtype",
    proves="a mask of dtype bool, uint8, int32 or float32 is refused or has the same meaning",
    catches="a float mask that is added to the scores",
    remedy="Convert the mask (`mask != 0`) before using it, or refuse other dtypes with an error.",
    batches=Batches(patterns=("right", "left", "holes")),
)
def mask_dtype(subject: Subject, example: Example) -> float:
    """Each dtype other than int64, which the contract guarantees, is refused or has the same meaning."""
    first, rows = run_of(subject, example.batch), range(example.batch.size)
    excess = 0.0
    for dtype in MASKS:
        try:
            second = Run(example.batch, subject.run(example.batch, _cast(dtype)), dtype)
        except CandidateEnded:
            raise
        except CandidateCrash:
            continue
        excess = max(excess, require_agreement(subject, first, second, RowPairs(rows, rows)))
    return excess


def _cast(dtype: str) -> Callable[[TorchBatch], TorchBatch]:
    import torch

    def cast(given: TorchBatch) -> TorchBatch:
        assert given.attention_mask is not None
        given.attention_mask = given.attention_mask.to(getattr(torch, dtype))
        return given

    return cast


def _refuses(subject: Subject, right: Batch, wrong: Batch, what: str) -> float:
    """Require that `wrong` raises while `right`, which is valid, does not, since refusing everything would prove nothing.

    On CUDA, a look-up outside a table triggers a device assert that destroys the whole context, so the candidate is called in a
    separate process.
    """
    subject.run(right)
    if _answers(subject, wrong):
        raise LawBroken(
            f"{what} is accepted, where it must be refused with an error", (Run(right, {}), Run(wrong, {})), raises=True
        )
    return 0.0


def _answers(subject: Subject, batch: Batch) -> bool:
    if subject.device == "cpu":
        return subject.answers(batch)
    from conformance.isolation.remote import answers_in_a_worker

    return answers_in_a_worker(subject, batch)


def _at_a_token(batch: Batch, wrong: st.SearchStrategy[list[object]]) -> st.SearchStrategy[Variation]:
    """Return a strategy that places a wrong value at an attended token, since an implementation may skip padding."""
    attended = [list(map(int, place)) for place in np.argwhere(batch.mask)]
    return st.fixed_dictionaries({"at": st.sampled_from(attended), "wrong": wrong})


def _beyond(batch: Batch, a: Architecture) -> st.SearchStrategy[Variation]:
    ids = st.integers(a.vocab_size, 2 * a.vocab_size).map(lambda i: ["input_ids", i])
    types = st.integers(a.type_vocab_size, 2 * a.type_vocab_size).map(lambda i: ["token_type_ids", i])
    return _at_a_token(batch, ids | types)


def _below(batch: Batch, a: Architecture) -> st.SearchStrategy[Variation]:
    ids = st.integers(1, a.vocab_size).map(lambda i: ["input_ids", -i])
    types = st.integers(1, a.type_vocab_size).map(lambda i: ["token_type_ids", -i])
    return _at_a_token(batch, ids | types)


_TYPED = Batches(token_types=True)


@Law.of(
    "ids-refused",
    proves="ids and token types beyond their tables raise an error",
    catches="ids that are clipped",
    remedy="Raise an error for ids of vocab_size or more, and token types of type_vocab_size or more.",
    batches=_TYPED,
    variations=_beyond,
)
def ids_refused(subject: Subject, example: Example) -> float:
    """A result computed from a clipped index would be a silent error."""
    return _refuses_the_id(subject, example)


@Law.of(
    "negative-ids-refused",
    proves="negative ids and token types raise an error",
    catches="an index that counts from the end",
    remedy="Raise an error for negative ids and token types.",
    batches=_TYPED,
    variations=_below,
)
def negative_ids_refused(subject: Subject, example: Example) -> float:
    """A result computed from a wrapped index would be a silent error."""
    return _refuses_the_id(subject, example)


def _refuses_the_id(subject: Subject, example: Example) -> float:
    (row, position), (name, wrong) = example.variation["at"], example.variation["wrong"]
    arrays = {"input_ids": example.batch.input_ids, "token_type_ids": example.batch.types}
    arrays[name] = arrays[name].copy()
    arrays[name][row, position] = wrong
    invalid = replace(example.batch, input_ids=arrays["input_ids"], token_type_ids=arrays["token_type_ids"])
    return _refuses(subject, example.batch, invalid, f"{name}[{row}, {position}] = {wrong}")


def _longer(batch: Batch, a: Architecture) -> st.SearchStrategy[Variation]:
    return st.fixed_dictionaries({"tokens": st.integers(1, a.longest)})


def _has_a_table(subject: Subject) -> None:
    if subject.checkpoint.architecture.position_embedding_type == "sinusoidal":
        raise Unsupported("sinusoidal positions have no last one")


@Law.of(
    "length-refused",
    proves="sequences longer than the position table raise an error",
    catches="text that is truncated without an error",
    remedy="Raise an error for sequences longer than the position table; truncate only in the tokenizer.",
    batches=_TYPED,
    variations=_longer,
    applies=_has_a_table,
)
def length_refused(subject: Subject, example: Example) -> float:
    """A batch is repeated along its rows up to more positions than the table has."""
    longest = subject.checkpoint.architecture.longest
    length = longest + example.variation["tokens"]
    rendered = f"a length of {length} (the network has {longest} positions)"
    return _refuses(subject, _of_length(example.batch, longest), _of_length(example.batch, length), rendered)


def _of_length(batch: Batch, length: int) -> Batch:
    """Return the batch repeated along its rows up to that length."""
    return batch.at(np.arange(length) % batch.length)
