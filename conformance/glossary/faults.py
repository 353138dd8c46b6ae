"""Entries for mistakes: the faults of the catalogue."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from conformance.diagnosis.pooling import POOLINGS
from conformance.faults import BY_NAME, Fault, Parameter
from conformance.faults.fault import EVERY_LAYER
from conformance.faults.fitted import DESCRIPTIONS
from conformance.glossary.activations import rows, shape, step_equation
from conformance.glossary.entry import Section
from conformance.glossary.known_faults import acts_at, known_faults
from conformance.judge.detection_power import Power
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.thresholds import SEPARABLE_Z

if TYPE_CHECKING:
    from conformance.glossary.detectability import Detectability

_FITTED = "a fit to the step's result that leaves only rounding errors; tried after all other mistakes"
_DESCRIBES = "a description, not a name: it has the fit of any wrong value of the operand, whatever the code does to produce it"
_CONSTRUCTED = "no report of it is known: constructed from the equation, as a mistake that could be made"
VALUES = {"value": "VALUE", "right": "EXPECTED"}  # Placeholders for the numbers in a fault's sentence.


def summaries() -> Mapping[str, str]:
    """Return the sentence of each fault, by name."""
    return {name: " / ".join(dict.fromkeys(f.sentence.format(**VALUES) for f in faults)) for name, faults in known_faults().items()}


def names(written: str) -> tuple[str, ...]:
    """Return the fault of this name, of this number that a pass confirms (`factor of the scores`), or of this pooling."""
    if written in known_faults():
        return (written,)
    if written in POOLINGS and (name := f"pooling-{written.removeprefix('mean-')}") in known_faults():
        return (name,)
    return tuple(name for name, fault in BY_NAME.items() if fault.parameter and written in _quantities(fault.parameter.quantity))


def _quantities(quantity: str) -> tuple[str, ...]:
    """Return the names of a number: of `factor of the scores (1/√d)` the whole, both parts, and the last words."""
    first, _, symbol = quantity.removesuffix(")").partition(" (")
    words = first.split()
    ends = (" ".join(words[i:]) for i in range(len(words) - 1))  # of two words at least: `clipped below`
    return tuple(filter(None, (quantity, first, symbol, *ends)))


def sections(name: str) -> Iterator[Section]:
    """Yield the equations of a fault, the steps where it acts, its cause, source and repair, and how it is recognised."""
    faults = known_faults()[name]
    places = [(generic, row) for generic, found in rows().items() for row in found if acts_at(faults, row)]
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
    yield from _recognised(name)


def _number(parameter: Parameter) -> tuple[str, ...]:
    """Return the parameter that is estimated, its name in the config and its usual wrong values."""
    said = [f"{parameter.name}: estimated from the result, with its error"]
    if parameter.setting:
        said.append(f"the config's {parameter.setting}")
    if parameter.defaults:
        said.append(f"often hard-coded as {', '.join(f'{value:g}' for value in parameter.defaults)}")
    return tuple(said)


def _recognised(name: str) -> Iterator[Section]:
    """Yield the evidence by which a fault is recognised, and the faults easily confused with it."""
    if name not in BY_NAME:
        yield "how it is recognised", (_FITTED, *((_DESCRIBES,) if name in DESCRIPTIONS else ()))
        return
    from conformance.glossary.detectability import detectability

    fault = BY_NAME[name]
    found = detectability(fault)
    amplitude = "" if fault.parameter else "an amplitude of 1 (at least 0.5) and "
    rule = f"matched filter: {amplitude}z beyond its threshold; separable if the expected z is at least {SEPARABLE_Z:g}"
    if found is None:
        yield "how it is recognised", (rule,)
    else:
        yield "how it is recognised", (rule, _basis(fault, found), *map(_power, found.power), _ELSEWHERE)
        yield "easily confused with", tuple(f"{other}: {how}" for other, how in found.confused.items())


_ELSEWHERE = (
    "z in a report differs if the candidate does not expose these activations, so that the mistake is seen in a later one, or if "
    "it computes in another arithmetic or on other batches"
)


def _basis(fault: Fault, found: "Detectability") -> str:
    """Return the inputs for which the expected z is computed."""
    value = " of its usual wrong value" if fault.parameter else ""
    arithmetic = representative_hypothesis("float32").arithmetic.name
    return (
        f"expected z{value} on golden {found.golden}, over all its batches, at each activation listed above, if the candidate "
        f"exposes it and rounds every operation (arithmetic `{arithmetic}`, or the same in another format):"
    )


def _power(cell: Power) -> str:
    best, least = _z(cell.best), _z(cell.weakest)
    return f"{cell.dtype}: {best} at best, {least} at least; separable at {cell.separable} of {cell.places} places"


def _z(z: float) -> str:
    return "any difference" if z == float("inf") else f"{z:.3g}"


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
