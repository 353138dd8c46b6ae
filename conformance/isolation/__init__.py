"""Candidates in processes of their own: a worker holds one candidate, and the process that judges it holds none.

The worker sends activations; the reference, the judgement and the results file are in the process that asks.
"""
