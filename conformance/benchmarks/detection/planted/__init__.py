"""The mistakes of `names`, each planted by hand in a torch module."""

from collections.abc import Mapping

from conformance.benchmarks.detection.names import ADDED_LATER, CONSTRUCTED, LISTED
from conformance.benchmarks.detection.planted import (
    attention,
    earlier_layers,
    embeddings,
    functions,
    heads,
    layers,
    norms,
    pooling,
    precision,
    projections,
    rows,
    scores,
)
from conformance.benchmarks.detection.planted.plant import Plant

_THEMES = (functions, norms, attention, projections, embeddings, heads, pooling, layers, earlier_layers, rows, scores, precision)
_FOUND = {plant.name: plant for theme in _THEMES for plant in theme.PLANTS}

PLANTS: Mapping[str, Plant] = {name: _FOUND[name] for name in (*LISTED, *CONSTRUCTED, *ADDED_LATER)}
"""The planted mistakes by name, in the order of `names`."""

__all__ = ["PLANTS", "Plant"]
