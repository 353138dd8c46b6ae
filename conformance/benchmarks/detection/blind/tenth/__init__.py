"""A tenth set of mistakes, written before their results were seen, without reading the catalogue.

They follow a port from the checkpoint to production: reading the weights, embeddings, masks, attention, norms, feed-forward, heads,
then quantisation, sharding, and fused or packed execution. Most of them are drawn from public reports, which `seen_in` cites; the
rest are common in exercises. The author had read the ninth set's mistakes in norms, attention and weights, and the modules that
plant and score a set: no other set, and no names that the suite gives.
`hoped` is the rule by which a name is called right: what a user must read to mend the mistake, in words for which no catalogue was
read.
"""

from conformance.benchmarks.detection.blind.tenth import (
    attention,
    embeddings,
    feed_forward,
    heads,
    masks,
    norms,
    quantisation,
    reading,
    runtime,
    sharding,
)

_THEMES = (reading, embeddings, masks, attention, norms, feed_forward, heads, quantisation, sharding, runtime)

MISTAKES = {mistake.name: mistake for theme in _THEMES for mistake in theme.MISTAKES}
"""All of them, by name."""

__all__ = ["MISTAKES"]
