"""The glossary of `bert-conformance explain`: the terms of `terms.md`, and entries of the tables of all other names."""
