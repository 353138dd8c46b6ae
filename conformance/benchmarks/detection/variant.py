"""Correct variants: candidates that compute in unusual ways, with the architectures and formats in which they are correct."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import DTYPES, Candidate, changed
from conformance.benchmarks.detection.equations import LAYER_STEPS, Change, Expression
from conformance.benchmarks.detection.tools import evaluated
from conformance.model.activations import last_hidden, table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.model.checkpoint import Checkpoint

HALVES_AND_FLOAT32 = ("float32", "bfloat16", "float16")
HALVES = ("bfloat16", "float16")
WIDE = ("float64", "float32")
INPUTS = ("input_ids", "token_type_ids", "attention_mask")

Runner = Callable[..., dict[str, Tensor]]
Arrangement = Callable[[Architecture, Runner], Runner]


def as_given(a: Architecture, run: Runner) -> Runner:
    """Return the runner that runs the whole batch at once."""
    return run


@dataclass(frozen=True)
class Variant(Candidate):
    """A correct candidate.

    Attributes:
        arranged: arrangement in which it runs its batch.
        last_only: whether only the last hidden state is exposed.
        dtypes: formats in which it is correct.
        suits: an expression that is true for the architectures `a` of which it exposes any activation.
        by_layer: whether it also runs with its changes in one layer alone.
    """

    arranged: Arrangement = as_given
    last_only: bool = False
    dtypes: tuple[str, ...] = DTYPES
    suits: str = "True"
    by_layer: bool = True

    def in_layer(self, index: int) -> "Variant | None":
        """Return the variant with its changes in one encoder layer alone; None if none of a layer is changed, or not `by_layer`."""
        changes = [replace(c, layers=(index,)) for c in self.changes if isinstance(c, Change) and LAYER_STEPS & set(c.steps)]
        return replace(self, changes=changes) if changes and self.by_layer else None

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return why the variant cannot be judged in this case, or None."""
        if not self.fits(architecture):
            return "what it shows, this architecture does not have"
        return None if dtype in self.dtypes else f"what it computes is no correct {dtype}"

    def fits(self, architecture: Architecture) -> bool:
        """Return whether it exposes any activation of an architecture."""
        return bool(evaluated(self.suits, {"a": architecture}.__getitem__))

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Mapping[str, Tensor]]:
        """Return a runner of the candidate with its batch arranged."""
        a = checkpoint.architecture
        run = self.arranged(a, self.runner(self.build(checkpoint, device, dtype), dtype))
        return (lambda batch: {last_hidden(a): run(batch)[last_hidden(a)]}) if self.last_only else run


def variant(step: str, *expressions: Expression, wide: bool = False, hides: Sequence[str] = (), **more: Any) -> Variant:
    """Return a variant with another expression of one step, or of the steps of a kind.

    Args:
        step: the name of the step or of the kind of step.
        expressions: what is computed; several are used in turn, place by place.
        wide: whether in at least float32, rounded once.
        hides: the ends of the names of activations that it does not expose.
        more: further attributes of `Variant`.
    """
    return variants((changed(step, *expressions, wide=wide),), hides, **more)


def variants(changes: Sequence[Change], hides: Sequence[str] = (), **more: Any) -> Variant:
    """Return a variant with several changes."""
    if hides:
        more["exposes"] = lambda name: not name.endswith(tuple(hides))
    return Variant(tuple(changes), **more)


def row_by_row(a: Architecture, run: Runner) -> Runner:
    """Return a runner that runs one sequence at a time; losses are not exposed."""

    def runner(batch: TorchBatch) -> dict[str, Tensor]:
        whole, device = batch.numpy(), str(batch.input_ids.device)
        rows = [run(_row(whole, row).on(device)) for row in range(whole.size)]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    return runner


def in_order(order: Callable[[int], Sequence[int]]) -> Arrangement:
    """Return an arrangement that runs the sequences in another order, some of them several times; losses are not exposed.

    Args:
        order: returns the rows to run, given the number of sequences; every row must occur.
    """

    def arranged(a: Architecture, run: Runner) -> Runner:
        def runner(batch: TorchBatch) -> dict[str, Tensor]:
            whole, device = batch.numpy(), str(batch.input_ids.device)
            rows = list(order(whole.size))
            inputs = {name: array[rows] for name, array in whole.arrays().items() if name in INPUTS}
            results, first = run(Batch.of(inputs).on(device)), torch.tensor([rows.index(row) for row in range(whole.size)])
            return {name: x if len(x) == 1 else x[first.to(x.device)] for name, x in results.items()}

        return runner

    return arranged


def unpadded(a: Architecture, run: Runner) -> Runner:
    """Return a runner that runs one sequence at a time, without its padding; losses are not exposed.

    Values at padding are exposed as zero.
    """

    def runner(batch: TorchBatch) -> dict[str, Tensor]:
        whole, device = batch.numpy(), str(batch.input_ids.device)
        rows = []
        for row, mask in enumerate(whole.mask):
            # A row without tokens has undefined results, but must not crash: its first token is run.
            positions = torch.from_numpy(mask if mask.any() else mask.argmax() == np.arange(len(mask))).nonzero()[:, 0]
            results = run(_row(whole, row, positions).on(device), positions=positions.to(device)[None])
            rows.append({name: _padded(x, name, positions, whole.length, a) for name, x in results.items()})
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    return runner


def _row(batch: Batch, row: int, positions: slice | Tensor = slice(None)) -> Batch:
    """Return one sequence, or some of its positions.

    Labels are left out, since a mean over sequences is not the mean over tokens.
    """
    kept = positions.numpy() if isinstance(positions, Tensor) else positions
    return Batch.of({name: array[row : row + 1, kept] for name, array in batch.arrays().items() if name in INPUTS})


def _padded(x: Tensor, name: str, positions: Tensor, length: int, a: Architecture) -> Tensor:
    """Return x with its positions put back among `length` positions, along every axis that counts positions."""
    for axis, counted in enumerate(table(a)[name].axes):
        if counted in ("position", "query", "key"):
            shape = list(x.shape)
            shape[axis] = length
            x = x.new_zeros(shape).index_copy(axis, positions.to(x.device), x)
    return x
