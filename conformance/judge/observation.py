"""What is judged: an activation that a candidate exposes, with those it was computed from, whole or by blocks.

A block is some rows of the batch. Sequences do not meet in a BERT, so that all that a judgement needs of an activation, but for a
loss, is a sum over its blocks: what is in float64 at a time does not grow with the batch, and several cores share the
work. A few tokens are a block as well, where positions do not meet either.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from conformance.judge.effective_samples import Hashes, Repeats
from conformance.judge.segment import Segment, between, couples_positions
from conformance.judge.selection import Mask, explained_elements, independent_rows, judged_elements
from conformance.model.activation import Activation
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Captured, Single
from conformance.numerics.memo import cached_property
from conformance.oracle import Network

PROBED = 8  # tokens of a probe
SMALL = 2**14  # elements of an activation of which no part is worth the trouble
PART = 32  # tokens of a part on which mistakes are compared: a pass costs as many
BLOCK = 2**18  # elements of the largest activation of a block, 2 MiB in float64; a bound on memory: time does not depend on it


class _Cut(Mapping[str, Array]):
    """Captured activations, each cut and brought to float64 when it is asked for."""

    def __init__(self, captured: Mapping[str, Captured], cut: Callable[[str, Captured], Captured]) -> None:
        self._captured, self._cut = captured, cut
        self._known: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._known:
            self._known[name] = np.asarray(self._cut(name, self._captured[name]), np.float64)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._captured

    def __iter__(self) -> Iterator[str]:
        return iter(self._captured)

    def __len__(self) -> int:
        return len(self._captured)


@dataclass(frozen=True, eq=False)
class Block:
    """A part of an activation, in float64.

    Attributes:
        network: the oracle's, on this part of the batch.
        segment: what computes it from the captured parents.
        actual: the candidate's array.
        first: the batch row that it begins with.
        errors: of the parents, against the oracle's own forward pass.
        truth: what that makes of this activation, where it is known.
    """

    network: Network
    segment: Segment
    actual: Array
    first: int
    errors: Mapping[str, Array]
    truth: Array | None

    @property
    def row(self) -> Activation:
        """The activation's row of the table."""
        return self.network.table[self.segment.name]

    @cached_property
    def judged(self) -> Mask:
        """Which elements are judged."""
        return judged_elements(self.row, self.network.batch, self.actual.shape)

    @cached_property
    def explained(self) -> Mask:
        """For which elements a fault has to account."""
        return explained_elements(self.row, self.network.batch, self.actual.shape)

    @cached_property
    def residual(self) -> Array:
        """Actual less what the captured parents call for."""
        return self.actual - self.segment.value

    @cached_property
    def error(self) -> Array:
        """Actual less true. Where the truth is not known: what is made here, and what comes of the parents' errors."""
        if self.truth is not None:
            return self.actual - self.truth
        arriving: dict[str, Array] = {n: self.errors[n] for n in self.segment.leaves}
        for name, step in self.segment.steps.items():
            parents = self.network.table[name].parents
            moved = step.moved_by(*(arriving[p] for p in parents)) if parents else np.zeros_like(step.value)
            arriving[name] = np.asarray(moved)
        return self.residual + arriving[self.segment.name]


