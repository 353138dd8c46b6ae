"""A row of the table of mistakes: what is computed in place of a step, where, and what the suite may call it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.benchmarks.detection import equations
from conformance.benchmarks.detection.bert import DTYPES, changed, prefix
from conformance.benchmarks.detection.equations import KINDS, LAYER_STEPS, Change, Formula, Step
from conformance.benchmarks.detection.tools import evaluated
from conformance.model.architecture import Architecture

SHORT = ("float32", "bfloat16", "float16")  # For what is fitted in float64, which is no more accurate than a float64 candidate.
HALVES = ("bfloat16", "float16")
SINGLE = ("float32",)  # For roundings that half formats make anyway.
WIDE = ("float64", "float32")
LAST = "i == L - 1"


@dataclass(frozen=True)
class Row:
    """A mistake.

    Attributes:
        name: the name of its fault in the catalogue, or plain words for a mistake without a name there.
        changes: what is computed in place of each changed step.
        says: the names and descriptions that are right for it; empty if only its place can be right.
        suits: an expression that is true for the architectures that can have it: of `a`, `heads`, `d`, `H`, `L`, `act`.
        where: `one`, a mistake that can be in any layer, or an expression of `i` and `L` that is true for the layers that it is in.
        origins: the steps where it begins, if they are others than the changed ones.
        dtypes: the formats in which it is a mistake.
        value: the planted value of its fault's parameter, which its estimate must meet; None without a parameter.
        wide: whether it is computed in at least float32 and rounded once, so that only the mistake differs.
    """

    name: str
    changes: Mapping[str, Formula]
    says: tuple[str, ...]
    suits: str = "True"
    where: str = "one"
    origins: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    value: float | None = None
    wide: bool = field(default=True, repr=False)

    def layers(self, a: Architecture, layer: int = 0) -> set[int]:
        """Return the layers that the mistake is in; `layer` is the one of a mistake that can be in any."""
        return equations.chosen((layer,) if self.where == "one" else self.where, a.num_hidden_layers)

    @property
    def layered(self) -> bool:
        """Whether the mistake can be in any layer."""
        return self.where == "one" and bool(LAYER_STEPS & self.changes.keys())

    @property
    def of_whole_layer(self) -> bool:
        """Whether the mistake changes the sequence of layers, so that it is not planted in all of them."""
        return bool({"handed", "runs"} & self.changes.keys()) or "stored" in str(self.changes) or "again" in str(self.changes)

    def at(self, *layers: int) -> tuple[Change, ...]:
        """Return the changes of a candidate with the mistake, in these layers if it can be in any (default: the first)."""
        where = self.where if self.where != "one" else (layers or (0,)) if self.layered else None
        return tuple(changed(step, expression, layers=where, wide=self.wide) for step, expression in self.changes.items())

    def fits(self, a: Architecture) -> bool:
        """Return whether an architecture can have the mistake."""
        steps = {step.name for step in _steps(a)}
        sizes = {"a": a, "heads": a.num_attention_heads, "d": a.head_size, "H": a.hidden_size, "L": a.num_hidden_layers}
        sizes |= {"act": a.hidden_act}
        there = all(steps & set(KINDS.get(name, (name,))) for name in self.changes)
        return there and bool(evaluated(self.suits, sizes.__getitem__))

    def begins(self, a: Architecture, layer: int = 0) -> frozenset[str]:
        """Return the activations where it begins: those whose step is wrong for the inputs that it receives."""
        names = [name for kind in self.origins or self.changes for name in KINDS.get(kind, (kind,))]
        return frozenset(origin for name in names for origin in self._origins(a, name, layer))

    def _origins(self, a: Architecture, name: str, layer: int) -> Iterable[str]:
        if name == "last":
            yield from (step.activation for step in equations.heads(a) if _reads(step, "last"))
        if name in ("handed", "runs"):
            for at in self.layers(a, layer):
                if at + 1 == a.num_hidden_layers:
                    yield from self._origins(a, "last", layer)
                else:
                    yield from (prefix(at + 1) + step.activation for step in equations.layer(a) if _reads(step, "hidden"))
            return
        yield from (step.activation for step in _outside(a) if step.name == name and step.activation)
        of_layer = [step.activation for step in equations.layer(a) if step.name == name]
        yield from (prefix(at) + activation for at in self.layers(a, layer) for activation in of_layer)


def _outside(a: Architecture) -> tuple[Step, ...]:
    return (*equations.embeddings(a), *equations.heads(a))


def _steps(a: Architecture) -> tuple[Step, ...]:
    return (*_outside(a), *equations.layer(a))


def _reads(step: Step, name: str) -> bool:
    return any(re.search(rf"\b{name}\b", str(text)) for text in (step.expression, *step.given.values()))


def row(name: str, step: str | Mapping[str, Formula], expression: Formula = "", says: str | None = None, **more: Any) -> Row:
    """Return a row.

    Args:
        name: the mistake's name.
        step: the changed step, or each with its expression.
        expression: what is computed in place of it.
        says: what is right to call it, in words apart; default: its name alone, and nothing for a name of several words.
        more: further attributes of `Row`.
    """
    changes = {step: expression} if isinstance(step, str) else step
    default = () if " " in name else (name,)
    return Row(name, changes, default if says is None else tuple(says.split()), **more)
