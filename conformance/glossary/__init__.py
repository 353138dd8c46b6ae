"""What names mean, for `bert-conformance explain`: an entry for each fault, check, activation, outcome, golden and arithmetic.

The texts are those of the catalogue, the tables and the docstrings; none is copied here. Imports neither torch nor transformers.
"""
