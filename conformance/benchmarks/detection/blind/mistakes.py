"""All mistakes of this package, by name."""

from conformance.benchmarks.detection.blind import attention, embeddings, heads, layers, weights

MISTAKES = {m.name: m for theme in (weights, embeddings, layers, attention, heads) for m in theme.MISTAKES}
