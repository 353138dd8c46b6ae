"""An eleventh set of mistakes, written before their results were seen, without reading the catalogue.

They follow the stages of a port: embeddings, masks, attention, norms, feed-forward, heads, the weights that are read, and what
runs them. Most are plain mistakes of ports; some come of quantisation, sharding, pruning and fused kernels. Where a public report
is known, `seen_in` cites it; the rest are common in exercises. The author had read the ninth set's norms and weights, and the
modules that plant and score a set: no other set, and no names that the suite gives.
`hoped` is the rule by which a name is called right: what a user must read to mend the mistake, in words for which no catalogue was
read.
"""

from conformance.benchmarks.detection.blind.eleventh import (
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
