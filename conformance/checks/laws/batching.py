"""The rows of a batch are independent: no result depends on the number, the order or the content of other rows."""

from collections.abc import Callable
from functools import partial

from hypothesis import strategies as st

from conformance.checks.laws.law import Law, Variation, run_of
from conformance.checks.search.agreement import RowPairs, require_agreement, require_identity
from conformance.checks.search.strategies import Batches
from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.results.example import Example
from conformance.results.law_broken import LawBroken, Run


def _arranged(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    """Return a strategy for an order of the rows and a number of rows per part."""
    rows = range(batch.size)
    return st.fixed_dictionaries({"order": st.permutations(rows), "rows": st.integers(1, batch.size)})


def _compared(subject: Subject, example: Example, require: Callable[[Subject, Run, Run, RowPairs], float]) -> float:
    """Compare the run of the whole batch with that of each part of it; a failure has all runs in their order."""
    runs, order, rows = [run_of(subject, example.batch)], list(example.variation["order"]), example.variation["rows"]
    worst = 0.0
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        batch = Batch.of({name: array[part] for name, array in example.batch.arrays().items()})
        runs.append(run_of(subject, batch))
        try:
            worst = max(worst, require(subject, runs[0], runs[-1], RowPairs(part, range(len(part)))))
        except LawBroken as broken:
            broken.runs = tuple(runs)
            raise
    return worst


batching = Law(partial(_compared, require=require_agreement), Batches(least_rows=2), _arranged)


def _changes_no_bit(subject: Subject, example: Example) -> float:
    """Require bitwise identity of a candidate that promises it; for others, raise `Unsupported` with the difference instead."""
    try:
        return _compared(subject, example, require_identity)
    except LawBroken as broken:
        if getattr(subject.candidate, "batch_invariant", False):
            raise
        raise Unsupported(
            f"it does not promise the same bits (`batch_invariant = True`), and does not yield them: {broken}"
        ) from broken


batching_bitwise = Law(_changes_no_bit, Batches(least_rows=2), _arranged)
