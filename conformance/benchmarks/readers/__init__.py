"""Damaged files through every reader: `python -m conformance.benchmarks.readers`."""
