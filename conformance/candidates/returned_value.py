"""Comparison of the value that a module returns with its outputs, which are captured by hooks.

A hook on the last layer shows what that layer computes, not what the module returns to its caller: a module that computes every
layer and returns another tensor is wrong, and its hooked activations are right.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from conformance.candidates.capture import returned
from conformance.candidates.module_hooks import listening
from conformance.errors import CandidateError
from conformance.model.activations import last_hidden, outputs, table
from conformance.model.architecture import Architecture

Show = Callable[[str, torch.Tensor], Iterable[tuple[str, Any]]]
_RETURNED = "returned "  # start of the keys of returned tensors; no tap has such a key


class ReturnedValue:
    """The value that a module returns in one forward pass.

    Args:
        module: the module that is run.
        architecture: architecture of the network.
        batch: batch on which it is run.
    """

    def __init__(self, module: nn.Module, architecture: Architecture, batch: Any) -> None:
        """Start with no forward pass."""
        self._module, self._mask, self._width = module, batch.attention_mask, architecture.hidden_size
        self._last, self._outputs = last_hidden(architecture), outputs(architecture)
        names = list(table(architecture))
        self._compared = frozenset(names[names.index(self._last) :])
        self._results: list[Any] = []
        self._is_named = False

    def of(self, forward: Callable[[], Mapping[str, Any]]) -> Mapping[str, torch.Tensor]:
        """Return the activations that `forward` returns, under keys of their own; what the module itself returns is kept."""
        with listening([("", self._module, "output")], lambda _key, _call, value, _named: self._results.append(value)):
            named = forward()
        self._is_named = not named.keys().isdisjoint(self._outputs)
        return {f"{_RETURNED}{name}": returned(value, name) for name, value in named.items()}

    def compared(self, captured: Iterable[tuple[str, torch.Tensor]], show: Show) -> Iterator[tuple[str, Any]]:
        """Yield a pass's activations by name, without outputs that are also hooked: those are compared with the hooked ones.

        The comparison is exact at every position that the attention mask includes, since returning a tensor rounds nothing. If
        `forward` returns no output by name, the module's own result is compared with the last hidden state, if it contains a
        tensor of that width.

        Args:
            captured: tensors at the taps, then those of `of`, by key.
            show: maps (key, tensor at a tap) to one or several activations, by name.

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
            is_in_order &= self._last not in hooked or name in self._compared
            if name in self._compared:
                hooked[name] = tensor
            yield name, tensor
        if is_in_order and not self._is_named and len(self._results) == 1 and self._last in hooked:
            self._require_output(hooked)

    def _require_output(self, hooked: Mapping[str, Any]) -> None:
        """Raise `CandidateError` if tensors of the last hidden state's width are returned, and none of them is an output."""
        wide = [t for t in _tensors(self._results[0]) if t.ndim == 3 and t.shape[-1] == self._width]
        arranged = [*wide, *(t.transpose(0, 1) for t in wide)]
        if wide and not any(self._equal(one, t) for one in hooked.values() for t in arranged):
            difference = self._difference(self._last, hooked[self._last], wide[0])
            raise CandidateError(f"{difference}; if it is meant to, return its outputs by name in `call`")

    def _require_equal(self, name: str, hooked: Any, returned: Any) -> None:
        if not self._equal(hooked, returned):
            raise CandidateError(self._difference(name, hooked, returned))

    def _equal(self, hooked: Any, returned: Any) -> bool:
        return hooked.shape == returned.shape and not bool(self._differs(hooked, returned).any())

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
        return f"{start}: at {list(place)}, {float(returned[place]):.7g} for {float(hooked[place]):.7g}"


def _shown(captured: Iterable[tuple[str, torch.Tensor]], show: Show) -> Iterator[tuple[str, Any]]:
    """Yield activations by name; a returned tensor is in the activation's layout, so that `show` is not applied to it."""
    for key, tensor in captured:
        yield from [(key.removeprefix(_RETURNED), tensor)] if key.startswith(_RETURNED) else show(key, tensor)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the dense floating-point tensors in a module's result."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and not value.is_nested:
            yield value
    elif isinstance(value, Mapping):
        yield from (t for part in value.values() for t in _tensors(part))
    elif isinstance(value, tuple | list):
        yield from (t for part in value for t in _tensors(part))
    elif is_dataclass(value):
        yield from (t for f in fields(value) for t in _tensors(getattr(value, f.name)))
