"""A third set of mistakes, written before their results were seen, without reading the catalogue or the earlier sets.

`hoped` is the rule by which a name is called right: what the mistake is, in words that no catalogue was read for.
"""

from conformance.benchmarks.detection.blind.third import (
    attention,
    control,
    embeddings,
    feed_forward,
    heads,
    norms,
    numerics,
    softmax,
    weights,
)

_THEMES = (embeddings, norms, attention, softmax, feed_forward, heads, weights, numerics, control)

MISTAKES = {mistake.name: mistake for theme in _THEMES for mistake in theme.MISTAKES}
"""All of them, by name."""

__all__ = ["MISTAKES"]
