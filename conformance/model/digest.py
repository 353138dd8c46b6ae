"""Digests of tensors rather than of files, because files with the same tensors may differ in the order of their metadata."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def content_digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the SHA-256 of the name, dtype, shape and little-endian bytes of every array, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        payload = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name}\0{array.dtype.str.lstrip('<=|')}\0{array.shape}\0".encode())
        digest.update(payload.reshape(-1).view(np.uint8).data)  # a view, not a copy
    return digest.hexdigest()
