"""Comparison of two traces: the size of their difference, and the steps at which it begins."""
