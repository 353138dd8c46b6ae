"""The glossary of `bert-conformance explain`: an entry for each mistake, check, activation, outcome, term, golden and arithmetic.

The texts are taken from the catalogue, the tables and the docstrings, without copies here. The package imports neither torch nor
transformers.
"""
