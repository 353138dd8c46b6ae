"""A black box: the network, the candidate poolings of its hidden state, and a last step for the numbers that were printed.

The last step gathers every known number into one vector for each pooling: (P, N). Its own rounding is that of printing. Sigma, the
noise's projections and the effects of faults are therefore computed as for any other segment of the network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.diagnosis.pooling import LEADING, Pooling, step_of
from conformance.diagnosis.printed import KnownNumbers
from conformance.judge.judged_elements import judged_elements
from conformance.judge.segment import Segment
from conformance.model.activation import SENTENCE, Activation
from conformance.model.activations import last_hidden
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Format, Mask
from conformance.numerics.memo import cached_property
from conformance.oracle import Network, Step
from conformance.oracle.embeddings import Exact
from conformance.oracle.linear_maps import LinearMap, Roundings
from conformance.oracle.pooling import Unit
from conformance.oracle.step import Site, elementwise_roundings

EMBEDDING, PRINTED = "embedding", "printed"


@dataclass(frozen=True)
class Output:
    """An output of a black box.

    Attributes:
        name: name of an activation, or `embedding` if the pooling is not known.
        known: the numbers that are known of it.
    """

    name: str
    known: KnownNumbers


class Leading(Exact):
    """The first features of each row, as many as the activation has: a shortened embedding."""

    @cached_property
    def value(self) -> Array:
        """The features that are kept."""
        return self.parents[0][:, : self.site.activation.width]

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the map that keeps the first features, whose adjoint adds zeros for the others."""
        shape, width = self.parents[0].shape, self.site.activation.width
        pads = ((0, 0), (0, shape[1] - width))
        return (LinearMap(lambda v: np.broadcast_to(v, shape)[:, :width], lambda w: np.pad(w, pads)),)


@dataclass(frozen=True)
class Part:
    """Elements of one parent of the last step.

    Attributes:
        parent: name of the parent.
        flat: flat indices of the elements in the parent.
        pooling_slice: the poolings (rows of the last step's value) that contain them.
        columns: the columns of the last step's value that contain them.
    """

    parent: str
    flat: Ids
    pooling_slice: slice
    columns: slice


@dataclass(frozen=True)
class Reading:
    """The source of each number in the last step's value.

    Attributes:
        parts: the parents' elements that are gathered.
        actual, units: (N,) the printed numbers, and the units of their last digits or places.
        rows: (N,) the batch row of each number, −1 if it belongs to none.
        pooling_count: P, the number of poolings; 1 if no output is pooled.
        names: the outputs, each with its number of elements.
    """

    parts: tuple[Part, ...]
    actual: Array
    units: Array
    rows: Ids
    pooling_count: int
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
        """All known numbers, (P, N)."""
        out = np.empty((self.reading.pooling_count, len(self.reading.actual)))
        for part, parent in zip(self.reading.parts, self.parents, strict=True):
            out[part.pooling_slice, part.columns] = parent.reshape(-1)[part.flat]
        return out

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the Jacobian of each parent: a gather, whose adjoint is a scatter."""
        return tuple(self._map(part, parent.shape) for part, parent in zip(self.reading.parts, self.parents, strict=True))

    def _map(self, part: Part, shape: tuple[int, ...]) -> LinearMap:
        pooling_count, columns = self.reading.pooling_count, len(self.reading.actual)

        def variance(v: Array) -> Array:
            out = np.zeros((pooling_count, columns))
            out[part.pooling_slice, part.columns] = np.broadcast_to(v, shape).reshape(-1)[part.flat]
            return out

        def adjoint(w: Array) -> Array:
            out = np.zeros(int(np.prod(shape, dtype=int)))
            out[part.flat] = w[part.pooling_slice, part.columns].sum(0)
            return out.reshape(shape)

        return LinearMap(variance, adjoint)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the roundings of printing: unit²/12, uniform on ± half a unit, but at least the storage format's rounding."""
        printing = np.maximum(self.reading.units**2 / 12.0, arithmetic.storage.rounding_variance(self.reading.actual))
        return elementwise_roundings(np.broadcast_to(printing, self.value.shape))


