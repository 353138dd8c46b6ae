"""Entries for mistakes: the faults of the catalogue, and fitted ones."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from conformance.diagnosis.pooling import POOLINGS
from conformance.faults import CATALOGUE, Fault, Parameter
from conformance.faults.fault import EVERY_LAYER
from conformance.faults.fitted import DESCRIPTIONS, FITTED
from conformance.faults.fitted.fitted_fault import Fitted
from conformance.glossary.activations import rows, shape, step_equation
from conformance.glossary.entry import Section
from conformance.model.activation import Activation

Known = Fault | Fitted

_DESCRIBES = "it has the fit of any wrong value of the operand, whatever the code does to produce it"
_CONSTRUCTED = "no report of it is known: constructed from the equation, as a mistake that could be made"
VALUES = {"value": "VALUE", "right": "EXPECTED"}  # Placeholders for the numbers in a fault's sentence.


@lru_cache(maxsize=1)
def faults_by_name() -> Mapping[str, tuple[Known, ...]]:
    """Return the faults by name, in the catalogue's order; a name has several faults if it is fitted in several ways."""
    by_name: dict[str, tuple[Known, ...]] = {}
    every: tuple[Known, ...] = (*CATALOGUE, *FITTED)
    for fault in every:
        by_name[fault.name] = (*by_name.get(fault.name, ()), fault)
    return by_name


def acting_at(places: Iterable[Activation]) -> list[str]:
    """Return the names of the faults that can occur at any of these rows of the table."""
    places = list(places)
    return [name for name, faults in faults_by_name().items() if any(_acts_at(faults, row) for row in places)]


def _acts_at(faults: Iterable[Known], row: Activation) -> bool:
    return any(f.is_possible_at(row.kind, row.name) for f in faults)


def summaries() -> Mapping[str, str]:
    """Return the sentence of each fault, by name."""
    return {
        name: " / ".join(dict.fromkeys(f.sentence.format(**VALUES) for f in faults)) for name, faults in faults_by_name().items()
    }


def names(written: str) -> tuple[str, ...]:
    """Return the fault that is this pooling."""
    name = f"pooling-{written.removeprefix('mean-')}"
    return (name,) if written in POOLINGS and name in faults_by_name() else ()


def sections(name: str) -> Iterator[Section]:
    """Yield the equations of a fault, the steps where it acts, its cause, source and repair."""
    faults = faults_by_name()[name]
    places = [(generic, row) for generic, of_name in rows().items() for row in of_name if _acts_at(faults, row)]
    kinds = list(dict.fromkeys(row.kind for _, row in places))
    yield "usual cause", _once(f.cause for f in faults if f.cause)
    yield "how to repair it", _once(f.fix for f in faults)
    parameter = next((f.parameter for f in faults if isinstance(f, Fault) and f.parameter), None)
    yield "number", _number(parameter) if parameter else ()
    yield "equation with the mistake", _once(f.equation for f in faults)
    yield "source", _once(_CONSTRUCTED if f.source == "constructed" else f.source for f in faults)
    if any(isinstance(f, Fault) and f.extent == EVERY_LAYER for f in faults):
        yield "extent", ("every layer at once; it is not considered for one layer alone",)
    yield "correct equation", tuple(dict.fromkeys(" ".join(step_equation(kind)) for kind in kinds))
    yield "acts at", tuple(dict.fromkeys(f"{generic}  ({shape(row)})" for generic, row in places))
    if name in DESCRIPTIONS:
        yield "a description, not a name", (_DESCRIBES,)


def _number(parameter: Parameter) -> tuple[str, ...]:
    """Return the parameter that is estimated, its name in the config and its usual wrong values."""
    said = [f"{parameter.name}: estimated from the result, with its error"]
    if parameter.setting:
        said.append(f"the config's {parameter.setting}")
    if parameter.defaults:
        said.append(f"often hard-coded as {', '.join(f'{value:g}' for value in parameter.defaults)}")
    return tuple(said)


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
