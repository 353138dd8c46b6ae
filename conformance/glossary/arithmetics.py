"""Arithmetics, as reports name them, from the models themselves and from the definitions in their module's docstring."""

import re
from collections.abc import Iterator, Mapping

from conformance.glossary.entry import Section, joined
from conformance.numerics import arithmetic as models
from conformance.numerics.arithmetic import Arithmetic, hypotheses
from conformance.numerics.formats import FORMATS

_DEFINITION = re.compile(r"^`(\w+)`\s+(.+?)(?=\n\n|\n`|\Z)", re.MULTILINE | re.DOTALL)


def definitions() -> dict[str, str]:
    """What each way of rounding and of summation is, from the docstring of `conformance.numerics.arithmetic`."""
    return {name: joined(text).rstrip(".;") for name, text in _DEFINITION.findall(models.__doc__ or "")}


def summaries() -> Mapping[str, str]:
    """How a step rounds under each arithmetic."""
    return {name: _summary(found[0]) for name, found in _by_name().items()}


def _summary(model: Arithmetic) -> str:
    if model.is_mixed:
        return definitions()[model.rounding]
    summation = "" if model.summation == "rounded" else f"; products: {definitions()[model.summation]}"
    return f"every operation rounds to {model.storage.name}{summation}"


def sections(name: str) -> Iterator[Section]:
    """Its formats, how products are summed, and what a report says of it."""
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
    """The arithmetic of that name, with or without `, parents unrounded`."""
    name = written.removesuffix(", parents unrounded")
    return (name,) if name in _by_name() else ()


def _by_name() -> dict[str, list[Arithmetic]]:
    """The arithmetics that a run may declare, on the CPU and on an accelerator."""
    found: dict[str, list[Arithmetic]] = {}
    for dtype in FORMATS:
        for device in ("cpu", "cuda"):
            for hypothesis in hypotheses(dtype, device):
                models_so_far = found.setdefault(hypothesis.arithmetic.name, [])
                if hypothesis.arithmetic not in models_so_far:
                    models_so_far.append(hypothesis.arithmetic)
    return found
