"""A sixth set of mistakes, written before their results were seen, without reading the catalogue or the earlier sets.

The author had read the fifth set's mistakes in norms, to learn the form of a mistake, and the first lines of its accepted names,
with three names of mistakes and one name of the catalogue. `hoped` is the rule by which a name is called right: what the mistake
is, in words that no catalogue was read for.
"""

from conformance.benchmarks.detection.blind.sixth import attention, embeddings, heads, layers, loading, masks, norms, quantised

_THEMES = (embeddings, attention, masks, norms, layers, loading, quantised, heads)

MISTAKES = {mistake.name: mistake for theme in _THEMES for mistake in theme.MISTAKES}
"""All of them, by name."""

__all__ = ["MISTAKES"]
