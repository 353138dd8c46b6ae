"""A seventh set of mistakes, written before their results were seen, without reading the catalogue or the earlier sets.

The author had read the sixth set's mistakes in norms, to learn the form of a mistake, the README's beginning, which shows three
reports, and the titles of the latest commits, a few of which tell of names that were added. What these name is not in this set.
`hoped` is the rule by which a name is called right: what the mistake is, in words that no catalogue was read for.
"""

from conformance.benchmarks.detection.blind.seventh import (
    attention,
    embeddings,
    feed_forward,
    heads,
    masks,
    norms,
    runtime,
    weights,
)

_THEMES = (embeddings, masks, attention, norms, feed_forward, heads, weights, runtime)

MISTAKES = {mistake.name: mistake for theme in _THEMES for mistake in theme.MISTAKES}
"""All of them, by name."""

__all__ = ["MISTAKES"]
