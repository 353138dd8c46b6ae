"""How a module is called: which argument is which array of a batch, and what a mask says, in which shape."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import nn

# What a part of an argument's name says that it is; the first that matches counts.
_PARTS = {
    "attention_mask": ("mask", "pad", "allowed"),
    "token_type_ids": ("type", "seg", "kind"),
    "input_ids": ("id", "tok", "src", "inp", "word", "x"),
}

# The usual forms of a mask; which one is meant is decided by what the module computes with it.
_MASKS = (
    "batch.attention_mask",
    "batch.attention_mask.bool()",
    "batch.attention_mask == 0",
    "batch.attention_mask[:, None, None, :]",
    "batch.attention_mask[:, None, None, :].bool()",
    "batch.attention_mask[:, None, None, :] == 0",
    "(1.0 - batch.attention_mask[:, None, None, :]) * -1e9",
    "batch.attention_mask[:, None, :]",
    "batch.attention_mask[:, None, :].bool()",
    "batch.attention_mask[:, None, :] == 0",
)

# What a module of one argument may take: all arrays in one dictionary.
_ALL = "dict(input_ids=batch.input_ids, token_type_ids=batch.token_type_ids, attention_mask=batch.attention_mask)"


@dataclass(frozen=True)
class Call:
    """One way of calling a module.

    Attributes:
        arguments: of the call, in Python, of `batch`, whose arrays are all there.
        open: what could not be decided.
    """

    arguments: str
    open: tuple[str, ...] = ()

    @property
    def run(self) -> Callable[[nn.Module, Any], Any]:
        """Calls a module with a batch."""
        code = compile(f"module({self.arguments})", "call", "eval")
        return lambda module, batch: eval(code, {"module": module, "batch": batch.filled()})


def calls(module: nn.Module) -> Iterator[Call]:
    """Every way in which a module may have to be called, the likeliest by name first."""
    parameters = [
        p for p in inspect.signature(module.forward).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    fields: dict[str, str] = {}
    for p in sorted(parameters, key=lambda p: p.name not in _PARTS):  # those of the arrays' own names before those like them
        array = _array(p.name)
        if array and array not in fields.values():
            fields[p.name] = array
    if "input_ids" not in fields.values() and parameters:
        fields[parameters[0].name] = "input_ids"
    taken = [p for p in parameters if p.name in fields or p.default is p.empty]
    unknown = [p.name for p in taken if p.name not in fields]
    said = tuple(f"argument {name} of forward: not known what it is, given None" for name in unknown)
    choices = [_expressions(p.name, fields.get(p.name, "")) for p in taken]
    if [fields.get(p.name) for p in taken] == ["input_ids"]:
        choices = [[*choices[0], _ALL]]
    for chosen in product(*choices):
        yield Call(", ".join(_written(parameters, taken, chosen)), said)


def _array(name: str) -> str:
    """Which array of a batch an argument's name says that it is; empty where it says nothing."""
    return next((array for array, parts in _PARTS.items() if any(part in name.lower() for part in parts)), "")


def _expressions(name: str, array: str) -> Sequence[str]:
    if array == "attention_mask":
        inverted = "pad" in name.lower()
        return sorted(_MASKS, key=lambda text: ("==" in text) != inverted)
    return [f"batch.{array}" if array else "None"]


def _written(parameters: Sequence[inspect.Parameter], taken: Sequence[inspect.Parameter], chosen: Sequence[str]) -> Iterator[str]:
    """By position, and by keyword from the first argument that is left out."""
    by_position = True
    given = dict(zip([p.name for p in taken], chosen, strict=True))
    for parameter in parameters:
        by_position &= parameter.name in given and parameter.kind is not parameter.KEYWORD_ONLY
        if parameter.name in given:
            yield given[parameter.name] if by_position else f"{parameter.name}={given[parameter.name]}"
