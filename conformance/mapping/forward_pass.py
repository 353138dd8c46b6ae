"""Recording of a module's forward pass: the result of every operation, and the inputs and outputs of each submodule.

An unknown module is examined with an architecture and a batch whose sizes all differ, so that shapes identify tensors.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.candidates.arrays import tensors_in
from conformance.candidates.capture import Side, Tap, listening
from conformance.candidates.hook_effects import SMALL
from conformance.candidates.returned_value import is_dense, selected
from conformance.errors import CandidateError
from conformance.goldens.batches import SEED, batch, drawn
from conformance.mapping.tensors import NUMBER
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.formats import Array, Mask

PROBE = SMALL.with_(num_hidden_layers=3)
_MASKS = ("11111111111", "11111111111", "11111110000", "00111111111", "11011101101")
NEAREST = 3  # results that are tried in place of an activation: two layers' results may be more alike than right and wrong ones


def batch_for(a: Architecture, *, padded_at_end: bool = False) -> Batch:
    """Return a batch of at most the longest length; padding is before, between and after tokens, or only after them."""
    masks = ["".join(sorted(mask, reverse=True)) for mask in _MASKS] if padded_at_end else _MASKS
    cut = [mask[: a.longest] for mask in masks]
    return batch(SEED, a, drawn([mask for mask in cut if "1" in mask]))  # what attention to no token computes is undefined


@dataclass(frozen=True)
class ForwardPass:
    """The record of a forward pass.

    Attributes:
        operations: results of all operations, float64, in the order of computation.
        taps: each possible tap with its array and the module at which it is.
        reading: paths of the modules of which at least one own parameter was an operand.
        results: the tensors that the module returns, by the Python source that selects each; empty source if it returns one alone.
        length: number of items that the module returns in a tuple or list; 0 if it returns anything else.
    """

    operations: "Operations"
    taps: Sequence[tuple[Tap, Array, nn.Module]]
    reading: frozenset[str]
    results: Mapping[str, Array]
    length: int


class Operations:
    """The results of operations, searchable by their elements in any order."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        """Sort the elements of each finite array once."""
        self._sorted: defaultdict[int, list[Array]] = defaultdict(list)
        self._by_size: defaultdict[int, list[Array]] = defaultdict(list)
        for array in arrays:
            if np.isfinite(array).all():
                self._sorted[array.size].append(np.sort(array, None))
                self._by_size[array.size].append(array)
        self._smallest = {size: np.array([array[0] for array in found]) for size, found in self._sorted.items()}

    def has(self, expected: Array, allowed: float) -> bool:
        """Return whether a result has the expected elements in any order: the sorted elements differ by at most `allowed`.

        Sorting never increases the largest difference, so no result is missed because of its layout. Most results are rejected by
        comparing the smallest elements only.
        """
        wanted, found = np.sort(expected, None), self._sorted[expected.size]
        near = np.flatnonzero(np.abs(self._smallest.get(wanted.size, np.empty(0)) - wanted[0]) <= allowed)
        return any(np.abs(found[i] - wanted).max() <= allowed for i in near)

    def nearest(self, expected: Array, real: Mask) -> list[Array]:
        """Return the results with the largest cosines with `expected`, in its shape, the nearest first; at most `NEAREST`.

        A result may have the rows of the real tokens alone, which `real` selects, (B, S); it is then `expected` at padding.
        """
        near = self._with_cosines(expected)
        if expected.shape[:2] == real.shape:
            for cosine, rows in self._with_cosines(expected[real]).items():
                near[cosine] = expected.copy()
                near[cosine][real] = rows
        return [near[cosine] for cosine in sorted(near, reverse=True)[:NEAREST]]

    def _with_cosines(self, expected: Array) -> dict[float, Array]:
        """Return the results of the size of `expected`, in its shape, by their cosines with it; of equal ones, the first."""
        found: dict[float, Array] = {}
        norm = float(np.linalg.norm(expected))
        for array in self._by_size[expected.size]:
            for laid in _arranged(array, expected.shape):
                scale = norm * float(np.linalg.norm(laid))
                if scale > 0.0:
                    found.setdefault(round(float(abs((laid * expected).sum()) / scale), 9), laid)
        return found


def _arranged(array: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    yield array.reshape(shape)
    if array.ndim == 4 and len(shape) == 3:
        yield array.transpose(0, 2, 1, 3).reshape(shape)


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that keeps the dense floating-point results of all operations, and the storages of all operands.

    Results that are a view of a whole parameter, such as the transpose of a weight, are not kept.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.arrays: list[Array] = []
        self.operands: set[int] = set()
        self._parameters = {(p.untyped_storage().data_ptr(), p.numel()) for p in module.parameters() if is_dense(p)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        with torch._C._DisableTorchDispatch():
            self.operands.update(t.untyped_storage().data_ptr() for t in _dense([*args, *(kwargs or {}).values()]))
            self.arrays += [
                _array(t) for t in _dense(result) if t.is_floating_point() and t.numel() > 1 and not self._is_parameter(t)
            ]
        return result

    def _is_parameter(self, tensor: torch.Tensor) -> bool:
        return (tensor.untyped_storage().data_ptr(), tensor.numel()) in self._parameters


def first_tensor(returned: Any) -> torch.Tensor:
    """Return the first tensor in a module's result, as `selected`: the result itself, or a part at any depth.

    Raises:
        CandidateError: there is no such tensor.
    """
    found = next((tensor for _, tensor in selected(returned)), None)
    if found is None:
        raise CandidateError(f"forward returns a {type(returned).__name__}, in which there is no tensor with dense values")
    return found


def _array(tensor: torch.Tensor) -> Array:
    return np.array(tensor.detach().double().cpu().numpy())


def _dense(value: Any) -> Iterator[torch.Tensor]:
    return (t for t in tensors_in(value) if is_dense(t))


def observe(module: nn.Module, forward: Callable[[], Any], heads: int) -> ForwardPass:
    """Run a forward pass of a module, of that number of attention heads, without gradients and return its record."""
    taps: list[tuple[Tap, Array, nn.Module]] = []
    parts, sides = dict(module.named_modules()), get_args(Side)

    def callback(place: tuple[str, Side], call: int, value: Any, _: Mapping[str, Any]) -> None:
        path, side = place
        for element, tensor in _elements(value):
            with torch._C._DisableTorchDispatch():
                taps.append((Tap(path, side, element, call), _array(tensor), parts[path]))

    places = [((path, side), part, side) for path, part in parts.items() for side in sides]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole layer in one operation
    try:
        with listening(places, callback), _Recording(module) as recording, torch.no_grad():
            result = forward()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    parameters = module.named_parameters(remove_duplicate=False)
    reading = {
        name.rpartition(".")[0] for name, p in parameters if is_dense(p) and p.untyped_storage().data_ptr() in recording.operands
    }
    results = {selector: _array(tensor) for selector, tensor in selected(result)}
    length = len(result) if isinstance(result, tuple | list) else 0
    return ForwardPass(Operations([*recording.arrays, *_joined(taps, heads)]), taps, frozenset(reading), results, length)


def _joined(taps: Iterable[tuple[Tap, Array, nn.Module]], heads: int) -> Iterator[Array]:
    """Yield the inputs and outputs of the modules of all heads, joined along the features, where each head is a module."""
    members: defaultdict[tuple[str, str, Tap], list[Array]] = defaultdict(list)
    for tap, array, _ in taps:
        for number in NUMBER.finditer(tap.path):
            members[tap.path[: number.start()], tap.path[number.end() :], replace(tap, path="")].append(array)
    for arrays in members.values():
        if len(arrays) == heads and arrays[0].ndim and len({array.shape for array in arrays}) == 1:
            yield np.concatenate(arrays, -1)


def _elements(value: Any) -> Iterator[tuple[int | str, torch.Tensor]]:
    """Yield the dense floating-point tensors in a module's inputs or outputs, each with the `element` of its `Tap`."""
    parts: Any = {0: value}
    if isinstance(value, Mapping):
        parts = value
    elif isinstance(value, tuple | list):
        parts = dict(enumerate(value))
    for element, tensor in parts.items():
        if isinstance(tensor, torch.Tensor) and is_dense(tensor) and tensor.is_floating_point():
            yield element, tensor
