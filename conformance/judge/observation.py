"""The object of a judgement: an activation that a candidate exposes, with the captured activations before it, whole or in blocks.

A block is a range of rows of the batch. Rows do not interact in a BERT, so all that a judgement needs of an activation, except a
loss, is a sum over its blocks. The size of the float64 arrays held at a time therefore does not grow with the batch, and several
cores share the work. Where positions do not interact either, a few tokens are a block as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from conformance.judge.judged_elements import Hashes, elements_to_explain, judged_elements, repeats_of, sums_of_independent_rows
from conformance.judge.noise import Noise, of_segment
from conformance.judge.segment import Segment, WhenRead, between, couples_positions
from conformance.model.activation import Activation
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Captured, Mask, Single, as_array, placed_like
from conformance.numerics.memo import cached_property
from conformance.oracle import Network

PROBED = 8  # number of tokens of a probe
SMALL = 2**14  # number of elements up to which an activation is always used whole
PART = 32  # number of tokens of a part on which mistakes are compared; the cost of a pass is proportional to it
BLOCK = 2**18  # largest number of elements of a block's activation, 2 MiB in float64; it bounds memory and does not affect time
BLOCK_ON_DEVICE = 2**24  # the same on a device, 128 MiB in float64; it bounds memory, and no verdict depends on it


@dataclass(frozen=True, eq=False)
class Block:
    """A part of an activation, in float64.

    Attributes:
        network: the oracle's network, on this part of the batch.
        segment: the steps that compute the activation from the captured parents.
        actual: the candidate's array.
        first: index of its first row in the batch.
        errors: the global errors of the parents, against the oracle's own forward pass.
        truth: the activation in the oracle's own forward pass, if it is known.
    """

    network: Network
    segment: Segment
    actual: Array
    first: int
    errors: Mapping[str, Array]
    truth: Array | None

    @property
    def activation(self) -> Activation:
        """The activation's row of the table."""
        return self.network.table[self.segment.name]

    @property
    def head_size(self) -> int:
        """The number of features of an attention head."""
        return self.network.architecture.head_size

    @cached_property
    def judged(self) -> Mask:
        """The mask of the elements that are judged."""
        return placed_like(judged_elements(self.activation, self.network.batch, self.actual.shape), self.actual)

    @cached_property
    def counted(self) -> Mask:
        """The judged elements over which means are taken: not those that must be 0 and are.

        No rounding occurs at such elements, such as the gradients of rows of a table that are not looked up, so that they say
        nothing about the size of rounding errors; any other value there is still the largest error.
        """
        if self.actual.all():
            return self.judged
        return as_array(self.judged & ((self.actual != 0.0) | (self.segment.value != 0.0)))

    @cached_property
    def elements_to_explain(self) -> Mask:
        """The mask of the elements for which a fault has to account."""
        return placed_like(elements_to_explain(self.activation, self.network.batch, self.actual.shape), self.actual)

    def noise(self, hypothesis: Hypothesis, *, apart: bool = False) -> Noise:
        """Return the noise of the judged elements under a hypothesis; `apart` as for `Segment.projected`."""
        if hypothesis not in self._noises:
            self._noises[hypothesis] = of_segment(self.segment, hypothesis, self.judged)
        noise, segment = self._noises[hypothesis], self.segment
        return replace(noise, projected=lambda w: segment.projected(w, hypothesis, apart=True)) if apart else noise

    @cached_property
    def _noises(self) -> dict[Hypothesis, Noise]:
        return {}

    @cached_property
    def residual(self) -> Array:
        """The local residual: the candidate's array minus the oracle's result from the captured parents."""
        return self.actual - self.segment.value

    @cached_property
    def error(self) -> Array:
        """The global error: the candidate's array minus the true activation, which follows from the true parents."""
        if self.truth is not None:
            return self.actual - self.truth
        leaves, errors = self.segment.leaves, self.errors
        true = WhenRead(leaves, lambda name: leaves[name] - errors[name])
        return self.actual - Segment(self.network, self.segment.name, true).value


