"""Candidates shipped with the suite, registered by entry point like those of any other package."""
