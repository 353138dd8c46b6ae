"""The tensors in the value that a module returns, and their comparison with activations, which are captured by hooks.

A hook on the last layer shows what that layer computes, not what the module returns to its caller: a module that computes every
layer and returns another tensor is wrong, and its hooked activations are right.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import permutations
from math import prod
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from conformance.candidates.arrays import UNCOMPARED, Unreadable
from conformance.candidates.capture import listening, returned
from conformance.errors import CandidateError
from conformance.model.activations import last_hidden, layer_input, outputs, table
from conformance.model.architecture import Architecture

_LEAVES = (str, bytes, type, ModuleType, nn.Module)
Show = Callable[[str, torch.Tensor], Iterable[tuple[str, Any]]]
RETURNED = "returned "  # start of the keys of returned tensors; no tap has such a key
_Kind = Literal["output", "state", "other"]


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has one stored value for each element: it is not sparse, nested or on the device `meta`."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta


def selected(value: Any, selector: str = "", seen: dict[int, Any] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the dense floating-point tensors in a value at any depth, each with the Python source that selects it.

    Parts are those of mappings, sequences and sets, and the attributes of other objects. An iterator is not consumed, so that it
    has no parts. The containers and objects that were entered are in `seen` by id, since one may contain itself.

    Example:
        >>> [selector for selector, _ in selected({"states": [torch.zeros(1), 3], "pooled": torch.zeros(2)})]
        ['["states"][0]', '["pooled"]']
    """
    seen = {} if seen is None else seen
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        if is_dense(value) and value.is_floating_point():
            yield selector, value
    elif id(value) not in seen:
        seen[id(value)] = value
        for part, inner in _parts(value):
            yield from selected(inner, selector + part, seen)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a container or an object, each with the Python source that selects it."""
    if isinstance(value, _LEAVES):
        return
    if isinstance(value, Mapping):
        yield from ((f"[{_written(key)}]", part) for key, part in value.items() if type(key) in (int, str))
    elif isinstance(value, Sequence):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, Collection):
        yield from (("", part) for part in value)
    else:
        yield from ((f".{name}", part) for name, part in _attributes(value).items())


def _attributes(value: Any) -> Mapping[str, Any]:
    """Return the attributes of an object, those in slots included."""
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if isinstance(name, str))
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})


def _written(key: int | str) -> str:
    """Return a key as Python source, in double quotes where it has none of its own."""
    is_plain = isinstance(key, str) and key.isprintable() and not set(key) & set('"\\')
    return f'"{key}"' if is_plain else repr(key)


@dataclass(frozen=True, eq=False)
class _Part:
    """A returned tensor that has the shape of an output.

    Attributes:
        selector: Python source that selects it in the returned value.
        tensor: the tensor.
        kind: whether it equals an exposed output, or a hidden state before the last, or none.
        is_state: whether it has the shape of a hidden state.
    """

    selector: str
    tensor: torch.Tensor
    kind: _Kind
    is_state: bool


def _rows(tensor: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Return the rows of the real tokens of an activation; an activation without an axis of tokens unchanged."""
    return tensor[real.to(tensor.device)] if tensor.ndim > 2 and tensor.shape[:2] == real.shape else tensor


def _rows_in_each_layout(tensor: torch.Tensor, real: torch.Tensor, width: int) -> Iterator[torch.Tensor]:
    """Yield the rows of the real tokens, (tokens, width), in each layout of an output that a tensor's shape allows.

    Its axes may be in any order, flattened, or packed without padding. `real` tells which tokens are real, (B, S).
    """
    size, length = real.shape
    shape, flat, packed = tuple(tensor.shape), (size * length, width), (int(real.sum()), width)
    if tensor.ndim == 3:
        orders = (tensor.permute(axes) for axes in permutations(range(3)))
        yield from (_rows(laid, real) for laid in orders if laid.shape == (size, length, width))
    if shape in (flat, (1, *flat), (size, length * width), (prod(flat),)):
        yield _rows(tensor.reshape(size, length, width), real)
        yield _rows(tensor.reshape(length, size, width).transpose(0, 1), real)
    if shape in (packed, (1, *packed)):
        yield tensor.reshape(packed)


