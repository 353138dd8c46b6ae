"""Candidates that live with the suite, registered by entry point as a stranger's would be."""
