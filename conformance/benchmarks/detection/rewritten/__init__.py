"""The steps of a BERT rewritten in other ways, all of them correct."""
