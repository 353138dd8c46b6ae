"""Checks of pre-training data: a pipeline makes examples of a corpus in which each pair of neighbouring tokens occurs only once."""
