"""Checks of pre-training data: a pipeline's examples of a corpus in which every two neighbouring tokens are found at one place."""
