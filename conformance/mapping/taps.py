"""Location of a module's activations: inputs and outputs of its submodules are compared with the oracle's activations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from conformance.candidates.capture import Tap
from conformance.candidates.layouts import LAYER, in_layer, is_layered
from conformance.mapping.identify import Identification, Value
from conformance.model.activation import Activation
from conformance.numerics.formats import Array

# Layouts in which a module may hold an activation, by the expression that converts them to (B, S, H).
_ARRANGEMENTS: Mapping[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "x.transpose(0, 1)": lambda x: x.swapaxes(0, 1),
    "x.flatten(2)": lambda x: x.reshape(*x.shape[:2], -1),
    "x.transpose(1, 2).flatten(2)": lambda x: x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1),
}


@dataclass(frozen=True)
class Located:
    """The location of one or several activations.

    Attributes:
        tap: the tap; its path contains `{layer}` if there is one tap for each layer.
        names: names of the activations; several if they are concatenated in one tensor.
        arrangement: Python expression that converts the tensor `x` to the activation's layout; empty if no conversion is needed.
        confirmed: whether the module computes the oracle's value there.
        selector: Python source that selects the tensor in the module's result, such as `[0]`.
        is_by_shape: whether it was found by its shape, which no value confirms.
        packed: whether the tensor has one row for each real token, without padding.
    """

    tap: Tap
    names: tuple[str, ...]
    arrangement: str
    confirmed: bool
    selector: str = ""
    is_by_shape: bool = False
    packed: bool = False


@dataclass(frozen=True)
class Places:
    """The search for the locations of activations among all taps of a forward pass.

    Attributes:
        search: the identification of parameters in the forward pass.
    """

    search: Identification

    @property
    def _values(self) -> Mapping[str, Value]:
        return self.search.state.values

    @cached_property
    def _containers(self) -> list[str]:
        """The patterns of the paths of layers, or of parts of layers, such as `encoder.blocks.{layer}`."""
        return sorted({t.name[: t.name.index("}") + 1] for t in self.search.tensors.all if is_layered(t.name)})

    def located(self) -> list[Located]:
        """Return the best location of every activation that is found, in the order of computation."""
        found: list[Located] = []
        done: set[str] = set()
        for row in self.search.rows.values():
            if row.layer or row.name in done or row.name not in self._values:
                continue
            best = min(self._of(row), key=self._preference(row), default=None)
            if best:
                found.append(best)
                done.update(best.names)
        return [self._pattern(location) for location in found]

    def returned(self) -> list[tuple[Array, Located | None]]:
        """Return the module's results, each with the activation that it is, if any; of equal activations, the last computed."""
        return [
            (array, self._returned_at(selector, array)) for selector, array in self.search.computed.results.items() if array.ndim
        ]

    def _returned_at(self, selector: str, returned: Array) -> Located | None:
        array, packed = self._unpacked(returned)
        for name in reversed(list(self._values)):
            for text in _ARRANGEMENTS:
                if self._fits(array, (name,), text, real_alone=True):
                    return Located(Tap(""), (name,), text, self._values[name].matches, selector, packed=packed)
        return None

    def by_shape(self, name: str) -> Located | None:
        """Return the module's result as the activation of this name, if it is a single tensor of that shape in some layout."""
        results = [(selector, array) for selector, array in self.search.computed.results.items() if array.ndim]
        if len(results) != 1 or name not in self._values:
            return None
        (selector, array), shape = results[0], self._values[name].value.shape
        text = next((t for t in _ARRANGEMENTS if _is_laid_out(array, t) and _ARRANGEMENTS[t](array).shape == shape), None)
        return None if text is None else Located(Tap(""), (name,), text, False, selector, is_by_shape=True)

    def _of(self, row: Activation) -> Iterator[Located]:
        """Yield every location of this activation, which must hold in every layer."""
        for tap, taken, module in self.search.computed.taps:
            array, packed = self._unpacked(taken)
            if (row.kind == "copy") != (tap.what == "output" and "dropout" in type(module).__name__.lower()):
                continue  # the output of a dropout is a separate activation
            if row.layer is not None and self._container(tap.path) is None:
                continue
            for names in (self._beside(row), (row.name,)):
                for text in _ARRANGEMENTS:
                    if self._fits(array, names, text, real_alone=packed) and all(
                        self._fits_in(tap, names, text, layer)
                        for layer in range(1, self.search.architecture.num_hidden_layers if row.layer is not None else 1)
                    ):
                        yield Located(tap, names, text, self._values[row.name].matches, packed=packed)

    def _unpacked(self, array: Array) -> tuple[Array, bool]:
        """Return an array of the real tokens' rows alone as (B, S, …), with zeros at padding, and whether it is one."""
        rows = array[0] if array.ndim > 2 and len(array) == 1 else array
        if rows.ndim < 2 or len(rows) != self.search.batch.mask.sum() or array.shape[:2] == self.search.batch.mask.shape:
            return array, False
        found = np.zeros((*self.search.batch.mask.shape, *rows.shape[1:]))
        found[self.search.batch.mask] = rows
        return found, True

    def _beside(self, row: Activation) -> tuple[str, ...]:
        """Return the names of query, key and value, which may be concatenated in one tensor; empty for any other row."""
        start, _, end = row.name.rpartition(".")
        return tuple(f"{start}.{n}" for n in ("query", "key", "value")) if end == "query" else ()

    def _fits_in(self, tap: Tap, names: Sequence[str], text: str, layer: int) -> bool:
        path = in_layer(self._pattern_of(tap.path), layer)
        there = [
            a
            for t, a, _ in self.search.computed.taps
            if (t.path, t.what, t.element, t.call) == (path, tap.what, tap.element, tap.call)
        ]
        if not there:
            return False
        array, packed = self._unpacked(there[0])
        return self._fits(array, [n.replace(".layer.0.", f".layer.{layer}.") for n in names], text, real_alone=packed)

    def _fits(self, array: Array, names: Sequence[str], text: str, *, real_alone: bool = False) -> bool:
        if not names or array.ndim == 0 or not _is_laid_out(array, text):
            return False
        laid = _ARRANGEMENTS[text](array)
        if laid.shape[-1] % len(names):
            return False
        parts = zip(np.split(laid, len(names), -1), names, strict=True)
        return all(self.fits(part, name, real_alone=real_alone) for part, name in parts)

    def fits(self, array: Array, name: str, *, real_alone: bool = False) -> bool:
        """Return whether a tensor equals an activation to within rounding, at all tokens or at the real ones alone."""
        value = self._values[name]
        expected = value.value[0] if self.search.rows[name].is_same_for_all_rows and array.ndim < value.value.ndim else value.value
        if array.shape != expected.shape or not np.isfinite(array).all():
            return False
        difference = np.abs(array - expected)
        return bool(
            (
                difference[self.search.batch.mask]
                if real_alone and difference.shape[:2] == self.search.batch.mask.shape
                else difference
            ).max()
            <= value.allowed(self.search.alpha)
        )

    def _preference(self, row: Activation) -> Callable[[Located], tuple[bool, bool, bool, int]]:
        """Return the sort key of locations.

        Preferred are, in this order: the activation's own layout, outputs, the module that holds the parameters, short paths.
        """
        names = [n for n in row.parameters.values() if n in self.search.state.sources]
        owners = {in_layer(self.search.state.sources[n].tensor.owner, 0) for n in names}
        return lambda location: (
            bool(location.arrangement),
            location.tap.what != "output",
            location.tap.path not in owners,
            len(location.tap.path),
        )

    def _container(self, path: str) -> str | None:
        """Return the pattern in `_containers` that contains the path of a module of the first layer; None if there is none."""
        return next((c for c in self._containers if f"{path}.".startswith(f"{in_layer(c, 0)}.")), None)

    def _pattern_of(self, path: str) -> str:
        """Return the path of a module of the first layer as a pattern; any other path unchanged."""
        container = self._container(path)
        return path if container is None else f"{container}{path[len(in_layer(container, 0)) :]}"

    def _pattern(self, location: Located) -> Located:
        if ".layer.0." not in location.names[0]:
            return location
        tap = Tap(self._pattern_of(location.tap.path), location.tap.what, location.tap.element, location.tap.call)
        return replace(location, tap=tap, names=tuple(n.replace(".layer.0.", f".layer.{LAYER}.") for n in location.names))


def _is_laid_out(array: Array, text: str) -> bool:
    """Return whether an array has enough axes for an arrangement."""
    return not text or array.ndim >= 3 + ("flatten" in text)