@dataclass(frozen=True, eq=False)
class Observation:
    """An activation to be judged.

    Attributes:
        network: the oracle's.
        name: the activation's.
        actual: the candidate's array.
        captured: what it exposed before, as far as it is held.
        errors: of those, against the oracle's own forward pass.
        truth: what that makes of this activation, where it is stored.
        sigma: what rounding adds up to there since the token ids; it broadcasts to the activation. None: the global error is not
            asked for.
    """

    network: Network
    name: str
    actual: Captured
    captured: Mapping[str, Captured]
    errors: Mapping[str, Single] = field(default_factory=dict)
    truth: Array | None = None
    sigma: Array | None = None

    @property
    def row(self) -> Activation:
        """Its row of the table."""
        return self.network.table[self.name]

    @property
    def heads(self) -> int:
        """How many heads the network has."""
        return self.network.architecture.num_attention_heads

    @cached_property
    def steps(self) -> tuple[Activation, ...]:
        """The steps from what is captured to it."""
        return tuple(self.network.table[name] for name in between(self.network, self.name, self.captured))

    @property
    def hides_layers(self) -> bool:
        """Whether several layers lie between it and what is captured before, in a forward pass."""
        return self.network.source is None and len({step.layer for step in self.steps}) > 1

    @cached_property
    def judged(self) -> Mask:
        """Which elements are judged."""
        return judged_elements(self.row, self.network.batch, self.actual.shape)

    @cached_property
    def count(self) -> int:
        """How many."""
        return int(self.judged.sum())

    def independent(self, hypothesis: Hypothesis, hashes: Hashes) -> int:
        """How many rows are draws of their own, of rows with these hashes."""
        several = len(self.steps) > 1 or hypothesis.parents == "unrounded"
        coupled = several and couples_positions(step.kind for step in self.steps)
        rows = independent_rows(self.row, self.network.batch, self.heads, coupled=coupled)
        return max(int(rows * Repeats.of(hashes).share(self.judged)), 1)

    def draws(self, hypotheses: Sequence[Hypothesis]) -> int:
        """How many independent draws of noise the likelihood counts, the same under each hypothesis.

        Of an elementwise function one for each distinct input; else the fewest independent rows, since an error that a row shares
        is one draw.
        """
        segment = self.whole.segment
        if segment.is_function:
            (parent,) = segment.leaves.values()
            return len(np.unique(parent[self.judged]))
        hashes = segment.hashes(hypotheses[0].arithmetic.storage)
        return min(self.independent(hypothesis, hashes) for hypothesis in hypotheses)

    @cached_property
    def whole(self) -> Block:
        """All of it."""
        return self._block(self.network, 0, lambda _, array: array)

    @cached_property
    def rows(self) -> tuple[slice, ...]:
        """The blocks' rows of the batch; one block where sequences meet, or part after a loss."""
        batch = self.network.batch
        if not self._is_by_row:
            return (slice(0, batch.size),)
        largest = max(int(np.prod(step.shape(1, batch.length, self.heads, batch.states_length))) for step in self.steps)
        each = max(BLOCK // largest, 1)
        return tuple(slice(start, start + each) for start in range(0, batch.size, each))

    @cached_property
    def _is_by_row(self) -> bool:
        """Whether each row of the batch is computed by itself."""
        table = self.network.table
        rows = [*self.steps, *(table[parent] for step in self.steps for parent in step.parents)]
        return all(row.axes[:1] == ("batch",) for row in rows)

    def block(self, rows: slice) -> Block:
        """Those rows."""
        if len(self.rows) == 1:
            return self.whole
        return self._of_rows(rows)

    def part(self, left: Array) -> Block | None:
        """Neighbouring rows, of some `PART` tokens, where an array of its shape has most; None where it is not worth it."""
        batch = self.network.batch
        count = -(-PART // batch.length)
        if not self._is_by_row or self.actual.size <= SMALL or count >= batch.size:
            return None
        first = int(np.convolve(left.reshape(batch.size, -1).sum(1), np.ones(count), "valid").argmax())
        return self._of_rows(slice(first, first + count))

    def _of_rows(self, rows: slice) -> Block:
        return self._block(self.network.cut(rows), rows.start, lambda _, array: array[rows])

    @cached_property
    def probe(self) -> Block:
        """A small part, on which gross faults are recognised.

        The first tokens of a row where each position is computed by itself; else a row, with padding if there is any; all of it,
        if it is small, or rows meet.
        """
        if self.actual.size <= SMALL or not self._is_by_row or self.network.batch.size == 1:
            return self.whole
        attended = self.network.batch.mask.cumprod(1).sum(1)  # from the first token on
        row = int(attended.argmax())
        if attended[row] and all("position" in step.axes and step.layer is not None for step in self.steps):
            return self._tokens(row, int(min(attended[row], PROBED)))
        padding = (~self.network.batch.mask).sum(1) * (attended > 0)  # faults of the mask act where there is padding
        return self._of_rows(slice(int(padding.argmax()), int(padding.argmax()) + 1))

    def _tokens(self, row: int, length: int) -> Block:
        rows = slice(row, row + 1)

        def cut(name: str, array: Captured) -> Captured:
            return array[self.network.table[name].cut(rows, length)]

        return self._block(self.network.cut(rows, length), row, cut)

    def _block(self, network: Network, first: int, cut: Callable[[str, Captured], Captured]) -> Block:
        segment = Segment(network, self.name, _Cut(self.captured, cut))
        truth = None if self.truth is None else np.asarray(cut(self.name, self.truth), np.float64)
        actual = np.asarray(cut(self.name, self.actual), np.float64)
        return Block(network, segment, actual, first, _Cut(self.errors, cut), truth)
