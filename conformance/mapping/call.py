"""Determination of how a module is called: the array of a batch for each argument, and the form and shape of the mask."""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import nn

from conformance.mapping.signature import parameters_of
from conformance.names import words

# Parts of argument names that identify an array; the first match counts.
_PARTS = {
    "attention_mask": ("mask", "pad", "allowed", "bias", "len"),
    "token_type_ids": ("type", "seg", "kind"),
    "input_ids": ("tok", "src", "inp", "word"),
}
_IDS = frozenset(("id", "ids", "idx", "x", "xs"))  # whole words that identify the token ids: they are parts of many other words
_POSITIONS = frozenset(("position", "positions", "pos"))  # words of arguments that are none of these arrays

LENGTHS = "batch.attention_mask.sum(1)"
_SHAPES = (
    "batch.attention_mask",
    "batch.attention_mask[:, None, None, :]",
    "batch.attention_mask[:, None, :]",
    "batch.attention_mask[:, None, :].expand(-1, batch.attention_mask.shape[1], -1)",  # (B, S, S), for modules without broadcasting
)
# The usual forms of a mask; the results of the module decide between them.
_ALLOWED, _AT_PADDING = (*_SHAPES, *(f"{m}.bool()" for m in _SHAPES)), tuple(f"{m} == 0" for m in _SHAPES)
# Finite, since 0 · −∞ is NaN; in the module's dtype, so that its scores are not promoted to float32.
_ADDED = tuple(f"(1 - {m}.to(dtype)) * torch.finfo(dtype).min" for m in _SHAPES)
DTYPE = "next(model.parameters()).dtype"

# A module with a single argument may take all arrays in one dictionary.
_ALL = "dict(input_ids=batch.input_ids, token_type_ids=batch.token_type_ids, attention_mask=batch.attention_mask)"


@dataclass(frozen=True)
class Call:
    """A way of calling a module.

    Attributes:
        arguments: Python source of the arguments, an expression of `batch`, which has all arrays, and `dtype`, that of the module.
        open: messages about undecided arguments.
        as_named: the way that the names of the arguments suggest, in words, if values confirm another; else empty.
        objects: other objects that the expression uses, by name.
    """

    arguments: str
    open: tuple[str, ...] = ()
    as_named: str = ""
    objects: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes_lengths(self) -> bool:
        """Whether the mask is given as lengths, which cannot represent padding before or between tokens."""
        return LENGTHS in self.arguments

    @property
    def takes_dtype(self) -> bool:
        """Whether an argument depends on the module's dtype."""
        return "dtype" in self.arguments

    @property
    def takes_mask(self) -> bool:
        """Whether the mask is given in any form."""
        return "batch.attention_mask" in self.arguments

    def run(self, model: nn.Module, batch: Any) -> Any:
        """Call the module on a batch and return its result."""
        dtype = next((p.dtype for p in model.parameters()), torch.float32)
        names = {"model": model, "batch": batch.filled(), "dtype": dtype, "torch": torch, **self.objects}
        return eval(f"model({self.arguments})", names)


@dataclass(frozen=True)
class Signature:
    """The signature of a module's forward method.

    Attributes:
        parameters: all parameters except `*args` and `**kwargs`.
        matching: for each array of a batch, the names of the parameters that may be it, the likeliest first.
    """

    parameters: Sequence[inspect.Parameter]
    matching: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, module: nn.Module) -> "Signature":
        """Return the signature of a module; its first unidentified parameter is the token ids if no name identifies them."""
        wrapped = getattr(module, "_orig_mod", module)  # what torch.compile(module) wraps in a module that takes any arguments
        every = parameters_of(wrapped.forward, f"forward of {type(module).__name__}")
        parameters = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        names = {array: [p.name for p in parameters if _array(p) == array] for array in _PARTS}
        matching = {array: [array] if array in found else found for array, found in names.items() if found}
        if "input_ids" not in matching and parameters:
            unidentified = [p.name for p in parameters if not _array(p)]
            matching["input_ids"] = [(unidentified or [parameters[0].name])[0]]
        return cls(parameters, matching)

    @property
    def fields(self) -> Mapping[str, str]:
        """The array of a batch for each parameter that is likeliest to be one."""
        first = {names[0]: array for array, names in self.matching.items()}
        return {p.name: first[p.name] for p in self.parameters if p.name in first}

    @property
    def unknown(self) -> list[inspect.Parameter]:
        """The parameters whose names identify no array and whose default is missing or None."""
        return [p for p in self.parameters if p.name not in self.fields and _is_open(p)]

    def readings(self) -> Iterator[Mapping[str, str]]:
        """Yield mappings from parameters to arrays: that of `fields` first, at last those with an unknown name as the mask."""
        for chosen in product(*self.matching.values()):
            yield dict(zip(chosen, self.matching, strict=True))
        if self.matching.get("attention_mask") != ["attention_mask"]:
            others = {name: array for name, array in self.fields.items() if array != "attention_mask"}
            yield from ({**others, p.name: "attention_mask"} for p in self.unknown if not (_array(p) or _is_position(p)))


