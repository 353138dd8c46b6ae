"""Mistakes written before their results were seen, in one package for each set; `port` and `score` are shared by all sets."""
