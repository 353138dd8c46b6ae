"""Goldens: networks, batches and true activations with which candidates are compared.

`shipped_goldens` is the table of those in `fixtures/` and says how to add one; `custom_golden` makes one of a user's checkpoint.
"""
