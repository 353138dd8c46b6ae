"""Candidates: finding them, building them from tables, and capturing their activations while they run."""
