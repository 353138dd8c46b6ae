"""Goldens: networks, batches and true activations that candidates are compared with."""
