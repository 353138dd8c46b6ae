"""The first set of mistakes, written before their results were seen, by an author who had not read the catalogue of faults."""

from conformance.benchmarks.detection.blind.first import attention, embeddings, heads, layers, weights

MISTAKES = {mistake.name: mistake for theme in (weights, embeddings, layers, attention, heads) for mistake in theme.MISTAKES}
"""All of them, by name."""

__all__ = ["MISTAKES"]
