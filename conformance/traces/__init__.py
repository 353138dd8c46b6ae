"""Traces: all that one candidate made of a golden, shown as a walk through the network, and what differs between two."""
