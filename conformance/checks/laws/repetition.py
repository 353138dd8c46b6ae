"""The same input gives the same output: in two successive calls, after other calls, and for any random state.

Results must be bitwise equal on the CPU with one thread. On other devices, two runs may sum in different orders and are compared to
within rounding.
"""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from conformance.checks.laws.law import Law, Variation, run_of
from conformance.checks.search.agreement import RowPairs, require_agreement, require_identity
from conformance.checks.search.subject import Subject
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.results.example import Example
from conformance.results.law_broken import LawBroken, Run


def _require_same(subject: Subject, first: Run, second: Run, *between: Run) -> float:
    alike = RowPairs(range(first.batch.size), range(first.batch.size))
    try:
        return (require_identity if subject.device == "cpu" else require_agreement)(subject, first, second, alike)
    except LawBroken as broken:
        broken.runs = (first, *between, second)
        raise


def _twice(subject: Subject, example: Example) -> float:
    with subject.surroundings.one_thread():
        return _require_same(subject, run_of(subject, example.batch), run_of(subject, example.batch))


repeated = Law(_twice)


def _between(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    """Return a strategy for the rows and tokens of the batch that an intermediate call uses, and for the shift of their ids."""
    return st.fixed_dictionaries(
        {
            "rows": st.integers(1, batch.size),
            "tokens": st.integers(1, batch.length),
            "shift": st.integers(0, architecture.vocab_size - 1),
        }
    )


def other(example: Example, architecture: Architecture) -> Batch:
    """Return an intermediate batch: other ids and token types, with each row's last token masked if the row has several."""
    rows, tokens = example.variation["rows"], example.variation["tokens"]
    ids = (example.batch.input_ids[:rows, :tokens] + example.variation["shift"]) % architecture.vocab_size
    mask = np.ones_like(ids)
    mask[:, 1:][:, -1:] = 0
    return Batch(ids, (example.batch.types[:rows, :tokens] + 1) % architecture.type_vocab_size, mask)


def _again(subject: Subject, example: Example) -> float:
    """Require that a batch gives the same result before and after another one, and the other one as in a first call."""
    fresh, one_more = subject.afresh(), other(example, subject.checkpoint.architecture)
    with subject.surroundings.one_thread():
        first, between = run_of(fresh, example.batch), run_of(fresh, one_more)
        again = run_of(fresh, example.batch)
        fresh = subject.afresh()
        return max(_require_same(fresh, first, again, between), _require_after(fresh, run_of(fresh, one_more), between, first))


def _require_after(subject: Subject, alone: Run, after: Run, first: Run) -> float:
    """Require that the run `after`, which follows the run `first`, agrees with the run `alone` of the same batch."""
    try:
        return _require_same(subject, alone, after)
    except LawBroken as broken:
        broken.runs = (alone, replace(first, afresh=True), after)
        raise


called_again = Law(_again, variations=_between, affords=0.25)  # each example prepares the candidate again


def _seeds(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    return st.fixed_dictionaries({"seeds": st.tuples(st.integers(0, 9), st.integers(10, 19)).map(list)})


def _whatever_the_seed(subject: Subject, example: Example) -> float:
    surroundings, runs = subject.surroundings, []
    module = surroundings.module()
    training = [name or "the module itself" for name, is_training in module.training.items() if is_training] if module else []
    if training:
        raise LawBroken(
            f"in training mode: {', '.join(training[:3])} ({len(training)} modules in all); eval() was not called",
            claim="not any(part.training for part in runner.module.modules())",
        )
    with surroundings.one_thread():
        for seed in example.variation["seeds"]:
            with surroundings.seeded(seed):
                runs.append(run_of(subject, example.batch))
    return _require_same(subject, runs[0], runs[1])


dropout_off = Law(_whatever_the_seed, variations=_seeds)
