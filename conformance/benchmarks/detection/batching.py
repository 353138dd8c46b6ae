"""Running a BERT on its batch in another arrangement: in another order, a sequence at a time, or without its padding."""

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
    """The whole batch at once."""
    return run


def _row(batch: Batch, row: int, positions: slice | Tensor = slice(None)) -> Batch:
    """One sequence, or some of its positions; without labels, since a mean over sequences is not that over tokens."""
    kept = positions.numpy() if isinstance(positions, Tensor) else positions
    return Batch.of({name: array[row : row + 1, kept] for name, array in batch.arrays().items() if name in INPUTS})


def row_by_row(model: Bert, run: Runner) -> Runner:
    """A sequence at a time; losses are not shown."""

    def runner(batch: TorchBatch) -> dict[str, Tensor]:
        whole, device = batch.numpy(), str(batch.input_ids.device)
        rows = [run(_row(whole, row).on(device)) for row in range(whole.size)]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    return runner


def in_order(order: Callable[[int], Sequence[int]]) -> Arrangement:
    """The sequences in another order, some of them several times; losses are not shown."""

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
    """A sequence at a time, without its padding, which is zero in what is shown; losses are not shown."""
    lookup = model.embeddings.position_embeddings
    positions: list[Tensor] = []  # of the tokens of the sequence that is being run
    override(lookup, "rows", lambda inputs: positions[-1].to(inputs.ids.device)[None])

    def runner(batch: TorchBatch) -> dict[str, Tensor]:
        whole, device = batch.numpy(), str(batch.input_ids.device)
        rows = []
        for row, mask in enumerate(whole.mask):
            # What a row without a token makes is undefined, and must not be a crash: its first one is run.
            positions[:] = [torch.from_numpy(mask if mask.any() else mask.argmax() == np.arange(len(mask))).nonzero()[:, 0]]
            made = run(_row(whole, row, positions[-1]).on(device))
            rows.append({name: _padded(x, name, positions[-1], whole.length, model.architecture) for name, x in made.items()})
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    return runner


def _padded(x: Tensor, name: str, positions: Tensor, length: int, a: Architecture) -> Tensor:
    """Put back where it belongs among `length` positions, along every axis that counts positions."""
    for axis, counted in enumerate(table(a)[name].axes):
        if counted in ("position", "query", "key"):
            shape = list(x.shape)
            shape[axis] = length
            x = x.new_zeros(shape).index_copy(axis, positions.to(x.device), x)
    return x