def calls(module: nn.Module) -> Iterator[Call]:
    """Yield every possible way of calling a module, the likeliest by names first."""
    signature = Signature.of(module)
    # A module that takes another form of the mask under Hugging Face's names is mistaken.
    as_hugging_face = {"input_ids", "attention_mask"} <= {p.name for p in signature.parameters}
    for fields in signature.readings():
        taken = [p for p in signature.parameters if p.name in fields or p.default is p.empty]
        unknown = [p.name for p in taken if p.name not in fields]
        notes = tuple(f"argument {name} of forward: not known what it is, given None" for name in unknown)
        own = {p.name: kind for p in taken if (kind := _own_class(p)) and _takes_one(kind)}
        choices = [_expressions(p.name, fields.get(p.name, ""), own.get(p.name), as_hugging_face=as_hugging_face) for p in taken]
        objects = {kind.__name__: kind for kind in own.values()}
        if [fields.get(p.name) for p in taken] == ["input_ids"]:
            choices = [[*choices[0], _ALL]]
        for chosen in product(*choices):
            yield Call(", ".join(_written(signature.parameters, taken, chosen)), notes, objects=objects)


def _own_class(parameter: inspect.Parameter) -> type | None:
    """Return the class with which a parameter is annotated, unless it is a tensor or a class of Python, NumPy or torch."""
    kind = parameter.annotation
    is_own = isinstance(kind, type) and kind is not parameter.empty and not issubclass(kind, torch.Tensor)
    return kind if is_own and kind.__module__.partition(".")[0] not in {"numpy", "torch", *sys.stdlib_module_names} else None


def _takes_one(kind: type) -> bool:
    """Return whether the constructor of a class is known to have exactly one required parameter, the first."""
    try:
        parameters = list(inspect.signature(kind).parameters.values())
    except (TypeError, ValueError):  # a class that is not written in Python
        return False
    return [p.default is p.empty for p in parameters].count(True) == 1 and parameters[0].default is parameters[0].empty


def _array(parameter: inspect.Parameter) -> str:
    """Return the array of a batch that a parameter's name identifies; an empty string for none, and for settings with defaults."""
    name = parameter.name.lower()
    if name in _PARTS:
        return name
    if _is_position(parameter) or not _is_open(parameter):
        return ""
    found = next((array for array, parts in _PARTS.items() if any(part in name for part in parts)), "")
    return found or ("input_ids" if _IDS.intersection(words(name)) else "")


def _is_open(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter has no default or None, unlike a setting."""
    return parameter.default is parameter.empty or parameter.default is None


def _is_position(parameter: inspect.Parameter) -> bool:
    return not _POSITIONS.isdisjoint(words(parameter.name))


def _expressions(name: str, array: str, own: type | None = None, *, as_hugging_face: bool) -> Sequence[str]:
    """Return the expressions that may be given for a parameter, wrapped in its own class if it has one."""
    found = _ALLOWED if as_hugging_face and name == "attention_mask" else _forms(name, array)
    return [f"{own.__name__}({form})" for form in found] if own and array else found


def _forms(name: str, array: str) -> Sequence[str]:
    if array != "attention_mask":
        return [f"batch.{array}" if array else "None"]
    lower = name.lower()
    first = (LENGTHS,) if "len" in lower else _ADDED if "bias" in lower else _AT_PADDING if "pad" in lower else ()
    return list(dict.fromkeys((*first, *_ALLOWED, *_AT_PADDING, *_ADDED, LENGTHS)))


def _written(parameters: Sequence[inspect.Parameter], taken: Sequence[inspect.Parameter], chosen: Sequence[str]) -> Iterator[str]:
    """Yield the arguments by position, and by keyword after the first omitted parameter."""
    by_position = True
    given = dict(zip([p.name for p in taken], chosen, strict=True))
    for parameter in parameters:
        by_position &= parameter.name in given and parameter.kind is not parameter.KEYWORD_ONLY
        if parameter.name in given:
            yield given[parameter.name] if by_position else f"{parameter.name}={given[parameter.name]}"
