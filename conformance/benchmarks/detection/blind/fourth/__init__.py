"""A fourth set of mistakes, written before their results were seen, without reading the catalogue or the earlier sets.

`hoped` is the rule by which a name is called right: what the mistake is, in words that no catalogue was read for.
"""

from conformance.benchmarks.detection.blind.fourth import attention, embeddings, heads, layers, weights

_THEMES = (embeddings, attention, layers, weights, heads)

MISTAKES = {mistake.name: mistake for theme in _THEMES for mistake in theme.MISTAKES}
"""All of them, by name."""

__all__ = ["MISTAKES"]
