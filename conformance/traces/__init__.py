"""Traces: all that one candidate made of a golden, and what differs between two."""
