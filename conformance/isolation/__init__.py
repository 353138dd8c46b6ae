"""Isolation of candidates: each candidate runs in a worker process, and none in the process that judges it.

The worker sends activations; the reference values, the judgement and the results file are in the parent process.
"""
