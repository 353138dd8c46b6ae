"""Exported programs as candidates: loaded without their source code; interior activations are located in their graphs."""

from conformance.candidates.archives.archive import READERS, Archive

__all__ = ["READERS", "Archive"]
