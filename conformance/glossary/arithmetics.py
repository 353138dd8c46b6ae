"""Entries for arithmetics, as reports name them, from the models and from the definitions in their module's docstring."""

import re
from collections.abc import Iterator, Mapping

from conformance.glossary.entry import Section, documentation, joined
from conformance.numerics import arithmetic as models
from conformance.numerics.arithmetic import Arithmetic, hypotheses
from conformance.numerics.formats import FORMATS

_DEFINITION = re.compile(r"^`(\w+)`\s+(.+?)(?=\n\n|\n`|\Z)", re.MULTILINE | re.DOTALL)


def definitions() -> dict[str, str]:
    """Return the definition of each kind of rounding and summation, from the docstring of `conformance.numerics.arithmetic`."""
    return {name: joined(text).rstrip(".;") for name, text in _DEFINITION.findall(documentation(models.__name__))}


def summaries() -> Mapping[str, str]:
    """Return for each arithmetic how a step rounds."""
    return {name: _summary(found[0]) for name, found in _by_name().items()}


def _summary(model: Arithmetic) -> str:
    if model.is_mixed:
        return definitions()[model.rounding]
    summation = "" if model.summation == "rounded" else f"; products: {definitions()[model.summation]}"
    return f"every operation rounds to {model.storage.name}{summation}"


def sections(name: str) -> Iterator[Section]:
    """Yield the formats of an arithmetic, the summation of products, and its names in reports."""
    found = _by_name()[name]
    formats = {model.storage.name: model for model in found}
    yield (
        "formats",
        tuple(
            f"stored in {model.storage.name} (unit roundoff 2^-{model.storage.precision}), accumulated in {model.accumulate.name}"
            for model in formats.values()
        ),
    )
    yield "sums in products", tuple(f"{s}: {definitions()[s]}" for s in dict.fromkeys(model.summation for model in found))
    yield (
        "in reports",
        (
            f"`{name}`: the step fits this arithmetic, computed from its inputs as captured",
            f"`{name}, parents unrounded`: computed from the inputs as they were before they were rounded for storage",
        ),
    )


def names(written: str) -> tuple[str, ...]:
    """Return the arithmetic of this name, which may end with `, parents unrounded`."""
    name = written.removesuffix(", parents unrounded")
    return (name,) if name in _by_name() else ()


def _by_name() -> dict[str, list[Arithmetic]]:
    """Return the models of all arithmetics by name, for all formats, on the CPU and on an accelerator."""
    found: dict[str, list[Arithmetic]] = {}
    for dtype in FORMATS:
        for device in ("cpu", "cuda"):
            for hypothesis in hypotheses(dtype, device):
                models_so_far = found.setdefault(hypothesis.arithmetic.name, [])
                if hypothesis.arithmetic not in models_so_far:
                    models_so_far.append(hypothesis.arithmetic)
    return found
