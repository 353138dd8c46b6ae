"""A black box: the network, the candidate poolings of its hidden state, and a last step for the numbers that were printed.

The last step gathers every printed number into one vector for each pooling: (P, N). Its own rounding is that of printing. Sigma,
the noise's projections and the effects of faults are therefore computed as for any other segment of the network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.diagnosis.pooling import EMBEDDING, EQUATIONS, LEADING, PREFIX, Pooling
from conformance.judge.judged_elements import judged_elements
from conformance.judge.search.placements import EVERYWHERE, FaultPlacement, placements
from conformance.judge.segment import Segment, between
from conformance.model.activation import SENTENCE, Activation
from conformance.model.activations import last_hidden
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Format, Mask
from conformance.numerics.memo import cached_property
from conformance.oracle import Network, Step
from conformance.oracle.linear_maps import LinearMap, Roundings
from conformance.oracle.step import Site, elementwise_roundings

PRINTED = "printed"


@dataclass(frozen=True)
class PrintedNumbers:
    """The printed or stored numbers of an output, in an array of the output's shape.

    Attributes:
        values: the numbers; NaN where nothing was printed.
        units: unit of each number's last digit, or last place in its stored format, or √(a² + b²) of both; 0 for exact numbers.
        stored: name of the format of stored numbers, if it is narrower than that of the computation; else empty.
    """

    values: Array
    units: Array
    stored: str = ""

    def of_rows(self, rows: Ids) -> "PrintedNumbers":
        """Return the numbers of these rows of the batch; all of them for an output without rows."""
        return replace(self, values=self.values[rows], units=self.units[rows]) if self.values.ndim else self


Outputs = Mapping[str, PrintedNumbers]  # by the name of the activation, or `embedding` where the pooling may be any


@dataclass(frozen=True)
class Part:
    """Elements of one parent of the last step.

    Attributes:
        parent: name of the parent.
        flat: flat indices of the elements in the parent.
        place: the poolings (rows of the last step's value) and the columns that hold them.
    """

    parent: str
    flat: Ids
    place: tuple[slice, slice]


@dataclass(frozen=True)
class Reading:
    """The source of each number in the last step's value.

    Attributes:
        parts: the parents' elements that are gathered.
        actual, units: (N,) the printed numbers, and the units of their last digits or places.
        rows: (N,) the batch row of each number, −1 if it belongs to none.
        shape: (P, N), with one pooling if no output is pooled.
        names: the outputs, each with its number of elements.
    """

    parts: tuple[Part, ...]
    actual: Array
    units: Array
    rows: Ids
    shape: tuple[int, int]
    names: tuple[tuple[str, int], ...]


class Printed(Step):
    """The step that gathers the printed numbers, (P, N), from its parents, without computing anything."""

    def __init__(self, site: Site, reading: Reading, *parents: Array) -> None:
        """Bind the step to its site, its parents, and the elements that it reads."""
        super().__init__(site, *parents)
        self.reading = reading

    def replaced(self, *, site: Site | None = None, parents: tuple[Array, ...] | None = None) -> Step:
        """Return the same step with another site or other parents."""
        return Printed(site or self.site, self.reading, *(self.parents if parents is None else parents))

    @cached_property
    def value(self) -> Array:
        """All printed numbers as the network computes them, (P, N)."""
        out = np.empty(self.reading.shape)
        for part, parent in zip(self.reading.parts, self.parents, strict=True):
            out[part.place] = parent.reshape(-1)[part.flat]
        return out

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the Jacobian of each parent: a gather, whose adjoint is a scatter."""
        return tuple(self._map(part, parent.shape) for part, parent in zip(self.reading.parts, self.parents, strict=True))

    def _map(self, part: Part, shape: tuple[int, ...]) -> LinearMap:
        def variance(v: Array) -> Array:
            out = np.zeros(self.reading.shape)
            out[part.place] = np.broadcast_to(v, shape).reshape(-1)[part.flat]
            return out

        def adjoint(w: Array) -> Array:
            out = np.zeros(int(np.prod(shape, dtype=int)))
            out[part.flat] = w[part.place].sum(0)
            return out.reshape(shape)

        return LinearMap(variance, adjoint)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the roundings of printing: unit²/12, uniform on ± half a unit, but at least the storage format's rounding."""
        printing = np.maximum(self.reading.units**2 / 12.0, arithmetic.storage.rounding_variance(self.reading.actual))
        return elementwise_roundings(np.broadcast_to(printing, self.reading.shape))


@dataclass(frozen=True)
class BlackBox(Network):
    """A network, the poolings that its embeddings may come from, and its printed outputs.

    Attributes:
        outputs: the outputs.
        poolings: the poolings; those that are cut last stand at the end.
        is_declared: whether the first pooling alone is correct; otherwise all are but those that are cut last.
        leaves: captured activations from which the network is computed; empty if it starts from the token ids.
    """

    outputs: Outputs
    poolings: tuple[Pooling, ...] = ()
    is_declared: bool = field(default=False, kw_only=True)
    leaves: Mapping[str, Array] = field(default_factory=dict, kw_only=True)

    @cached_property
    def table(self) -> dict[str, Activation]:
        """The network's table, with the poolings and the last step added."""
        rows, width = dict(super().table), self.architecture.hidden_size
        for pooling in self.poolings:
            parent = "pooler.activation" if pooling.base == "pooler" else last_hidden(self.architecture)
            whole = width
            for name, kind in pooling.steps(self.features):
                whole = self.features if kind == LEADING and self.features else whole
                rows.setdefault(name, Activation(name, kind, (parent,), SENTENCE, whole, kind))
                parent = name
        named = [name for name in self.outputs if name != EMBEDDING]
        pooled = [pooling.name_of_result(self.features) for pooling in self.poolings if EMBEDDING in self.outputs]
        rows[PRINTED] = Activation(PRINTED, "printed", (*named, *pooled), (), 0, "the numbers printed")
        return rows

    @cached_property
    def features(self) -> int | None:
        """The number of features of shortened embeddings; None if they are whole."""
        width = self.outputs[EMBEDDING].values.shape[-1] if EMBEDDING in self.outputs else self.architecture.hidden_size
        return width if width < self.architecture.hidden_size else None

    @property
    def right_poolings(self) -> range:
        """The indices of the poolings that a correct system may have."""
        last = sum(pooling.is_cut_last for pooling in self.poolings)  # that is a mistake, unless it is declared
        return range(1 if self.is_declared else self.reading.shape[0] - last)

    def parent_of(self, output: str, pooling_index: int) -> str:
        """Return the name of the activation that is an output under one pooling."""
        return self.poolings[pooling_index].name_of_result(self.features) if output == EMBEDDING else output

    def step(self, name: str, *parents: Array) -> Step:
        """Return the step of an activation, a pooling, or the last step."""
        if name == PRINTED:
            return Printed(self.site(name), self.reading, *parents)
        if name.startswith(PREFIX):
            return EQUATIONS[self.table[name].kind](self.site(name), *parents)
        return super().step(name, *parents)

    @cached_property
    def reading(self) -> Reading:
        """The sources of the elements that are printed and judged."""
        parts, actual, units, rows, names = [], [], [], [], []
        start = 0
        pooling_count = max(len(self.poolings), 1)
        for name in sorted(self.outputs, key=EMBEDDING.__eq__):
            numbers = self.outputs[name]
            judged = ~np.isnan(numbers.values) & self.judged(name, numbers.values.shape)
            flat, count = np.flatnonzero(judged), int(judged.sum())
            columns = slice(start, start + count)
            poolings = [slice(i, i + 1) for i in range(pooling_count)] if name == EMBEDDING else [slice(None)]
            parts += [Part(self.parent_of(name, i), flat, (of, columns)) for i, of in enumerate(poolings)]
            start += count
            actual.append(numbers.values[judged])
            units.append(numbers.units[judged])
            by_row = numbers.values.shape[:1] == (self.batch.size,)
            rows.append(np.argwhere(judged)[:, 0] if by_row else np.full(count, -1))
            names.append((name, count))
        return Reading(
            tuple(parts),
            np.concatenate(actual),
            np.concatenate(units),
            np.concatenate(rows),
            (pooling_count, start),
            tuple(names),
        )

    def judged(self, name: str, shape: tuple[int, ...]) -> Mask:
        """Return which elements of an output are judged."""
        if name == EMBEDDING:
            return np.ones(shape, np.bool_)
        return judged_elements(self.table[name], self.batch, shape)

    def of_rows(self, rows: Sequence[int]) -> "BlackBox":
        """Return the black box restricted to these rows of the batch."""
        index = np.asarray(rows)
        return replace(
            self,
            batch=self.batch.cut(index),
            outputs={name: numbers.of_rows(index) for name, numbers in self.outputs.items()},
            leaves={n: leaf[index] if self.table[n].axes[:1] == ("batch",) else leaf for n, leaf in self.leaves.items()},
            kept={name: mask[index] for name, mask in self.kept.items()},
        )


class BlackBoxSegment(Segment):
    """The segment from token ids or captured activations to the printed numbers.

    Attributes:
        network: the black box.
        storage: the promised format.
    """

    network: BlackBox

    def __init__(self, network: BlackBox, storage: Format) -> None:
        """Evaluate the network without faults; `storage` is the promised format."""
        super().__init__(network, PRINTED, network.leaves)
        self.storage = storage

    def _step_roundings(self, name: str, arithmetic: Arithmetic) -> Roundings:
        """Return the step's roundings; those of printing are not doubled for float64, because the oracle prints nothing."""
        return self.steps[name].roundings(arithmetic) if name == PRINTED else super()._step_roundings(name, arithmetic)

    @cached_property
    def placements(self) -> tuple[FaultPlacement, ...]:
        """All placements of faults."""
        return placements(self)

    @cached_property
    def filtered(self) -> list[FaultPlacement]:
        """One placement for each fault that has a filter, at all of its places; formats have none, because RMS detects them."""
        return [s for s in self.placements if s.reach == EVERYWHERE and not s.fault.after_failure]

    def ancestors(self, pooling_index: int) -> frozenset[str]:
        """Return the names of the steps from which the printed numbers are computed under one pooling."""
        parents = {self.network.parent_of(name, pooling_index) for name in self.network.outputs}
        return frozenset(name for parent in parents for name in between(self.network, parent, self.network.leaves))
