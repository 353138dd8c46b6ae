"""A ninth set of mistakes, written before their results were seen, without reading the catalogue.

They follow the stages of a port: reading a checkpoint, inputs and masks, embeddings, attention, norms, feed-forward, heads, and
what optimisation, quantisation, sharding, packing and adapters add. Most of them are drawn from public reports, which `seen_in`
cites; the rest are common in exercises. The author had read the eighth set's mistakes in norms, its helper for a fused attention,
and the modules that plant and score a set: no other set, and no names that the suite gives.
`hoped` is the rule by which a name is called right: what a user must read to mend the mistake, in words for which no catalogue was
read.
"""

from conformance.benchmarks.detection.blind.ninth import (
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
