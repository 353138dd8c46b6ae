"""Mistakes planted by hand in torch modules; each is a row of the module of its theme, with its description.

`conformance.faults` says how to add one.
"""

from collections.abc import Mapping

from conformance.benchmarks.detection.names import CONSTRUCTED, LISTED
from conformance.benchmarks.detection.planted import (
    attention,
    earlier_layers,
    embeddings,
    functions,
    heads,
    kernels,
    layers,
    losses,
    norms,
    pooling,
    precision,
    projections,
    rows,
    scores,
    weights,
)
from conformance.benchmarks.detection.planted.plant import Plant

_THEMES = (
    *(functions, norms, attention, projections, embeddings, heads, losses, pooling, layers, earlier_layers, rows, scores, kernels),
    precision,
    weights,
)

ROWS: tuple[Plant, ...] = tuple(plant for theme in _THEMES for plant in theme.PLANTS)
"""All planted mistakes, theme by theme."""

PLANTS: Mapping[str, Plant] = {plant.name: plant for plant in ROWS}

ADDED_LATER: tuple[str, ...] = tuple(name for name in PLANTS if name not in {*LISTED, *CONSTRUCTED})
"""Mistakes that were given a filter because the blind mistakes (`blind`) included them, or similar ones, without a filter."""

__all__ = ["ADDED_LATER", "PLANTS", "ROWS", "Plant"]
