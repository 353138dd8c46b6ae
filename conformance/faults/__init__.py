"""Mistakes that real BERTs have had, each a small change of the oracle, by theme: the catalogue.

To add a fault:

1. Yield it in `faults()` of its theme's module (a new theme is imported below): its name, the kinds of step that it acts on, its
   sentence, source and change, and for `bert-conformance explain` its equation, cause and fix.
2. Plant it by hand in a torch module, as a row of `conformance.benchmarks.detection.planted` (the theme of the same name).

`conformance/tests/test_faults.py` then checks its values, and `test_planted.py` that it is found, placed and named.
"""

from collections.abc import Mapping

from conformance.faults import (
    attention,
    dense,
    distances,
    dropout,
    embeddings,
    functions,
    gradients,
    heads,
    layers,
    losses,
    masks,
    norms,
    optimizer,
    pooling,
    precision,
    projections,
    quantized,
    score_positions,
    target_gradients,
    target_losses,
    transform,
)
from conformance.faults.fault import Fault, FaultContext, Parameter

_THEMES = (
    *(
        functions,
        norms,
        attention,
        masks,
        score_positions,
        distances,
        heads,
        projections,
        transform,
        embeddings,
        losses,
        target_losses,
        pooling,
        dense,
        layers,
        precision,
        quantized,
    ),
    *(dropout, target_gradients, gradients, optimizer),
)
CATALOGUE: tuple[Fault, ...] = tuple(fault for theme in _THEMES for fault in theme.faults())
"""Every fault that has a name, in the order in which equally good explanations are reported."""

BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in CATALOGUE}

OF_SOME: tuple[frozenset[str], ...] = tuple(
    frozenset(fault.name for fault in theme.faults())
    for theme in (distances, target_losses, target_gradients, pooling, dense, dropout, gradients, optimizer)
)
"""The names of each theme whose steps only some networks, or some checks, have."""

__all__ = ["BY_NAME", "CATALOGUE", "OF_SOME", "Fault", "FaultContext", "Parameter"]