class ReturnedValue:
    """The value that a module returns in one forward pass.

    Each tensor in it that has the shape of an output is compared with the activations that hooks capture. The comparison is exact
    at every position that the attention mask includes, since returning a tensor rounds nothing; only digests are kept of the
    activations before the last hidden state, so that memory does not grow with depth.

    Args:
        module: the module that is run.
        architecture: architecture of the network.
        batch: batch on which it is run.
    """

    def __init__(self, module: nn.Module, architecture: Architecture, batch: Any) -> None:
        """Start with no forward pass."""
        a, rows, mask = architecture, table(architecture), batch.attention_mask
        self._module, self._mask, self._width = module, mask, a.hidden_size
        self._last, self._outputs = last_hidden(a), outputs(a)
        names = list(rows)
        self._late = frozenset(names[names.index(self._last) :])
        states = [rows[layer_input(i)] for i in range(a.num_hidden_layers + 1)]
        # A copy, such as a dropout that is off, may have no module of its own.
        self._states = {name: row.name for row in states for name in (row.name, *row.parents * (row.kind == "copy"))}
        every = torch.ones_like(batch.input_ids, dtype=torch.bool)
        self._real = mask != 0 if mask is not None and mask.shape == every.shape else every
        size, length = every.shape
        shaped = [rows[name] for name in (*self._outputs, "pooler.activation") if name in rows]
        self._shapes = {row.shape(size, length, a.num_attention_heads) for row in shaped}
        self._results: list[Any] = []
        self._value: Any = None
        self._is_named = False
        self._unexposed = set(self._states.values())
        self._digests: dict[_Kind, set[bytes]] = {"output": set(), "state": set()}

    def of(self, call: Callable[[], Any], named_in: Callable[[Any], Mapping[str, Any]]) -> Mapping[str, torch.Tensor]:
        """Run a forward pass and return the activations that it returns, under keys of their own.

        `call` runs the module; `named_in` returns the activations by name in what `call` returns.
        """
        with listening([("", self._module, "output")], lambda _key, _call, value, _named: self._results.append(value)):
            self._value = call()
        named = named_in(self._value)
        self._is_named = not named.keys().isdisjoint(self._outputs)
        return {f"{RETURNED}{name}": returned(value, name) for name, value in named.items()}

    def compared(self, captured: Iterable[tuple[str, torch.Tensor]], show: Show) -> Iterator[tuple[str, Any]]:
        """Yield a pass's activations by name, and at the end a note if a part of the returned value was not compared.

        Outputs that are also hooked are not yielded again: they are compared with the hooked ones. `captured` has the tensors at
        the taps, then those of `of`; `show` maps a key and a tensor at a tap to activations by name.

        Raises:
            CandidateError: the module returns another tensor.
        """
        hooked: dict[str, Any] = {}
        is_in_order = True  # layers in the wrong order are another mistake, which the judge names
        for name, tensor in _shown(captured, show):
            if name in hooked:
                if is_in_order:
                    self._require_equal(name, hooked[name], tensor)
                continue
            is_in_order &= self._last not in hooked or name in self._late
            if name in self._late:
                hooked[name] = tensor
            if (name in self._late or name in self._states) and isinstance(tensor, torch.Tensor):
                self._keep(name, tensor)
            yield name, tensor
        if is_in_order and (note := self._judged(hooked)):
            yield UNCOMPARED, Unreadable(note)

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        """Keep the digests of an activation: of its real tokens, and of the first token alone."""
        self._unexposed.discard(self._states.get(name, ""))
        digests = self._digests["output" if name in self._late else "state"]
        digests.add(_digest(_rows(tensor, self._real)))
        if tensor.ndim == 3:
            digests.add(_digest(tensor[:, 0]))

    def _judged(self, hooked: Mapping[str, Any]) -> str:
        """Return a sentence on what of the returned value was not compared; empty if all of it equals activations.

        Unless `call` names the outputs, one of the returned hidden states must be an output, and the first of them a hidden state
        that the module computes, if all of those are exposed.

        Raises:
            CandidateError: the module returns another tensor.
        """
        values = self._results or ([] if self._is_named else [self._value])
        parts = [part for value in values for selector, t in selected(value) for part in self._parts(selector, t)]
        wide = [part for part in parts if part.is_state]
        if wide and not self._is_named and self._last in hooked:
            starts_with_another = len(values) == 1 and wide[0].kind == "other" and not self._unexposed
            if starts_with_another or not any(part.kind == "output" for part in wide):
                difference = self._difference(self._last, hooked[self._last], wide[0].tensor)
                raise CandidateError(f"{difference}; if it is meant to, return its outputs by name in `call`")
        others = [f"{part.selector or 'a tensor'} of {tuple(part.tensor.shape)}" for part in parts if part.kind == "other"]
        if values and len(others) == len(parts):
            return "the returned value was not compared: no tensor in it equals an exposed activation"
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        return (
            f"not compared in the returned value: {', '.join(others[:3])}{more}, equal to no exposed activation" if others else ""
        )

    def _parts(self, selector: str, tensor: torch.Tensor) -> Iterator["_Part"]:
        """Yield a returned tensor, or the hidden states that are stacked in it, if it has the shape of an output."""
        for axis in (0, 1) if tensor.ndim == 4 and tensor.numel() else ():
            if any(True for _ in _rows_in_each_layout(tensor.select(axis, 0), self._real, self._width)):
                yield from (part for inner in tensor.unbind(axis) for part in self._parts(selector, inner))
                return
        widths = {shape[-1] for shape in self._shapes if len(shape) == 3}
        digests = {width: [_digest(rows) for rows in _rows_in_each_layout(tensor, self._real, width)] for width in widths}
        is_state = bool(digests.get(self._width)) or (tensor.ndim == 3 and tensor.shape[-1] == self._width)
        every = {digest for found in digests.values() for digest in found}
        every |= {_digest(tensor)} if tuple(tensor.shape) in self._shapes else set()
        if every or is_state:
            kinds: list[_Kind] = [kind for kind, exposed in self._digests.items() if not exposed.isdisjoint(every)]
            yield _Part(selector, tensor, [*kinds, "other"][0], is_state)

    def _require_equal(self, name: str, hooked: Any, returned: Any) -> None:
        if hooked.shape != returned.shape or bool(self._differs(hooked, returned).any()):
            raise CandidateError(self._difference(name, hooked, returned))

    def _differs(self, hooked: torch.Tensor, returned: torch.Tensor) -> torch.Tensor:
        """Return where two tensors of one shape differ at positions that the attention mask includes."""
        one, other = hooked.double(), returned.detach().double()
        differs = (one != other) & ~(one.isnan() & other.isnan())
        if self._mask is not None and one.ndim > 2 and one.shape[:2] == self._mask.shape:
            differs &= (self._mask != 0).to(differs.device)[(...,) + (None,) * (one.ndim - 2)]
        return differs

    def _difference(self, name: str, hooked: torch.Tensor, returned: torch.Tensor) -> str:
        what = "its last layer computes" if name == self._last else "it computes there"
        start = f"{name}: the module returns another tensor than {what}"
        if hooked.shape != returned.shape:
            return f"{start}: one of {tuple(returned.shape)} for {tuple(hooked.shape)}"
        place = tuple(self._differs(hooked, returned).nonzero()[0].tolist())
        return f"{start}: at {list(place)}, {returned[place].item():.7g} for {hooked[place].item():.7g}"


def _shown(captured: Iterable[tuple[str, torch.Tensor]], show: Show) -> Iterator[tuple[str, Any]]:
    """Yield activations by name; a returned tensor is in the activation's layout, so that `show` is not applied to it."""
    for key, tensor in captured:
        yield from [(key.removeprefix(RETURNED), tensor)] if key.startswith(RETURNED) else show(key, tensor)


def _digest(rows: torch.Tensor) -> bytes:
    """Return a digest of a tensor's numbers, in the order of its elements; a zero has one, whatever its sign and dtype."""
    return blake2b((rows.detach().double() + 0.0).contiguous().cpu().numpy().data, digest_size=16).digest()