@dataclass(frozen=True)
class BlackBox(Network):
    """A network, the poolings that its embeddings may come from, and its printed outputs.

    Attributes:
        outputs: the outputs.
        poolings: the poolings.
        leaves: known activations from which the network is computed; empty if it starts from the token ids.
    """

    outputs: tuple[Output, ...]
    poolings: tuple[Pooling, ...]
    leaves: Mapping[str, Array] = field(default_factory=dict, kw_only=True)

    @cached_property
    def hidden(self) -> str:
        """The name of the last hidden state."""
        return last_hidden(self.architecture)

    @cached_property
    def table(self) -> dict[str, Activation]:
        """The network's table, with the poolings and the last step added."""
        rows = dict(super().table)
        width = self.architecture.hidden_size
        for base in dict.fromkeys(p.base for p in self.poolings):
            parent = "pooler.activation" if base == "pooler" else self.hidden
            rows[f"{EMBEDDING}.{base}"] = Activation(f"{EMBEDDING}.{base}", base, (parent,), SENTENCE, width, "")
        for p in self.poolings:
            parent, whole = f"{EMBEDDING}.{p.base}", width
            for name, kind in zip(self.names_after(p), p.steps(self.features), strict=True):
                whole = self.features if kind == LEADING and self.features else whole
                equation = "x / |x|" if kind == "unit" else "the first features of x"
                rows[name] = Activation(name, kind, (parent,), SENTENCE, whole, equation)
                parent = name
        pooled = [self.embedding_of(p) for p in self.poolings]
        named = [o.name for o in self.outputs if o.name != EMBEDDING]
        has_embedding = any(o.name == EMBEDDING for o in self.outputs)
        rows[PRINTED] = Activation(PRINTED, "printed", (*named, *(pooled if has_embedding else ())), (), 0, "the numbers printed")
        return rows

    @cached_property
    def features(self) -> int | None:
        """The number of features of shortened embeddings; None if they are whole."""
        widths = [o.known.values.shape[-1] for o in self.outputs if o.name == EMBEDDING]
        return widths[0] if widths and widths[0] < self.architecture.hidden_size else None

    def embedding_of(self, pooling: Pooling) -> str:
        """Return the name of the activation that is the embedding under a pooling."""
        return (f"{EMBEDDING}.{pooling.base}", *self.names_after(pooling))[-1]

    def names_after(self, pooling: Pooling) -> tuple[str, ...]:
        """Return the names of the activations after the pooling itself."""
        base, steps = f"{EMBEDDING}.{pooling.base}", pooling.steps(self.features)
        return tuple(".".join((base, *steps[: i + 1])) for i in range(len(steps)))

    def step(self, name: str, *parents: Array) -> Step:
        """Return the step of an activation, a pooling, or the last step."""
        if name == PRINTED:
            return Printed(self.site(name), self.reading, *parents)
        kind = self.table[name].kind
        if kind in ("unit", LEADING):
            return (Unit if kind == "unit" else Leading)(self.site(name), *parents)
        found = {p.base: p for p in self.poolings}.get(kind)
        if found is not None and name.startswith(EMBEDDING):
            return step_of(found)(self.site(name), *parents)
        return super().step(name, *parents)

    @cached_property
    def reading(self) -> Reading:
        """The sources of the elements that are known and judged."""
        pooling_count = max(len(self.poolings), 1)
        parts, actual, units, rows, names = [], [], [], [], []
        start = 0
        for output in sorted(self.outputs, key=lambda o: o.name == EMBEDDING):
            shape = output.known.values.shape
            judged = ~np.isnan(output.known.values) & self.judged(output.name, shape)
            flat = np.flatnonzero(judged)
            columns = slice(start, start + len(flat))
            if output.name == EMBEDDING:
                for pooling_index, pooling in enumerate(self.poolings):
                    parts.append(Part(self.embedding_of(pooling), flat, slice(pooling_index, pooling_index + 1), columns))
            else:
                parts.append(Part(output.name, flat, slice(0, pooling_count), columns))
            start += len(flat)
            actual.append(output.known.values[judged])
            units.append(output.known.units[judged])
            by_row = shape and shape[0] == self.batch.size
            rows.append(np.argwhere(judged)[:, 0] if by_row else np.full(len(flat), -1))
            names.append((output.name, len(flat)))
        return Reading(
            tuple(parts), np.concatenate(actual), np.concatenate(units), np.concatenate(rows), pooling_count, tuple(names)
        )

    def judged(self, name: str, shape: tuple[int, ...]) -> Mask:
        """Return which elements of an output are judged."""
        if name == EMBEDDING:
            return np.ones(shape, np.bool_)
        return judged_elements(self.table[name], self.batch, shape)

    def of_rows(self, rows: Sequence[int]) -> "BlackBox":
        """Return the black box restricted to these rows of the batch."""
        index = np.asarray(rows)
        batch = self.batch.cut(index)
        outputs = tuple(
            Output(o.name, replace(o.known, values=o.known.values[index], units=o.known.units[index])) if o.known.values.ndim else o
            for o in self.outputs
        )
        leaves = {n: leaf[index] if self.table[n].axes[:1] == ("batch",) else leaf for n, leaf in self.leaves.items()}
        kept = {name: mask[index] for name, mask in self.kept.items()}
        return replace(self, batch=batch, outputs=outputs, leaves=leaves, kept=kept)


class BlackBoxSegment(Segment):
    """The segment from token ids or known activations to the printed numbers.

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

    def ancestors(self, pooling_index: int) -> frozenset[str]:
        """Return the names of the activations from which the printed numbers are computed under one pooling."""
        todo = [
            part.parent
            for part in self.network.reading.parts
            if part.pooling_slice.start <= pooling_index < part.pooling_slice.stop
        ]
        found = set(todo)
        while todo:
            parents = set(self.network.table[todo.pop()].parents) - found
            found |= parents
            todo += parents
        return frozenset(found)
