"""The table of mistakes: each is another expression of a step of the network (`conformance.benchmarks.detection.equations`).

`conformance.faults` says how to add one.
"""

from collections.abc import Mapping

from conformance.benchmarks.detection.mistakes import attention, embeddings, heads, layers, weights
from conformance.benchmarks.detection.mistakes.row import Row

ROWS: tuple[Row, ...] = tuple(row for theme in (embeddings, attention, layers, weights, heads) for row in theme.ROWS)
"""All mistakes, theme by theme."""

MISTAKES: Mapping[str, Row] = {row.name: row for row in ROWS}
"""All mistakes, by name."""

__all__ = ["MISTAKES", "ROWS", "Row"]
