"""An eighth set of mistakes, written before their results were seen, without reading the catalogue or the earlier sets.

Most of them are drawn from reports of bugs in public ports, exports and reimplementations of BERT and of the transformer, which
`seen_in` cites; the rest are common in exercises. The author had read the seventh set's mistakes in norms, to learn the form of a
mistake, the module that scores a set, and the tests of the seventh set, which show two names of the catalogue and sixteen titles
of that set's mistakes. What these name is not in this set.
`hoped` is the rule by which a name is called right: what the mistake is, in words that no catalogue was read for.
"""

from conformance.benchmarks.detection.blind.eighth import (
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
