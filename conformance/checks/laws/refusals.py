"""Inputs beyond the network's tables are refused: an id, a token type or a position without a row in its table raises.

A result computed from a clipped or wrapped index would be a silent error. On CUDA, a look-up outside a table triggers a device
assert that destroys the whole context, so the candidate is called in a separate process.
"""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from conformance.checks.laws.law import Law, Variation
from conformance.checks.search.strategies import Batches
from conformance.checks.search.subject import IsolatedRunner, Subject, answers_in_a_child
from conformance.errors import Unsupported
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.results.example import Example
from conformance.results.law_broken import LawBroken, Run


def _refuses(subject: Subject, right: Batch, wrong: Batch, what: str) -> float:
    """Require that `wrong` raises while `right`, which is valid, does not, since refusing everything would prove nothing."""
    subject.run(right)
    if _answers(subject, wrong):
        raise LawBroken(
            f"{what} is accepted, where it must be refused with an error", (Run(right, {}), Run(wrong, {})), raises=True
        )
    return 0.0


def _answers(subject: Subject, batch: Batch) -> bool:
    if subject.device == "cpu":
        return subject.answers(batch)
    runner = subject.runner
    return runner.answers_apart(subject, batch) if isinstance(runner, IsolatedRunner) else answers_in_a_child(subject, batch)


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


def _refuses_the_id(subject: Subject, example: Example) -> float:
    (row, position), (name, wrong) = example.variation["at"], example.variation["wrong"]
    arrays = {"input_ids": example.batch.input_ids, "token_type_ids": example.batch.types}
    arrays[name] = arrays[name].copy()
    arrays[name][row, position] = wrong
    invalid = replace(example.batch, input_ids=arrays["input_ids"], token_type_ids=arrays["token_type_ids"])
    return _refuses(subject, example.batch, invalid, f"{name}[{row}, {position}] = {wrong}")


_TYPED = Batches(token_types=True)
ids_refused = Law(_refuses_the_id, _TYPED, _beyond)
negative_ids_refused = Law(_refuses_the_id, _TYPED, _below)


def _longer(batch: Batch, a: Architecture) -> st.SearchStrategy[Variation]:
    return st.fixed_dictionaries({"tokens": st.integers(1, a.longest)})


def _refuses_the_length(subject: Subject, example: Example) -> float:
    longest = subject.checkpoint.architecture.longest
    length = longest + example.variation["tokens"]
    rendered = f"a length of {length} (the network has {longest} positions)"
    return _refuses(subject, _of_length(example.batch, longest), _of_length(example.batch, length), rendered)


def _of_length(batch: Batch, length: int) -> Batch:
    """Return the batch repeated along its rows up to that length."""
    return batch.at(np.arange(length) % batch.length)


def _has_a_table(subject: Subject) -> None:
    if subject.checkpoint.architecture.position_embedding_type == "sinusoidal":
        raise Unsupported("sinusoidal positions have no last one")


length_refused = Law(_refuses_the_length, _TYPED, _longer, applies=_has_a_table)
