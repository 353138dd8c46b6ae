"""Candidates that live with the suite, registered by entry point as those of any other distribution."""
