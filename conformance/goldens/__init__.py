"""Goldens: networks, batches and true activations that candidates are held against."""
