"""Exported programs as candidates: read without their source, their interior activations found in their graphs."""

from conformance.candidates.archives.archive import READERS, Archive

__all__ = ["READERS", "Archive"]
