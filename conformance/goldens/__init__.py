"""Goldens: networks, batches and true activations with which candidates are compared."""
