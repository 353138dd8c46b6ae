"""Isolation of candidates: each candidate runs in a worker process, and none in the process that judges it.

Workers speak the protocol of `PROTOCOL.md`: those of Python, and programs in any language, for which `client.py` and `client.mjs`
are clients to copy; this package does not import them.

The worker sends activations; the reference values, the judgement and the results file are in the parent process.
"""