@dataclass(frozen=True, eq=False)
class Observation:
    """An activation to be judged.

    Attributes:
        network: the oracle's network.
        name: name of the activation.
        actual: the candidate's array.
        captured: activations that the candidate exposed before, as far as they are held.
        errors: the global errors of the captured activations, against the oracle's own forward pass.
        truth: the activation in the oracle's own forward pass, if it is stored.
        on_device: the network on the device where the activation is; None if it is in memory. Small parts of an activation are
            judged in memory in any case.
    """

    network: Network
    name: str
    actual: Captured
    captured: Mapping[str, Captured]
    errors: Mapping[str, Single] = field(default_factory=dict)
    truth: Array | None = None
    on_device: Network | None = None

    @property
    def activation(self) -> Activation:
        """The activation's row of the table."""
        return self.network.table[self.name]

    @property
    def heads(self) -> int:
        """The number of attention heads of the network; a layer with pruned heads has fewer."""
        return self.network.architecture.num_attention_heads

    @cached_property
    def steps(self) -> tuple[Activation, ...]:
        """The steps from the captured activations to this one, in the order of computation."""
        return tuple(self.network.table[name] for name in between(self.network, self.name, self.captured))

    @property
    def is_exact(self) -> bool:
        """Whether every step up to the captured activations is exact, such as a look-up."""
        return all(step.exact for step in self.steps)

    @property
    def is_single_step(self) -> bool:
        """Whether every parent of the last step is captured, or the activation of which that parent is a copy."""
        return all(step.kind == "copy" for step in self.steps[:-1])

    @property
    def is_unchanged_copy(self) -> bool:
        """Whether the activation, in memory, is a copy of a captured one by its equation, and equals it everywhere."""
        if self.activation.kind != "copy" or len(self.steps) > 1 or self.on_device:
            return False
        return bool(np.array_equal(self.actual, self.captured[self.activation.parents[0]]))

    @property
    def has_unexposed_layers(self) -> bool:
        """Whether the steps from the captured activations belong to several layers of a forward pass."""
        return self.network.source is None and len({step.layer for step in self.steps}) > 1

    @cached_property
    def judged(self) -> Mask:
        """The mask of the elements that are judged."""
        return judged_elements(self.activation, self.network.batch, self.actual.shape)

    @cached_property
    def count(self) -> int:
        """The number of judged elements."""
        return int(self.judged.sum())

    def independent_rows(self, hypothesis: Hypothesis, hashes: Hashes | None = None) -> Array:
        """Return the number of judged elements of each independent draw of noise; rows with equal hashes share a draw.

        Without hashes, no rows do.
        """
        several = len(self.steps) > 1 or hypothesis.parents == "unrounded"
        coupled = several and couples_positions(step.kind for step in self.steps)
        counted = self.whole.counted if "row" in self.activation.axes else self.judged
        sizes = np.asarray(sums_of_independent_rows(self.activation, counted, coupled=coupled))
        sizes = sizes.ravel() if hashes is None else repeats_of(hashes).merged(sizes)
        return sizes[sizes > 0] if sizes.any() else np.ones(1)

    def independent_draw_count(self, hypotheses: Sequence[Hypothesis]) -> int:
        """Return the number of independent draws of noise that the likelihood counts, which is the same under each hypothesis.

        For an elementwise function it is the number of distinct inputs; otherwise the smallest number of independent rows, since an
        error shared by a row is one draw.
        """
        segment = self.whole.segment
        if segment.is_function:
            (parent,) = segment.leaves.values()
            return len(np.unique(parent[self.judged]))
        hashes = segment.hashes(hypotheses[0].arithmetic.storage)
        return min(self.independent_rows(hypothesis, hashes).size for hypothesis in hypotheses)

    @cached_property
    def repeated_inputs(self) -> tuple[Array, Array]:
        """The judged inputs that occur at several places, and how often, both (1, N, 1); for a function of one captured number."""
        (parent,) = self.activation.parents
        distinct, counts = np.unique(self.captured[parent][self.judged], return_counts=True)
        inputs, n = (as_array(x[counts > 1], np.float64).reshape(1, -1, 1) for x in (distinct, counts))
        return inputs, n

    @cached_property
    def whole(self) -> Block:
        """The whole activation as one block."""
        return self._block(self.on_device, 0, lambda _, array: array)

    @property
    def in_memory(self) -> "Observation":
        """The same observation to be judged in memory, as an activation is that fails."""
        return self if self.on_device is None else self._copied

    @cached_property
    def _copied(self) -> "Observation":
        actual: Any = np.array(self.actual)
        return replace(self, actual=actual, on_device=None)

    @cached_property
    def rows(self) -> tuple[slice, ...]:
        """The batch rows of each block; a single block if a step or a parent, such as a loss, combines rows of the batch."""
        batch = self.network.batch
        if not self.is_by_row:
            return (slice(0, batch.size),)
        largest = max(int(np.prod(step.shape(1, batch.length, self.heads, batch.states_length))) for step in self.steps)
        each = max((BLOCK_ON_DEVICE if self.on_device else BLOCK) // largest, 1)
        return tuple(slice(start, start + each) for start in range(0, batch.size, each))

    @cached_property
    def is_by_row(self) -> bool:
        """Whether each row of the batch is computed independently of the others."""
        table = self.network.table
        rows = [*self.steps, *(table[parent] for step in self.steps for parent in step.parents)]
        return all(row.axes[:1] == ("batch",) for row in rows)

    def block(self, rows: slice) -> Block:
        """Return the block of the given rows of the batch."""
        if rows.start == 0 and rows.stop >= self.network.batch.size:
            return self.whole
        return self.probe if self._probed == (rows, None) and not self.on_device else self._of_rows(rows, self.on_device)

    def without_padding(self, rows: slice) -> Block:
        """Return the block of the given rows of the batch, cut after the last token that is not padding in all of them."""
        batch = self.network.batch
        length = int(np.flatnonzero(batch.mask[rows].any(0)).max(initial=0)) + 1
        return self.block(rows) if length == batch.length else self._of_tokens(rows, length)

    def worst_rows(self, left: Array) -> Block | None:
        """Return the adjacent rows, of about `PART` tokens, with the largest sum of `left`; None if a part would not save work.

        Args:
            left: a nonnegative array of the activation's shape.
        """
        batch = self.network.batch
        count = -(-PART // batch.length)
        if not self.is_by_row or self.actual.size <= SMALL or count >= batch.size:
            return None
        first = int(np.convolve(left.reshape(batch.size, -1).sum(1), np.ones(count), "valid").argmax())
        return self._of_rows(slice(first, first + count))

    def _of_rows(self, rows: slice, on_device: Network | None = None) -> Block:
        return self._block(on_device and on_device.cut(rows), rows.start, lambda _, array: array[rows], rows)

    @cached_property
    def probe(self) -> Block:
        """A small part, on which gross faults are recognized.

        It is the first tokens of a row if each position is computed independently; otherwise a row, with padding if any row has it.
        It is the whole activation if that is small or if rows interact.
        """
        if self._probed is None:
            return self.whole
        rows, length = self._probed
        return self._of_rows(rows) if length is None else self._of_tokens(rows, length)

    def on_probe(self, whole: Array) -> Array:
        """Return the probe's part of an array that has the shape of the activation, where the probe is."""
        return whole if self._probed is None else np.asarray(whole[self.activation.cut(*self._probed)])

    @cached_property
    def _probed(self) -> tuple[slice, int | None] | None:
        """The batch rows of the probe, and its number of tokens if it is not whole rows; None if the probe is the activation."""
        if self.actual.size <= SMALL or not self.is_by_row or self.network.batch.size == 1:
            return None
        attended = self.network.batch.mask.cumprod(1).sum(1)  # length of the unpadded prefix
        row, rows = int(attended.argmax()), -(-PROBED // self.network.batch.length)
        if attended[row] and all("position" in step.axes and step.layer is not None for step in self.steps):
            return slice(row, row + rows), int(min(attended[row], PROBED))
        padding = (~self.network.batch.mask).sum(1) * (attended > 0)  # faults of the mask act only where there is padding
        return slice(int(padding.argmax()), int(padding.argmax()) + 1), None

    def _of_tokens(self, rows: slice, length: int) -> Block:
        table = self.network.table

        def cut(name: str, array: Captured) -> Captured:  # without `self`, which would keep its arrays until a cycle is collected
            return array[table[name].cut(rows, length)]

        return self._block(None, rows.start, cut, rows, length)

    def _block(
        self,
        on_device: Network | None,
        first: int,
        cut: Callable[[str, Captured], Captured],
        rows: slice | None = None,
        length: int | None = None,
    ) -> Block:
        """Return a block in float64, with all that it is computed from: where `on_device`, cut already, is, else in memory."""
        network = on_device or (self.network if rows is None else self.network.cut(rows, length))
        like: dict[str, Any] = {"like": self.actual} if on_device else {}

        def reading(arrays: Mapping[str, Captured]) -> WhenRead:
            return WhenRead(arrays, lambda name: np.asarray(cut(name, arrays[name]), np.float64, **like))

        segment = Segment(network, self.name, reading(self.captured))
        truth = None if self.truth is None else np.asarray(cut(self.name, self.truth), np.float64, **like)
        actual = np.asarray(cut(self.name, self.actual), np.float64, **like)
        return Block(network, segment, actual, first, reading(self.errors), truth)
