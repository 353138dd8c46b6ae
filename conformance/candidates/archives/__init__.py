"""Exported programs as candidates: loaded without their source code; interior activations are located in their graphs."""

from conformance.candidates.archives.archive import Archive

__all__ = ["Archive"]
