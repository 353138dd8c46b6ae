"""A second set of mistakes written before their results were seen, without reading the catalogue or the first set.

`hoped` is the rule by which a name is called right: what the mistake is, in words that no catalogue was read for.
"""

from conformance.benchmarks.detection.blind.second import attention, embeddings, heads, layers, weights

MISTAKES = {mistake.name: mistake for theme in (weights, embeddings, layers, attention, heads) for mistake in theme.MISTAKES}
"""All of them, by name."""

__all__ = ["MISTAKES"]
