"""Arrangements of a batch for a BERT: in another order, one sequence at a time, or without its padding."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import override
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch

INPUTS = ("input_ids", "token_type_ids", "attention_mask")

Runner = Callable[[TorchBatch], Mapping[str, Tensor]]
Arrangement = Callable[[Bert, Runner], Runner]


def as_given(model: Bert, run: Runner) -> Runner:
    """Return the runner that runs the whole batch at once."""
    return run


def _row(batch: Batch, row: int, positions: slice | Tensor = slice(None)) -> Batch:
    """Return one sequence, or some of its positions.

    Labels are left out, since a mean over sequences is not the mean over tokens.
    """
    kept = positions.numpy() if isinstance(positions, Tensor) else positions
    return Batch.of({name: array[row : row + 1, kept] for name, array in batch.arrays().items() if name in INPUTS})


def row_by_row(model: Bert, run: Runner) -> Runner:
    """Return a runner that runs one sequence at a time; losses are not shown."""

    def runner(batch: TorchBatch) -> dict[str, Tensor]:
        whole, device = batch.numpy(), str(batch.input_ids.device)
        rows = [run(_row(whole, row).on(device)) for row in range(whole.size)]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    return runner


def in_order(order: Callable[[int], Sequence[int]]) -> Arrangement:
    """Return an arrangement that runs the sequences in another order, some of them several times; losses are not shown.

    Args:
        order: returns the rows to run, given the number of sequences; every row must occur.
    """

    def arranged(model: Bert, run: Runner) -> Runner:
        def runner(batch: TorchBatch) -> dict[str, Tensor]:
            whole, device = batch.numpy(), str(batch.input_ids.device)
            rows = list(order(whole.size))
            inputs = {name: array[rows] for name, array in whole.arrays().items() if name in INPUTS}
            found, first = run(Batch.of(inputs).on(device)), torch.tensor([rows.index(row) for row in range(whole.size)])
            return {name: x if len(x) == 1 else x[first.to(x.device)] for name, x in found.items()}

        return runner

    return arranged


def unpadded(model: Bert, run: Runner) -> Runner:
    """Return a runner that runs one sequence at a time, without its padding; losses are not shown.

    Values at padding are shown as zero.
    """
    lookup = model.embeddings.position_embeddings
    positions: list[Tensor] = []  # Positions of the tokens in the sequence being run.
    override(lookup, "rows", lambda inputs: positions[-1].to(inputs.ids.device)[None])

    def runner(batch: TorchBatch) -> dict[str, Tensor]:
        whole, device = batch.numpy(), str(batch.input_ids.device)
        rows = []
        for row, mask in enumerate(whole.mask):
            # A row without tokens has undefined results, but must not crash: its first token is run.
            positions[:] = [torch.from_numpy(mask if mask.any() else mask.argmax() == np.arange(len(mask))).nonzero()[:, 0]]
            made = run(_row(whole, row, positions[-1]).on(device))
            rows.append({name: _padded(x, name, positions[-1], whole.length, model.architecture) for name, x in made.items()})
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    return runner


def _padded(x: Tensor, name: str, positions: Tensor, length: int, a: Architecture) -> Tensor:
    """Return x with its positions put back among `length` positions, along every axis that counts positions."""
    for axis, counted in enumerate(table(a)[name].axes):
        if counted in ("position", "query", "key"):
            shape = list(x.shape)
            shape[axis] = length
            x = x.new_zeros(shape).index_copy(axis, positions.to(x.device), x)
    return x
