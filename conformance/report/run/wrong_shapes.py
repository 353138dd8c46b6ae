"""One sentence for a wrong length that all refused activations share, such as a module that drops a token. Pure functions."""

import re
from collections.abc import Iterator, Sequence

from conformance.results.records import ActivationRecord

_SHAPE = re.compile(r"shape is \(([\d, ]*)\), expected (\([\d, ]*\) or )?\(([\d, ]*)\) \(([^)]*)\)")
_POSITIONS = {"query": "position", "key": "position"}  # both are positions of the sequence


def shared_wrong_length(refused: Sequence[ActivationRecord]) -> str:
    """Return `15 positions, expected 16` if this is what is wrong with every refused activation; otherwise an empty text."""
    differing = [_differing(a.reason) for a in refused]
    found = set().union(*differing)
    if len(found) != 1 or not all(differing):
        return ""
    ((axis, length, expected),) = found
    return f"{length} {axis}{'s' * (length != 1)}, expected {expected}"


def _differing(reason: str) -> set[tuple[str, int, int]]:
    """Return the axes whose lengths are wrong, each with the length and the expected one; empty for another reason."""
    match = _SHAPE.match(reason)
    if match is None:
        return set()
    found, expected = _numbers(match[1]), _numbers(match[3])
    one_for_all_rows = found[:1] == [1] and match[2] and len(found) == len(expected)
    return set(_pairs(found[1:] if one_for_all_rows else found, expected, match[4].split(", ")))


def _pairs(found: Sequence[int], expected: Sequence[int], axes: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the axes that differ, from the last one, since the batch axis may be missing; nothing if others are missing."""
    if len(found) not in (len(expected), len(expected) - 1):
        return
    for axis, length, right in zip(reversed(axes), reversed(found), reversed(expected), strict=False):
        if length != right:
            yield _POSITIONS.get(axis, axis), length, right


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]
