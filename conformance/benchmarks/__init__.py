"""Measurements of the suite itself, each as a ratio or a difference within one run."""
