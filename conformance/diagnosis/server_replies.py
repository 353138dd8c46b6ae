"""Embeddings in servers' replies: OpenAI's format, which llama.cpp and TEI support too, and those of Ollama, TEI and llama.cpp."""

import base64
import binascii
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.diagnosis.printed import depth
from conformance.errors import UsageError

_ABOUT = frozenset(
    ("id", "object", "created", "model", "usage", "total_duration", "load_duration", "prompt_eval_count", "eval_count")
)
"""Keys of a reply that hold metadata."""


def outputs_of(reply: Any) -> dict[str, Any]:
    """Return the entries of a reply without its metadata; a list, or the `data` of OpenAI's format, under an empty name.

    Args:
        reply: a list of numbers, of vectors or of `{"index": 0, "embedding": …}`; or an object with such a list as `data`; or any
            other object, whose entries are returned.

    Raises:
        UsageError: an embedding is a text that is not base64 of float32.
    """
    if isinstance(reply, dict) and _is_indexed(reply.get("data")):
        reply = reply["data"]
    if _is_indexed(reply):
        return {"": _vectors([entry["embedding"] for entry in sorted(reply, key=lambda entry: int(entry.get("index", 0)))])}
    if isinstance(reply, list):
        return {"": _vectors(reply)}
    embeddings = {name: _vectors(reply[name]) for name in ("embedding", "embeddings") if isinstance(reply.get(name), str | list)}
    return {name: entry for name, entry in {**reply, **embeddings}.items() if name not in _ABOUT}


def _is_indexed(entries: Any) -> bool:
    return isinstance(entries, list) and bool(entries) and all(isinstance(e, dict) and "embedding" in e for e in entries)


def _vectors(tree: Any) -> Any:
    """Return vectors, decoded from base64 where needed; token vectors of texts of different lengths are padded with `...`."""
    if isinstance(tree, str):
        return _decoded(tree) if tree != "..." else tree
    tree = [_vectors(part) if isinstance(part, str) and len(part) > len("...") and not _is_number(part) else part for part in tree]
    if tree and all(isinstance(part, np.ndarray) for part in tree):
        return np.stack(tree)
    if depth(tree) != 3 or not all(isinstance(rows, list) for rows in tree):
        return tree
    longest = max(len(rows) for rows in tree)
    if longest == 1:  # llama.cpp with pooling: each embedding is a list of one vector
        return [rows[0] if rows else rows for rows in tree]
    return [rows if len(rows) == longest or "..." in rows else [*rows, "..."] for rows in tree]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _decoded(text: str) -> npt.NDArray[np.float32]:
    """Return the little-endian float32 numbers that a text encodes in base64."""
    try:
        content = base64.b64decode(text, validate=True)
        return np.frombuffer(content, "<f4").astype(np.float32)
    except (binascii.Error, ValueError):
        raise UsageError(f"an embedding is {text!r:.60}, expected a list of numbers, or float32 in base64") from None
