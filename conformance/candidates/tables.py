"""Entries of the tables of a registration: the activations in a module's tensor, and messages about entries that do not fit."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product
from typing import Any

import torch

from conformance.candidates.layouts import LAYER, is_layered
from conformance.errors import CandidateError, RegistrationError
from conformance.model.activations import OPTIONAL, parameter_shapes, table
from conformance.model.architecture import COMPATIBLE_HEADS, Architecture
from conformance.model.batch import TorchBatch

_LAYER_NUMBER = re.compile(r"(?<=\.layer\.)\d+(?=\.)")


@dataclass(frozen=True)
class OutputMap:
    """The activations that a module's tensor contains, and the function that computes them from the tensor.

    Attributes:
        names: names of the activations.
        function: maps the tensor to one tensor in the activation's layout for each name.
        packed: whether the tensor has one row for each real token, (tokens, …), without padding; `function` is then given
            (B, S, …), with zeros at padding.

    Example:
        A module that returns (sequence, batch, feature):

        >>> OutputMap("encoder.layer.{layer}.output.LayerNorm", lambda x: x.transpose(0, 1)).names
        'encoder.layer.{layer}.output.LayerNorm'

    """

    names: str | tuple[str, ...]
    function: Callable[[torch.Tensor], Any] = lambda x: x
    packed: bool = False

    def show(self, tensor: torch.Tensor, batch: TorchBatch | None = None) -> list[tuple[str, Any]]:
        """Return the activations in a tensor of the pass on a batch, as pairs of name and tensor.

        Raises:
            CandidateError: the tensor is to be packed, and has another number of rows than the batch has real tokens.
            RegistrationError: the function returns a different number of tensors than there are names.
        """
        made = self.function(self._unpacked(tensor, batch) if self.packed and batch is not None else tensor)
        parts = [made] if isinstance(made, torch.Tensor) else list(made)
        if len(parts) != len(self.names):
            raise RegistrationError(f"{', '.join(self.names)}: {len(parts)} tensors are shown for {len(self.names)} names")
        return list(zip(self.names, parts, strict=True))

    def _unpacked(self, tensor: torch.Tensor, batch: TorchBatch) -> torch.Tensor:
        real = (torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask) != 0
        tokens, rows = int(real.sum()), tensor[0] if tensor.shape[0] == 1 and tensor.ndim > 2 else tensor
        if len(rows) != tokens:
            raise CandidateError(
                f"{', '.join(self.names)}: {len(rows)} rows, expected one for each of the {tokens} real tokens of the batch"
            )
        found = rows.new_zeros(*real.shape, *rows.shape[1:])
        found[real.to(rows.device)] = rows
        return found

    @classmethod
    def of(cls, value: "str | tuple[str, ...] | OutputMap") -> "OutputMap":
        """Return the map for one name (the tensor itself) or several (equal parts of its last axis, as in a fused product)."""
        if isinstance(value, OutputMap):
            return replace(value, names=(value.names,)) if isinstance(value.names, str) else value
        if isinstance(value, str):
            return cls((value,), lambda t: (t,))
        return cls(value, lambda t: t.chunk(len(value), -1))


def folded(wrong: Sequence[str]) -> Iterator[str]:
    """Yield the messages; of those that differ only in the numbers in a path (`layer.0.`), the first, a count and the last."""
    alike: dict[str, list[str]] = {}
    for sentence in wrong:
        alike.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "0", sentence), []).append(sentence)
    for first, *more in alike.values():
        yield first
        yield from [f"… and {len(more) - 1} more like it, to:"] if more[1:] else []
        yield from more[-1:]


def hint(name: str, known: Iterable[str], used: Collection[str] = ()) -> str:
    """Return advice about an unknown name: what is wrong with its form, or the nearest known name that is not in use."""
    if "*" in name:
        return f"; each tensor is mapped by its name, in which {LAYER} stands for each layer, and * is no pattern"
    if is_layered(name):
        return f"; {LAYER} in it needs {LAYER} on the other side as well, or stacked()"
    near = get_close_matches(name, [n for n in known if n not in used], 1, 0.8)
    return f"; did you mean {near[0]!r}?" if near else ""


def absent_tensor(name: str, own: Mapping[str, Any], used: Collection[str], parameters: Sequence[str]) -> str:
    """Return the message that the module has no tensor of a mapped name, with advice.

    `used` are the names in the table, and `parameters` those of the checkpoint of which the tensor would be made.
    """
    near = hint(name, own, used)
    owner, _, last = name.rpartition(".")
    if not near and last == "bias" and f"{owner}.weight" in own:
        patterns = ", ".join(dict.fromkeys(_LAYER_NUMBER.sub("*", p) for p in parameters))
        near = (
            "; if the module has no bias there by mistake, add it; to judge it as it is, remove the entry and list "
            f"{patterns} in `unused`"
        )
    return f"matches nothing: the module has no {name!r}{near}"


def is_of_another_architecture(names: Sequence[str], a: Architecture) -> bool:
    """Return whether all names exist in an architecture that differs in heads, pooler, cross-attention or kind of positions.

    One table may be used for architectures with and without these components.
    """
    every = [
        a.with_(pooler=True, heads=heads, position_embedding_type=positions, is_decoder=True, add_cross_attention=True)
        for heads, positions in product(COMPATIBLE_HEADS, ("absolute", "relative_key"))
    ]
    return all(any(n in parameter_shapes(e) or n in table(e) for e in every) for n in names)


def never_drops(names: Sequence[str], a: Architecture) -> bool:
    """Return whether the names are dropouts that are absent because their rate is 0, or because there is no classifier."""
    return all(n in table(a.with_(**dict.fromkeys(OPTIONAL, 0.5), pooler=True, heads=("classification",))) for n in names)
