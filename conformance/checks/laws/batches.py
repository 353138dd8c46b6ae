"""No result depends on padding or on other rows of the batch, and every drawn batch is computed correctly."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from conformance.checks.laws.law import Law, Variation, require_no_effect, run_of
from conformance.checks.search.agreement import RowPairs, broken_at, require_agreement, require_identity
from conformance.checks.search.strategies import TOKENS, Batches, ids
from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, Ids
from conformance.results.example import Example, LawBroken, Run


@Law.of(
    "generated-batches",
    proves="every activation is correct on randomly drawn batches of any length, mask, size and token ids",
    catches="a result that is wrong at odd lengths, or for one id",
    remedy="Replay the smallest failing batch in the report; the check `values` on it names the step.",
    batches=Batches(is_large=True),
    by_oracle=True,
)
def generated(subject: Subject, example: Example) -> float:
    """Every activation on drawn batches agrees with the oracle; it is the only law with a reference."""
    run = run_of(subject, example.batch)
    tested = subject.screened(run)
    wrong = next((step for step in tested if step.excess > 1.0), None)
    if wrong is None:
        return max((step.excess for step in tested), default=0.0)
    raise broken_at(run, wrong)


def _more(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    room = architecture.longest - batch.length
    return st.fixed_dictionaries({"tokens": st.integers(1, min(room, TOKENS)), "id": ids(architecture)})


def _has_room(subject: Subject) -> None:
    if subject.checkpoint.architecture.longest < 2:
        raise Unsupported("a network of one position has no room for padding")


@Law.of(
    "padding-length",
    proves="additional padding at the right does not change the results at real tokens",
    catches="a head that attends to padding; a mean over all positions",
    remedy="Mask padding keys in every attention head, and take means over unmasked positions only.",
    batches=Batches(room=1),
    variations=_more,
    applies=_has_room,
)
def padding_length(subject: Subject, example: Example) -> float:
    """Positions are absolute, so only padding at the right preserves the positions of the other tokens."""
    longer = padded(example.batch, example.variation["tokens"], example.variation["id"])
    return require_no_effect(subject, example.batch, longer)


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


def _other(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    types = st.integers(0, architecture.type_vocab_size - 1)
    return st.fixed_dictionaries({"id": ids(architecture), "token_type": types})


def _masked_somewhere(batch: Batch) -> Batch:
    """Return the batch with the last token of the first row masked if no token was masked; a batch of length 1 is unchanged."""
    if not batch.mask.all() or batch.length == 1:
        return batch
    mask = batch.mask.astype(np.int64)
    mask[0, -1] = 0
    return replace(batch, attention_mask=mask)


@Law.of(
    "padding-content",
    proves="the ids and token types of padding do not change the results at real tokens",
    catches="a mask that is derived from the ids; no mask at all",
    remedy="Derive the mask from attention_mask, never from the ids.",
    batches=Batches(patterns=("right", "left", "holes"), token_types=True, change=_masked_somewhere),
    variations=_other,
)
def padding_content(subject: Subject, example: Example) -> float:
    """Masked positions are filled with another id and token type."""
    batch = example.batch
    other = replace(
        batch,
        input_ids=np.where(batch.mask, batch.input_ids, example.variation["id"]),
        token_type_ids=np.where(batch.mask, batch.types, example.variation["token_type"]),
    )
    return require_no_effect(subject, batch, other)


def _row(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    return st.fixed_dictionaries({"row": st.integers(0, batch.size - 1)})


@Law.of(
    "masked-row",
    proves="a row whose mask is all zeros neither crashes nor changes the results of other rows",
    catches="NaN that spreads from the softmax of a fully masked row",
    remedy="Use the format's lowest number instead of −∞ if a whole row is masked.",
    batches=Batches(least_rows=2),
    variations=_row,
)
def masked_row(subject: Subject, example: Example) -> float:
    """The result of a row whose mask is all zeros is undefined; the results of the other rows are defined."""
    batch, row = example.batch, example.variation["row"]
    mask = batch.mask.astype(np.int64)
    mask[row] = 0
    others = [i for i in range(batch.size) if i != row]
    return require_no_effect(subject, batch, replace(batch, attention_mask=mask), others)


def _arranged(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    """Return a strategy for an order of the rows and a number of rows per part."""
    rows = range(batch.size)
    return st.fixed_dictionaries({"order": st.permutations(rows), "rows": st.integers(1, batch.size)})


@Law.of(
    "batching",
    proves="batch size, order and splitting change results by no more than rounding",
    catches="statistics over the batch; a fixed batch size",
    remedy="Compute no statistic over the batch, and do not fix the batch size when the module is built or exported.",
    batches=Batches(least_rows=2),
    variations=_arranged,
)
def batching(subject: Subject, example: Example) -> float:
    """The rows of a batch are run again in another order and in parts."""
    return _compared(subject, example, require_agreement)


@Law.of(
    "batching-bitwise",
    proves="batch size, order and splitting change no bit; required of candidates that promise it, reported for others",
    catches="a kernel that is chosen by batch size, in a candidate with `batch_invariant = True`",
    remedy="Use batch-invariant kernels, or do not set `batch_invariant`.",
    batches=Batches(least_rows=2),
    variations=_arranged,
)
def batching_bitwise(subject: Subject, example: Example) -> float:
    """As `batching`, bit for bit; of a candidate that does not promise it, a difference is reported as the reason of a skip."""
    try:
        return _compared(subject, example, require_identity)
    except LawBroken as broken:
        if getattr(subject.candidate, "batch_invariant", False):
            raise
        raise Unsupported(
            f"it does not promise the same bits (`batch_invariant = True`), and does not yield them: {broken}"
        ) from broken


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
