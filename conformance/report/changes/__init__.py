"""Comparison of two runs and its report."""
